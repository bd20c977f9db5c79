// What the viewer chose, kept in this browser; where it keeps nothing (a report in somebody else's frame), for as long as
// the page is open.

const here = new Map();

/** The name under which the browser has it, as other windows hear of it. */
export const keptAs = (name) => `leakline.${name}`;

export function kept(name) {
  try {
    return localStorage.getItem(keptAs(name));
  } catch {
    return here.get(name) ?? null;
  }
}

/** null: forget it. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(keptAs(name));
    else localStorage.setItem(keptAs(name), value);
  } catch {
    here.set(name, value);
  }
}
