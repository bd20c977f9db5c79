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

/** The stretch with the last so many of the axis, as far as there are readings. */
export function lastStretch(charts, number) {
  const ends = charts.flatMap((chart) => chart.lines).filter(({ x }) => x.length).map(({ x }) => x[x.length - 1]);
  if (!ends.length) return null;
  const end = Math.max(...ends);
  const inGenerations = charts[0].x_unit === "generation";
  return inGenerations ? [end - number - 0.5, end + 0.5] : [end - number, end + 0.02 * number];
}

/** The chart with what lies in the stretch, and one point on either side of it, so that lines go on to the edge. */
export function within(chart, [first, last]) {
  const lines = chart.lines.map((line) => {
    const from = line.x.findIndex((x) => x >= first);
    const to = line.x.findLastIndex((x) => x <= last);
    const cut = (values) => values?.slice(from < 0 ? line.x.length : Math.max(0, from - 1), to + 2) ?? null;
    return { ...line, x: cut(line.x), y: cut(line.y), low: cut(line.low), high: cut(line.high) };
  });
  return { ...chart, lines };
}

/** The chart with the points of a stretch, and what has come after them. */
export function followed(chart, part) {
  const drawn = withLines(chart, part);
  const lines = drawn.lines.map((line, i) => {
    const whole = chart.lines[i];
    const end = line.x.length ? line.x[line.x.length - 1] : -Infinity;
    const at = whole.x.findLastIndex((x) => x <= end) + 1;
    const more = (name) => line[name] && [...line[name], ...(whole[name] ?? whole.y).slice(at)];
    return at < whole.x.length ? { ...line, x: more("x"), y: more("y"), low: more("low"), high: more("high") } : line;
  });
  return { ...drawn, lines };
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
