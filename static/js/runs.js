// The list of runs: pick two and compare; the list follows what happens while somebody looks.

import { showTimes } from "./page.js";
import { takeParts } from "./parts.js";

const form = document.getElementById("compare");
const button = document.getElementById("compare-button");
const hint = document.getElementById("compare-hint");
const REFRESH_MS = 4000;

// In the order they were picked: the first is "before".
let picked = [];

function boxes() {
  return [...document.querySelectorAll("input[name=pick]")];
}

function show() {
  for (const box of boxes()) {
    box.checked = picked.includes(box.value);
    box.disabled = picked.length === 2 && !box.checked;
  }
  button.disabled = picked.length !== 2;
  const names = picked.map((id) => boxes().find((box) => box.value === id)?.dataset.name ?? id);
  hint.textContent = ["Pick two runs to compare", `Before: ${names[0]}. Pick the one after`, `${names[0]} → ${names[1]}`][picked.length];
}

document.addEventListener("change", (event) => {
  if (event.target.name !== "pick") return;
  const { value, checked } = event.target;
  picked = checked ? [...picked, value].slice(0, 2) : picked.filter((id) => id !== value);
  show();
});

form?.addEventListener("submit", (event) => {
  event.preventDefault();
  location.href = `${form.action}?${new URLSearchParams({ before: picked[0], after: picked[1] })}`;
});

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    takeParts(await answer.text());
    if (form) show();
    showTimes();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the server is away; the next turn tries again
  }
}

if (form) show();
setInterval(refresh, REFRESH_MS);
