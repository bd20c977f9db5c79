// What the viewer chose, kept in this browser; where it keeps nothing (a report in somebody else's frame), for as long as
// the page is open.

const here = new Map();

export function kept(name) {
  try {
    return localStorage.getItem(`leakline.${name}`);
  } catch {
    return here.get(name) ?? null;
  }
}

/** null: forget it. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(`leakline.${name}`);
    else localStorage.setItem(`leakline.${name}`, value);
  } catch {
    here.set(name, value);
  }
}
