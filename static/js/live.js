// Live updates of a run: by a stream, or by polling if other windows use all streams (stream_slots.js). Both stop while
// the page is hidden, and continue from where they stopped.

import { BEAT_MS, Slots } from "./stream_slots.js";

const RETRY_MS = 2_000;

// If the browser blocks storage, even reading the property throws.
function storage() {
  try {
    return localStorage;
  } catch {
    return { getItem: () => null, setItem() {} };
  }
}

export class LiveStream {
  /**
   * @param address  URL of the stream
   * @param summary  URL of the run itself, {revision, state, ..}
   * @param handlers {event name: function(data)} and `state`: function("live" | "disconnected" | "closed", whether by a stream)
   */
  constructor(address, summary, handlers) {
    this.address = address;
    this.summary = summary;
    this.handlers = handlers;
    this.slots = new Slots(storage(), `${Date.now()}-${Math.random()}`);
    this.source = null;
    this.lastId = new URL(address, location.href).searchParams.get("since");
    this.ended = false;
    this.beat = null;
    this.looking = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.open());
  }

  open() {
    if (this.beat !== null || this.ended || document.hidden) return;
    this.beat = setInterval(() => this.#turn(), BEAT_MS);
    this.#turn();
  }

  close() {
    clearInterval(this.beat);
    this.beat = null;
    this.slots.release();
    this.#closeSource();
    if (!this.ended) this.handlers.state("closed", false);
  }

  end() {
    this.ended = true;
    this.close();
  }

  #turn() {
    if (this.slots.hold()) this.#stream();
    else {
      this.#closeSource();
      this.#look();
    }
  }

  #stream() {
    if (this.source || this.beat === null) return;
    const address = new URL(this.address, location.href);
    if (this.lastId !== null) address.searchParams.set("since", this.lastId);
    const source = new EventSource(address);
    this.source = source;
    source.onopen = () => this.handlers.state("live", true);
    source.onerror = () => {
      this.handlers.state("disconnected", true);
      // The browser reconnects automatically, except after a response that is not a stream (a server that is starting).
      if (source.readyState === EventSource.CLOSED) this.#retry();
    };
    for (const [name, handle] of Object.entries(this.handlers)) {
      if (name === "state") continue;
      source.addEventListener(name, (event) => {
        if (event.lastEventId) this.lastId = event.lastEventId;
        handle(event.data ? JSON.parse(event.data) : null);
      });
    }
  }

  #retry() {
    this.#closeSource();
    setTimeout(() => this.#stream(), RETRY_MS);
    this.#leaveIfSignedOut();
  }

  /** Reloads the page, which leads to the sign-in page, if the session has ended. */
  async #leaveIfSignedOut() {
    const answer = await fetch(this.summary).catch(() => null);
    if (answer?.status === 401) location.reload();
  }

  #closeSource() {
    this.source?.close();
    this.source = null;
  }

  /** Polls the run, and calls the same handlers as the stream if it has changed. */
  async #look() {
    if (this.looking) return;
    this.looking = true;
    try {
      const answer = await fetch(this.summary);
      const run = answer.ok ? await answer.json() : null;
      if (this.beat === null) return;
      this.handlers.state(run ? "live" : "disconnected", false);
      if (!run) return;
      if (String(run.revision) !== this.lastId) this.handlers.run(run);
      this.lastId = String(run.revision);
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      if (this.beat !== null) this.handlers.state("disconnected", false);
    } finally {
      this.looking = false;
    }
  }
}
