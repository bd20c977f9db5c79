// `data-copy`: a button that copies the text of a URL on the server, or of an element (`#id`), to the clipboard. Where
// the browser does not allow it (plain HTTP, missing permission), a dialog shows the text, already selected. Also
// closes open menus.

const SHOWN_MS = 3000;

// A live region must exist before its text changes, or screen readers do not announce it.
const voice = document.createElement("p");
voice.className = "visually-hidden";
voice.setAttribute("aria-live", "polite");
document.body.append(voice);

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  for (const menu of openMenus()) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of openMenus()) {
    menu.open = false;
    menu.querySelector("summary").focus();
  }
});

const openMenus = () => document.querySelectorAll("details.menu[open]");

async function copy(button) {
  const asked = read(button.dataset.copy);
  // Started before the text is loaded, because some browsers allow copying only directly in the click handler.
  const copied = intoClipboard(asked).then(() => true, () => false);
  try {
    const text = await asked;
    if (await copied) say(button, "Copied");
    else showBox(text, button.textContent);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // fetch throws this without a connection
    say(button, "Not copied: the server is not responding");
  }
}

async function read(address) {
  if (address.startsWith("#")) return document.querySelector(address).textContent;
  const answer = await fetch(address);
  if (!answer.ok) throw new TypeError(`the server answered ${answer.status}`);
  return answer.text();
}

async function intoClipboard(asked) {
  if (!window.ClipboardItem) return navigator.clipboard.writeText(await asked);
  const blob = asked.then((text) => new Blob([text], { type: "text/plain" }));
  return navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]);
}

function say(button, words) {
  const label = button.textContent;
  button.textContent = words;
  voice.textContent = words;
  setTimeout(() => {
    button.textContent = label;
    voice.textContent = "";
  }, SHOWN_MS);
}

function showBox(text, label) {
  const box = document.createElement("dialog");
  const title = document.createElement("h2");
  const why = document.createElement("p");
  const area = document.createElement("textarea");
  const form = document.createElement("form");
  const close = document.createElement("button");
  title.id = "copy-title";
  title.textContent = label;
  why.className = "small quiet";
  why.textContent = "The browser does not allow this page to copy. The text is selected: press Ctrl+C, or Cmd+C on a Mac.";
  area.readOnly = true;
  area.rows = 12;
  area.value = text;
  area.setAttribute("aria-labelledby", title.id);
  form.method = "dialog";
  close.className = "primary";
  close.textContent = "Close";
  form.append(close);
  box.className = "copying";
  box.setAttribute("aria-labelledby", title.id);
  box.append(title, why, area, form);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  area.focus();
  area.select();
  area.scrollTop = 0;
}
