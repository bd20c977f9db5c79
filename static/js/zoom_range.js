// A stretch of the axis and the lines that the server has read for it alone. Pure, but for `fetch`.

/** Whether all of `inner` lies in `outer`; nothing covers the whole. */
export const covers = (outer, inner) => Boolean(outer && inner) && outer[0] <= inner[0] && inner[1] <= outer[1];

/** The chart with other points. Each line keeps its look; one that has none in the stretch is empty there. */
export function withLines(chart, part) {
  const key = (line) => JSON.stringify([line.group, line.name]);
  const read = new Map(part.map((line) => [key(line), line]));
  const nothing = { x: [], y: [], low: null, high: null };
  const lines = chart.lines.map((line) => {
    const { x, y, low, high } = read.get(key(line)) ?? nothing;
    return { ...line, x, y, low, high };
  });
  return { ...chart, lines };
}

/** {chart: lines} on an axis of which one is worth so many times more. */
export function stretched(lines, times) {
  if (times === 1) return lines;
  const wider = (line) => ({ ...line, x: line.x.map((x) => x * times) });
  return Object.fromEntries(Object.entries(lines).map(([id, of]) => [id, of.map(wider)]));
}

/** Reads the lines of a stretch. A newer wish ends an older one, so that no old answer comes after it. */
export class StretchReader {
  /** @param addressOf [first, last] -> address; @param take called with the stretch, {chart: lines}, and what one x is worth */
  constructor(addressOf, take, get = (address, options) => fetch(address, options)) {
    this.addressOf = addressOf;
    this.take = take;
    this.get = get;
    this.running = null;
  }

  /** Nothing more is read after null. */
  async want(range) {
    this.running?.abort();
    this.running = range ? new AbortController() : null;
    if (!range) return;
    const { signal } = this.running;
    try {
      const answer = await this.get(this.addressOf(range), { signal });
      if (!answer.ok) return;
      const { lines, x_seconds: seconds } = await answer.json();
      if (!signal.aborted) this.take(range, lines, seconds);
    } catch (error) {
      // The server is away, or nobody waits for it any more: the points of the whole stay.
      if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
    }
  }
}
