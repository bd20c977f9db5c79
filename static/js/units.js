// Shows sizes in the viewer's units: binary as the server writes them, or decimal. Charts are redrawn; sizes in texts,
// tables and labels are converted, and the original text is restored when the viewer switches back.

import { inUnits, useDecimal } from "./formats.js";
import { keep, kept, keptAs } from "./browser_storage.js";

// Not converted: user-defined names, and text that users type as shown.
const AS_IT_IS = "script, style, code, pre, textarea, option, [data-choose], .document, .run-head h1, td a, .name, .tag, .chart, .line-numbers";
const LABELS = ["title", "aria-label"];
// Text node, or element and attribute -> the original text and its replacement.
const texts = new WeakMap();
const labels = new WeakMap();

export const unitsNow = () => (kept("units") === "decimal" ? "decimal" : "binary");
export const switchUnits = () => useUnits(unitsNow() === "decimal" ? "binary" : "decimal");

export function useUnits(units) {
  keep("units", units);
  showAnew();
}

function showAnew() {
  begin();
  // The theme event also makes the charts redraw.
  document.dispatchEvent(new Event("leakline:theme"));
}

/** Converts the page once, and everything that is added to it later. */
export function startUnits() {
  begin();
  // The choice applies to all windows: otherwise, text added after a change in another window would be in different
  // units from the rest of the page.
  addEventListener("storage", ({ key }) => {
    if (key === null || key === keptAs("units")) showAnew();
  });
  const observer = new MutationObserver((changes) => {
    if (unitsNow() !== "decimal") return;
    for (const { addedNodes } of changes) addedNodes.forEach(write);
  });
  observer.observe(document.body, { childList: true, subtree: true });
}

function begin() {
  const decimal = unitsNow() === "decimal";
  useDecimal(decimal);
  for (const mark of document.querySelectorAll("[data-units]")) mark.textContent = decimal ? "GB" : "GiB";
  write(document.body);
}

function write(root) {
  const around = root instanceof Element ? root : root.parentElement;
  if (!around || around.closest(AS_IT_IS)) return;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, {
    acceptNode: (node) => (node instanceof Element && node.matches(AS_IT_IS) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT),
  });
  for (let node = root; node; node = walker.nextNode()) {
    if (node instanceof Text) writeText(node);
    else if (node instanceof Element) writeLabels(node);
  }
}

function writeText(node) {
  const wanted = remembered(texts, node, node.data);
  if (wanted !== node.data) node.data = wanted;
}

function writeLabels(element) {
  for (const name of LABELS) {
    const now = element.getAttribute(name);
    if (now === null) continue;
    if (!labels.has(element)) labels.set(element, new Map());
    const wanted = remembered(labels.get(element), name, now);
    if (wanted !== now) element.setAttribute(name, wanted);
  }
}

/** Returns the text to show in place of `now`. */
function remembered(memory, key, now) {
  const before = memory.get(key);
  const written = before && before.shown === now ? before.written : now;
  const shown = inUnits(written);
  if (shown !== written || before) memory.set(key, { written, shown });
  return shown;
}
