// What every page has: the theme switch, keyboard shortcuts, times in the viewer's zone.

import { ago } from "./formats.js";

const isDark = () =>
  (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("leakline.theme", theme);
  document.dispatchEvent(new Event("leakline:theme"));
}

/** `<time data-show="ago">` and `<time>` in the viewer's own zone; the server writes UTC for those without scripts. */
export function showTimes(root = document) {
  const now = Date.now();
  for (const element of root.querySelectorAll("time[datetime]")) {
    const then = new Date(element.dateTime);
    const local = then.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    const text = element.dataset.show === "ago" ? ago(then, now) : element.dataset.show === "clock" ? then.toLocaleTimeString() : local;
    if (element.textContent !== text) element.textContent = text;
    element.title = local;
  }
}

const keys = new Map();

/** Registers a shortcut; the pages add their own. */
export function onKey(key, action) {
  keys.set(key, action);
}

function typing(target) {
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName));
}

/** What only works with scripts is hidden until they run. */
export function reveal() {
  for (const element of document.querySelectorAll("[data-needs-script][hidden]")) element.hidden = false;
}

function start() {
  reveal();
  document.getElementById("theme")?.addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("leakline:theme")));
  const help = document.getElementById("keys");
  const showHelp = () => help.showModal();
  document.getElementById("show-keys")?.addEventListener("click", showHelp);
  onKey("d", switchTheme);
  onKey("?", showHelp);
  onKey("/", () => document.querySelector("input[type=search]")?.focus());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    const action = keys.get(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  });
  showTimes();
  setInterval(showTimes, 5000);
}

start();
