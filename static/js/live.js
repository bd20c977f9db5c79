// What is new of a run: by one stream, or by looking now and then where other windows hold the streams (stream_slots.js).
// Both are given up while nobody looks, and go on after where they ended.

import { BEAT_MS, Slots } from "./stream_slots.js";

const RETRY_MS = 2_000;

// Reading the name alone throws where the browser keeps nothing for a page.
function storage() {
  try {
    return localStorage;
  } catch {
    return { getItem: () => null, setItem() {} };
  }
}

export class LiveStream {
  /**
   * @param address  of the stream
   * @param summary  where the run itself is read, {revision, state, ..}
   * @param handlers {event name: function(data)} and `state`: function("live" | "disconnected" | "closed", by a stream)
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
      // The browser tries again by itself, except after an answer that was no stream (a server on its way up).
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

  /** Whose session is over is shown where to sign in. */
  async #leaveIfSignedOut() {
    const answer = await fetch(this.summary).catch(() => null);
    if (answer?.status === 401) location.reload();
  }

  #closeSource() {
    this.source?.close();
    this.source = null;
  }

  /** As the stream would tell it: the run, where it has news. */
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
