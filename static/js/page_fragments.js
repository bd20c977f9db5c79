// Draws anew what the server drew first: fetches the same fragments and puts in the parts that changed.

const parser = new DOMParser();
// What the server last wrote for a part. Compared with its next text, because scripts change the page's copy.
const written = new WeakMap();

/** Before anything of the page is changed: so that a part is exchanged only when the server writes it otherwise. */
export function remember(root = document) {
  for (const part of root.querySelectorAll("[data-part]")) written.set(part, part.innerHTML);
}

/** The parts of a section: it is drawn as a whole when they are others, as when its chart has first numbers. */
const names = (section) => [...section.querySelectorAll("[data-part]")].map((part) => part.dataset.part).join();

/**
 * Replaces each changed `data-part`, adds sections that are new and removes tables that are gone, unless `html` is parts
 * alone. Returns the names of the changed parts.
 */
export function takeParts(html, root = document) {
  const incoming = parser.parseFromString(html, "text/html");
  const changed = [];
  let previous = null;
  for (const section of incoming.querySelectorAll("[data-section]")) {
    const present = root.getElementById(section.id);
    const home = root.getElementById(section.parentElement.id);
    if (present ? names(present) !== names(section) : home) {
      const drawn = document.importNode(section, true);
      if (present) present.replaceWith(drawn);
      else if (previous?.parentElement === home) previous.after(drawn);
      else home.prepend(drawn);
      changed.push(`${section.id}.data`);
    }
    previous = root.getElementById(section.id) ?? previous;
  }
  for (const here of previous ? root.querySelectorAll("[data-section]") : []) {
    // A chart stays: it may be open, and its numbers come back.
    if (!incoming.getElementById(here.id) && !here.querySelector(".chart")) here.remove();
  }
  for (const part of incoming.querySelectorAll("[data-part]")) {
    const here = root.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
    const text = part.innerHTML;
    if (!here || (written.get(here) ?? null) === text) continue;
    written.set(here, text);
    if (here.innerHTML === text) continue;
    keepPlace(here, () => here.replaceChildren(...document.importNode(part, true).childNodes));
    for (const { name, value } of part.attributes) here.setAttribute(name, value);
    changed.push(part.dataset.part);
  }
  return changed;
}

/** Open `<details>`, scrolled tables, the focus and what was typed survive an exchange. */
function keepPlace(here, exchange) {
  const open = [...here.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...here.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  const typed = [...here.querySelectorAll("input[id]")].filter(({ value, defaultValue }) => value !== defaultValue);
  const { activeElement: focused } = document;
  const at = here.contains(focused) ? reachable(here).indexOf(focused) : -1;
  exchange();
  here.querySelectorAll("details").forEach((each, i) => { if (i < open.length) each.open = open[i]; });
  here.querySelectorAll(".scroll").forEach((each, i) => { if (i < scrolled.length) each.scrollTo(...scrolled[i]); });
  for (const { id, value, defaultValue } of typed) {
    const field = document.getElementById(id);
    // A field that the server has filled anew shows what it says.
    if (field && field.defaultValue === defaultValue) field.value = value;
  }
  // By its id, or where it stood; the page stays where it was scrolled to.
  if (at >= 0) ((focused.id && document.getElementById(focused.id)) || reachable(here)[at])?.focus({ preventScroll: true });
}

const reachable = (root) => [...root.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];
