// Who among the open windows of a browser may hold a stream. HTTP/1.1 gives a browser six connections to a server: six
// streams, and no further page loads. So few hold one and the others look now and then. Pure: the storage comes in.

const NAME = "leakline.streams";
export const MOST_STREAMS = 4;
export const BEAT_MS = 5_000;
// A window that ended without a word; a hidden one gives its place back.
const GONE_MS = 3 * BEAT_MS;

export class Slots {
  constructor(storage, id, now = () => Date.now()) {
    this.storage = storage;
    this.id = id;
    this.now = now;
    this.since = null;
  }

  /** Claims or keeps a place; false while as many windows that came before have theirs. Asked at each beat. */
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

  /** Window -> [since, last beat]. Two that write at once lose one entry until its next beat. */
  #places(at) {
    let kept = {};
    try {
      kept = JSON.parse(this.storage.getItem(NAME) ?? "{}");
    } catch {
      // Storage that may not be used, or what somebody else wrote there: as if alone.
    }
    const alive = (place) => Array.isArray(place) && place.every(Number.isFinite) && Math.abs(at - place[1]) < GONE_MS;
    return Object.fromEntries(Object.entries(kept ?? {}).filter(([, place]) => alive(place)));
  }

  #write(places) {
    try {
      this.storage.setItem(NAME, JSON.stringify(places));
    } catch {
      // As above.
    }
  }
}
