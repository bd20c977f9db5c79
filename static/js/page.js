// Common to all pages: theme and unit switches, keyboard shortcuts, times in the viewer's zone.

import { ago } from "./formats.js";
import { keep } from "./browser_storage.js";
import { remember } from "./page_fragments.js";
import { startUnits, switchUnits, unitsNow, useUnits } from "./units.js";

const isDark = () =>
  (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

const switchTheme = () => useTheme(isDark() ? "light" : "dark");

function useTheme(theme) {
  const chosen = theme === "system" ? null : theme;
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  keep("theme", chosen);
  document.dispatchEvent(new Event("leakline:theme"));
}

/** The choices of the switches in the header, for the form on the settings page. */
const CHOICES = {
  theme: { now: () => document.documentElement.dataset.theme ?? "system", use: useTheme },
  units: { now: unitsNow, use: useUnits },
};

function showChoices() {
  for (const group of document.querySelectorAll("[data-choose]")) {
    const now = CHOICES[group.dataset.choose].now();
    for (const radio of group.querySelectorAll("input")) radio.checked = radio.value === now;
  }
}

/**
 * Formats `<time>` in the viewer's zone; the server writes UTC for browsers without scripts. `data-show` selects the
 * format: `ago`, `clock` or `minute` (both with the date unless it is today), otherwise date and time.
 */
export function showTimes(root = document) {
  const now = new Date();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const then = new Date(element.dateTime);
    const text = timeText(then, now, element.dataset.show);
    if (element.textContent !== text) element.textContent = text;
    element.title = then.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  }
}

function timeText(then, now, show) {
  if (show === "ago") return ago(then, now);
  const timeStyle = show === "minute" ? "short" : "medium";
  if (["clock", "minute"].includes(show) && then.toDateString() === now.toDateString()) return `${then.toLocaleTimeString(undefined, { timeStyle })}${show === "minute" ? " today" : ""}`;
  return then.toLocaleString(undefined, { dateStyle: "medium", timeStyle });
}

const keys = new Map();

/** Registers a keyboard shortcut; pages add their own. */
export function onKey(key, action) {
  keys.set(key, action);
}

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input:not([type=radio], [type=checkbox]), select, textarea"));
}

/** Shows elements that only work with scripts. */
export function reveal() {
  for (const element of document.querySelectorAll("[data-needs-script][hidden]")) element.hidden = false;
}

function start() {
  remember();
  reveal();
  startUnits();
  document.getElementById("theme")?.addEventListener("click", switchTheme);
  document.getElementById("units")?.addEventListener("click", switchUnits);
  document.addEventListener("leakline:theme", showChoices);
  document.addEventListener("change", ({ target }) => CHOICES[target.closest?.("[data-choose]")?.dataset.choose]?.use(target.value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("leakline:theme")));
  const help = document.getElementById("keys");
  const showHelp = () => help.showModal();
  document.getElementById("show-keys")?.addEventListener("click", showHelp);
  onKey("d", switchTheme);
  onKey("u", switchUnits);
  onKey("?", showHelp);
  onKey("/", () => document.querySelector("input[type=search]")?.focus());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const action = keys.get(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  });
  showChoices();
  showTimes();
  setInterval(showTimes, 5000);
}

start();
