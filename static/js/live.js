// The one stream of a page. Six open streams block every further request of a browser to the server, so it is
// closed while nobody looks and reopened where it ended.

export class LiveStream {
  /** @param handlers {event name: function(data)} and `state`: function("live" | "disconnected" | "closed") */
  constructor(address, handlers) {
    this.address = address;
    this.handlers = handlers;
    this.source = null;
    this.lastId = null;
    this.ended = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.open());
  }

  open() {
    if (this.source || this.ended || document.hidden) return;
    const address = new URL(this.address, location.href);
    if (this.lastId !== null) address.searchParams.set("since", this.lastId);
    const source = new EventSource(address);
    this.source = source;
    source.onopen = () => this.handlers.state("live");
    source.onerror = () => {
      this.handlers.state("disconnected");
      // The browser tries again by itself, except after an answer that was no stream (a server on its way up).
      if (source.readyState === EventSource.CLOSED) this.retry();
    };
    for (const [name, handle] of Object.entries(this.handlers)) {
      if (name === "state") continue;
      source.addEventListener(name, (event) => {
        if (event.lastEventId) this.lastId = event.lastEventId;
        handle(event.data ? JSON.parse(event.data) : null);
      });
    }
  }

  retry() {
    this.source?.close();
    this.source = null;
    setTimeout(() => this.open(), 2000);
  }

  close() {
    this.source?.close();
    this.source = null;
    if (!this.ended) this.handlers.state("closed");
  }

  end() {
    this.ended = true;
    this.close();
  }
}
