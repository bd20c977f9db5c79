// A range of the axis, and the lines that the server returns for it. Pure except for `fetch`.

/** Returns whether `outer` contains all of `inner`; false if either is null. */
export const covers = (outer, inner) => Boolean(outer && inner) && outer[0] <= inner[0] && inner[1] <= outer[1];

/** Returns the chart with the points of `part`. Each line keeps its style; a line without points in `part` is empty. */
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

/** Returns the range of the last `number` units of the axis, up to the last reading. */
export function lastStretch(charts, number) {
  const ends = charts.flatMap((chart) => chart.lines).filter(({ x }) => x.length).map(({ x }) => x[x.length - 1]);
  if (!ends.length) return null;
  const end = Math.max(...ends);
  const inGenerations = charts[0].x_unit === "generation";
  return inGenerations ? [end - number - 0.5, end + 0.5] : [end - number, end + 0.02 * number];
}

/** Returns the chart with the points in the range, and one point on each side so that lines reach the edge. */
export function within(chart, [first, last]) {
  const lines = chart.lines.map((line) => {
    const from = line.x.findIndex((x) => x >= first);
    const to = line.x.findLastIndex((x) => x <= last);
    const cut = (values) => values?.slice(from < 0 ? line.x.length : Math.max(0, from - 1), to + 2) ?? null;
    return { ...line, x: cut(line.x), y: cut(line.y), low: cut(line.low), high: cut(line.high) };
  });
  return { ...chart, lines };
}

/** Returns the chart with the points of a range, followed by newer points. */
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

/** Scales the x of {chart: lines} by a factor. */
export function stretched(lines, times) {
  if (times === 1) return lines;
  const wider = (line) => ({ ...line, x: line.x.map((x) => x * times) });
  return Object.fromEntries(Object.entries(lines).map(([id, of]) => [id, of.map(wider)]));
}

/** Loads the lines of a range. A new request aborts the previous one, so that no outdated response arrives later. */
export class StretchReader {
  /** @param addressOf [first, last] -> URL; @param take called with the range, {chart: lines}, and the seconds per unit of x */
  constructor(addressOf, take, get = (address, options) => fetch(address, options)) {
    this.addressOf = addressOf;
    this.take = take;
    this.get = get;
    this.running = null;
  }

  /** Loads a range; null only aborts the current request. */
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
      // The server is unreachable or the request was aborted; the points of the entire run stay.
      if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
    }
  }
}
