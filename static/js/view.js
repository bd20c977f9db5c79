// The view that the viewer has selected, as URL parameters: a copied link shows the same view. Pure.
//
//   x=12..40                     the range of the axis, in generations
//   x=720s..2400s                a range in seconds: a time axis may show minutes now and hours later
//   group=trend:rss              the selected group of lines of a chart, unless it is the first
//   last=50                      the last 50 units of the axis, which move with its end
//   log=trend                    a chart with a logarithmic y-axis
//   hide=trend:after%20train     lines hidden, or with `show` enabled, in the legend

const MOST_LINES = 40;
const MOST_LAST = 1_000_000;
const DIGITS = 9;

/**
 * Returns {range: [first, last] or null, groups: Map, lines: Map of chart -> Map of line -> shown, last: number or null, log: Set of charts}
 * @param axis {unit: "generation" or "time", seconds: seconds per unit of x if x is time}
 */
export function readView(search, axis) {
  const parameters = new URLSearchParams(search);
  const view = { range: readRange(parameters.get("x") ?? "", axis), groups: new Map(), lines: new Map(), last: readLast(parameters.get("last")), log: new Set(parameters.getAll("log").slice(0, MOST_LINES)) };
  for (const [id, group] of pairs(parameters, "group")) view.groups.set(id, group);
  for (const name of ["hide", "show"]) {
    for (const [id, line] of pairs(parameters, name)) {
      if (!view.lines.has(id)) view.lines.set(id, new Map());
      view.lines.get(id).set(line, name === "show");
    }
  }
  return view;
}

function readLast(text) {
  const number = Number(text);
  return Number.isInteger(number) && number > 0 && number <= MOST_LAST ? number : null;
}

function readRange(text, axis) {
  const ends = text.split("..");
  const inSeconds = ends.every((each) => each.endsWith("s"));
  if (inSeconds && axis.unit !== "time") return null;
  const read = (each) => (inSeconds ? Number(each.slice(0, -1) || NaN) / axis.seconds : Number(each));
  const range = ends.map((each) => (each.trim() ? read(each) : NaN));
  return range.length === 2 && range.every(Number.isFinite) && range[0] < range[1] ? range : null;
}

function pairs(parameters, name) {
  const found = parameters.getAll(name).slice(0, MOST_LINES).map((each) => [each.slice(0, each.indexOf(":")), each.slice(each.indexOf(":") + 1)]);
  return found.filter(([id, rest]) => id && rest);
}

/** Returns the URL with the view; other parameters stay. */
export function writeView(address, { range, groups, lines, axis, last = null, log = [] }) {
  const written = new URL(address);
  for (const name of ["x", "group", "last", "log", "hide", "show"]) written.searchParams.delete(name);
  if (range) written.searchParams.set("x", rangeText(range, axis));
  for (const [id, group] of groups) written.searchParams.append("group", `${id}:${group}`);
  if (last) written.searchParams.set("last", String(last));
  for (const id of log) written.searchParams.append("log", id);
  const chosen = [...lines].flatMap(([id, of]) => [...of].map(([line, shown]) => [shown ? "show" : "hide", `${id}:${line}`]));
  for (const [name, text] of chosen.slice(0, MOST_LINES)) written.searchParams.append(name, text);
  return written;
}

export function rangeText(range, axis) {
  const [scale, unit] = axis.unit === "time" ? [axis.seconds, "s"] : [1, ""];
  return range.map((each) => `${Number((each * scale).toPrecision(DIGITS))}${unit}`).join("..");
}
