// Buttons that request a heap scan or a cleanup from the training process: `data-ask` is the kind, `data-type` the
// class. The outcome arrives as an event. Status text is shown next to the button and announced to screen readers; it
// is restored when the button's part is replaced.

const DRAWN_ANEW = '[data-part="state"], [data-part="tools"], [data-part="findings"]';

const keyOf = (button) => `${button.dataset.ask} ${button.dataset.type ?? ""}`;

export function listenForAsking(page) {
  const asking = new Asking(page);
  page.addEventListener("click", (event) => {
    const button = event.target.closest("[data-ask]");
    if (button) asking.ask(button);
  });
}

class Asking {
  constructor(page) {
    this.page = page;
    this.words = new Map(); // key of a button -> its last status text
    this.waiting = new Map(); // key of a button -> id of its request
    // A live region must exist before its text changes, or screen readers do not announce it.
    this.voice = document.createElement("p");
    this.voice.className = "visually-hidden";
    this.voice.setAttribute("aria-live", "polite");
    page.append(this.voice);
    this.focused = null;
    document.addEventListener("pointerdown", () => { this.focused = null; });
    document.addEventListener("focusin", (event) => { this.focused = event.target.closest("[data-ask]"); });
    const observer = new MutationObserver(() => this.drawnAnew());
    for (const part of page.querySelectorAll(DRAWN_ANEW)) observer.observe(part, { childList: true });
  }

  async ask(button) {
    const key = keyOf(button);
    const { ask: kind, type } = button.dataset;
    this.waiting.delete(key);
    this.say(key, "Sending the request.");
    try {
      const answer = await fetch(this.page.dataset.requests, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify(type ? { kind, type } : { kind }),
      });
      const body = await answer.json().catch(() => null); // a proxy in front of the server may respond with HTML
      if (answer.ok && body) {
        this.waiting.set(key, body.id);
        this.say(key, "Waiting for the training process to answer at its next phase end.");
      } else this.say(key, `Not requested: ${body?.error?.message ?? `the server answered ${answer.status}`}.`);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      this.say(key, "Not requested: the server is not responding.");
    }
  }

  drawnAnew() {
    const buttons = this.buttons();
    if (this.focused && !this.focused.isConnected && document.activeElement === document.body)
      buttons.find((button) => keyOf(button) === keyOf(this.focused))?.focus({ preventScroll: true });
    buttons.forEach((button) => this.show(button));
    if (this.waiting.size) this.look();
  }

  /** Checks whether the training process has reported the outcome of the waiting requests. */
  async look() {
    try {
      const answer = await fetch(new URL("events", new URL(this.page.dataset.requests, location.href)));
      if (!answer.ok) return;
      const outcomes = new Map((await answer.json()).items.map(({ data }) => [data.request, data.outcome]));
      for (const [key, id] of this.waiting) {
        if (!outcomes.has(id)) continue;
        this.waiting.delete(key);
        this.say(key, `The training process answered: ${outcomes.get(id)}.`);
      }
    } catch (error) {
      if (!(error instanceof TypeError)) throw error; // the server is unreachable; the next change to the page triggers another check
    }
  }

  say(key, words) {
    this.words.set(key, words);
    this.voice.textContent = words;
    for (const button of this.buttons()) if (keyOf(button) === key) this.show(button);
  }

  show(button) {
    const key = keyOf(button);
    const words = this.words.get(key);
    if (!words) return;
    const group = button.parentElement;
    let line = [...group.querySelectorAll("[data-asked]")].find((each) => each.dataset.asked === key);
    if (!line) {
      line = document.createElement("span");
      line.className = "small quiet";
      line.dataset.asked = key;
      // In the header, the buttons are right-aligned, so text before them does not move them.
      if (button.matches(".tools > *")) group.prepend(line);
      else button.after(" ", line);
    }
    const alone = group.querySelectorAll("[data-ask]").length === 1;
    line.textContent = alone ? words : `${button.textContent}: ${words}`;
  }

  buttons() {
    return [...this.page.querySelectorAll("[data-ask]")];
  }
}
