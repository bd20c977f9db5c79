// The list of runs: selection of runs and actions on them, and live updates of the list.

import { showTimes } from "./page.js";
import { takeParts } from "./page_fragments.js";

const form = document.getElementById("picked");
const search = document.getElementById("search");
const overlay = document.getElementById("overlay-button");
const unpicked = document.getElementById("picked-hint")?.textContent ?? "";
const REFRESH_MS = 4000;
const MOST_NAMED = 3;

// Id -> name in the order of selection: of two runs, the first is "before". A run stays selected when it leaves the
// list.
const picked = new Map();
let sentBy = null;

const boxes = () => [...document.querySelectorAll("input[name=pick]")];

function show() {
  for (const box of boxes()) box.checked = picked.has(box.value);
  const number = picked.size;
  form.dataset.picked = String(number);
  for (const button of form.querySelectorAll("button[data-least]")) {
    button.disabled = number < Number(button.dataset.least) || number > Number(button.dataset.most ?? Infinity);
  }
  document.getElementById("clear-button").hidden = number === 0;
  const hint = document.getElementById("picked-hint");
  // The text is set only if it changes, because screen readers announce it each time.
  if (hint.textContent !== words(number)) hint.textContent = words(number);
}

function words(number) {
  const names = [...picked.values()];
  if (number === 0) return unpicked;
  if (number === 1) return `${names[0]} is picked.`;
  if (number === 2 && overlay) return `${names[0]} → ${names[1]}`;
  const rest = number > MOST_NAMED ? ` and ${number - MOST_NAMED} more` : "";
  const most = number > Number(overlay?.dataset.most ?? Infinity) ? ` An overlay can show up to ${overlay.dataset.most} runs.` : "";
  return `${number} runs: ${names.slice(0, MOST_NAMED).join(", ")}${rest}.${most}`;
}

function pick(box) {
  if (box.checked) picked.set(box.value, box.dataset.name);
  else picked.delete(box.value);
}

/** Submits the selected runs in their order, including those that are no longer on this page. */
function fill({ formData }) {
  const ids = [...picked.keys()];
  formData.delete("pick");
  if (sentBy?.id === "compare-button") {
    formData.set("before", ids[0]);
    formData.set("after", ids[1]);
  } else {
    for (const id of ids) formData.append("pick", id);
  }
  // `view` is where a change redirects to; in a GET URL it has no meaning.
  if (sentBy?.formMethod !== "post") formData.delete("view");
}

let refreshing = false;
// The newest list, held back while the pointer or the focus is on a row that would move.
let held = null;
const list = document.getElementById("list");
const updates = document.getElementById("updates");
let pointerY = 0;
let lastFocused = null;
// The text of a row without relative times, which change constantly.
const said = (row) => {
  const copy = row.cloneNode(true);
  copy.querySelectorAll("time").forEach((each) => each.remove());
  return copy.textContent;
};
const order = (root) => [...root.querySelectorAll("[data-part=runs] [data-run]")].map((row) => row.dataset.run).join();

// `:focus-visible` ignores the focus that a mouse click leaves behind.
const inUse = () => (matchMedia("(hover: hover)").matches && list.matches(":hover")) || Boolean(list.querySelector(":focus-visible"));

/** Holds an update back if rows would move while the pointer or the focus is on them: the viewer could click a wrong row. */
function hold(html) {
  if (!list || !inUse()) return false;
  const incoming = new DOMParser().parseFromString(html, "text/html");
  if (order(incoming) === order(document)) return false;
  const texts = new Map([...list.querySelectorAll("[data-run]")].map((row) => [row.dataset.run, said(row)]));
  const rows = [...incoming.querySelectorAll("[data-part=runs] [data-run]")];
  const changed = rows.filter((row) => texts.get(row.dataset.run) !== said(row)).length;
  held = html;
  updates.textContent = `Show ${Math.max(1, changed)} update${changed > 1 ? "s" : ""}`;
  // Keep the button away from the pointer, which may be about to click.
  if (updates.hidden) updates.classList.toggle("below", pointerY < innerHeight / 2);
  updates.hidden = false;
  return true;
}

function apply(html) {
  held = null;
  if (updates) updates.hidden = true;
  takeParts(html);
  if (form) show();
  showTimes();
}

async function refresh() {
  // A slow server gets only one request at a time.
  if (document.hidden || refreshing) return;
  refreshing = true;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const html = await answer.text();
    // The first run has arrived, so the page has another structure.
    if (!form && html.includes('id="picked"')) location.reload();
    if (!hold(html)) apply(html);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the server is unreachable; the next interval retries
  } finally {
    refreshing = false;
  }
}

if (form) {
  // Restores the checkboxes that the browser preserved on back navigation.
  boxes().filter((box) => box.checked).forEach(pick);
  document.addEventListener("change", ({ target }) => {
    if (target.name !== "pick") return;
    pick(target);
    show();
  });
  form.addEventListener("submit", ({ submitter }) => { sentBy = submitter; });
  form.addEventListener("formdata", fill);
  document.getElementById("clear-button").addEventListener("click", () => {
    picked.clear();
    show();
    boxes()[0]?.focus();
  });
  for (const choice of search.querySelectorAll("select")) choice.addEventListener("change", () => search.requestSubmit());
  // Default values would only make the URL longer.
  search.addEventListener("formdata", ({ formData }) => {
    for (const [name, usual] of [["q", ""], ["group", "project"], ["sort", "severity"]]) {
      if (formData.get(name) === usual) formData.delete(name);
    }
  });
  updates.addEventListener("click", ({ detail }) => {
    // Keyboard users return to the row they came from.
    if (detail === 0) lastFocused?.focus({ preventScroll: true });
    apply(held);
  });
  list.addEventListener("focusin", ({ target }) => { if (target !== updates) lastFocused = target; });
  document.addEventListener("pointermove", ({ clientY }) => { pointerY = clientY; }, { passive: true });
  // Wait until the focus has moved to the next element.
  const release = () => setTimeout(() => { if (held && !inUse()) apply(held); });
  list.addEventListener("mouseleave", release);
  list.addEventListener("focusout", release);
  show();
}
setInterval(refresh, REFRESH_MS);
