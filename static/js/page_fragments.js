// Updates the page in place: takes the fragments that the server rendered again, and replaces the parts that changed.

const parser = new DOMParser();
// The last HTML that the server sent for a part. New HTML is compared with it, because scripts modify the page's copy.
const written = new WeakMap();

/** Stores the HTML of each part before scripts modify it, so that a part is replaced only if the server's HTML changes. */
export function remember(root = document) {
  for (const part of root.querySelectorAll("[data-part]")) written.set(part, part.innerHTML);
}

/**
 * Returns the names of a section's parts. If they change, for example because a chart gets its first data, the entire
 * section is replaced.
 */
const names = (section) => [...section.querySelectorAll("[data-part]")].map((part) => part.dataset.part).join();

/**
 * Replaces each changed `data-part`. Unless `html` contains only parts, adds new sections and removes tables that are
 * gone. Returns the names of the changed parts.
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
    // Charts stay: they may be open, and their data may come back.
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

/** Preserves open `<details>`, scroll positions, focus and form input while a part is replaced. */
function keepPlace(here, exchange) {
  const details = byName(here, "details");
  const scrolled = [...here.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
  const changed = fields(here).filter((each) => !isAsWritten(each)).map((each) => [fieldName(each), each.value, each.defaultValue]);
  const { activeElement: focused } = document;
  const name = here.contains(focused) ? nameOf(focused, here) : null;
  const at = byName(here, REACHABLE).get(name)?.indexOf(focused) ?? -1;
  const [from, to] = at >= 0 && focused.type === "text" ? [focused.selectionStart, focused.selectionEnd] : [];
  exchange();
  const fresh = new Map(fields(here).map((each) => [fieldName(each), each]));
  for (const [name, value, given] of changed) {
    const field = fresh.get(name);
    // A field with a new default value from the server shows that value.
    if (field && field.defaultValue === given) field.value = value;
  }
  for (const [name, found] of byName(here, "details")) {
    found.forEach((each, i) => { each.open = details.get(name)?.[i]?.open ?? each.open; });
  }
  here.querySelectorAll(".scroll").forEach((each, i) => { if (i < scrolled.length) each.scrollTo(...scrolled[i]); });
  if (at < 0) return;
  const same = byName(here, REACHABLE).get(name);
  const again = same?.[at] ?? same?.at(-1);
  // Without this option the browser would scroll to the element.
  again?.focus({ preventScroll: true });
  if (from !== undefined && again?.type === "text") again.setSelectionRange(from, to);
}

const fields = (root) => [...root.querySelectorAll("form :is(select, input:not([type=hidden], [type=checkbox], [type=radio]))")];
const fieldName = (field) => `${field.form.getAttribute("action")} ${field.name}`;
const isAsWritten = (field) =>
  field.options ? [...field.options].every((each) => each.selected === each.defaultSelected) : field.value === field.defaultValue;

const REACHABLE = "a[href], button, input, select, textarea, summary, [tabindex]";

/** Returns an identity of an element that does not depend on its position, because rows move. */
function nameOf(element, here) {
  const owner = element.closest("[id], [data-run]");
  const owned = owner && owner !== here && here.contains(owner) ? owner.id || owner.dataset.run : "";
  return `${owned} ${element.getAttribute("href") ?? element.tagName}`;
}

/** Returns identity -> elements in document order. */
function byName(root, selector) {
  const found = new Map();
  for (const each of root.querySelectorAll(selector)) {
    const name = nameOf(each, root);
    found.set(name, [...(found.get(name) ?? []), each]);
  }
  return found;
}
