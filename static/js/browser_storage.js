// Choices of the viewer, kept in the browser's storage. Without storage (a report in a third-party frame) they last
// until the page is closed.

const here = new Map();

/** Returns the storage key, which storage events in other windows report. */
export const keptAs = (name) => `leakline.${name}`;

export function kept(name) {
  try {
    return localStorage.getItem(keptAs(name));
  } catch {
    return here.get(name) ?? null;
  }
}

/** Stores a choice; null removes it. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(keptAs(name));
    else localStorage.setItem(keptAs(name), value);
  } catch {
    here.set(name, value);
  }
}
