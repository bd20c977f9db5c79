// Decides which of the open windows of a browser may use a stream. HTTP/1.1 allows a browser six connections per
// server: with six streams no other page would load. So a few windows use a stream and the others poll. Pure: the
// storage is a parameter.

const NAME = "leakline.streams";
export const MOST_STREAMS = 4;
export const BEAT_MS = 5_000;
// After this time a window counts as crashed; hidden windows release their slot.
const GONE_MS = 3 * BEAT_MS;

export class Slots {
  constructor(storage, id, now = () => Date.now()) {
    this.storage = storage;
    this.id = id;
    this.now = now;
    this.since = null;
  }

  /** Claims or keeps a slot; returns false if older windows have all slots. Called at each beat. */
  hold() {
    const at = this.now();
    this.since ??= at;
    const places = this.#places(at);
    places[this.id] = [this.since, at];
    this.#write(places);
    const order = Object.entries(places).sort(([a, [x]], [b, [y]]) => x - y || (a < b ? -1 : 1));
    return order.findIndex(([id]) => id === this.id) < MOST_STREAMS;
  }

  release() {
    if (this.since === null) return;
    this.since = null;
    const places = this.#places(this.now());
    delete places[this.id];
    this.#write(places);
  }

  /** Returns window -> [since, last beat]. If two windows write simultaneously, one entry is lost until its next beat. */
  #places(at) {
    let kept = {};
    try {
      kept = JSON.parse(this.storage.getItem(NAME) ?? "{}");
    } catch {
      // Storage is blocked or contains something else: assume that this is the only window.
    }
    const alive = (place) => Array.isArray(place) && place.every(Number.isFinite) && Math.abs(at - place[1]) < GONE_MS;
    return Object.fromEntries(Object.entries(kept ?? {}).filter(([, place]) => alive(place)));
  }

  #write(places) {
    try {
      this.storage.setItem(NAME, JSON.stringify(places));
    } catch {
      // Storage is blocked: assume again that this is the only window.
    }
  }
}
