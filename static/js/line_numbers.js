// Formats the last, lowest and highest value and the change of each line over the visible range. Pure.

import { bytes, count, seconds } from "./formats.js";

const MINUS = "\u2212";
const number = (value) => `${value < 0 ? MINUS : ""}${Math.abs(value).toLocaleString("en-US", { maximumSignificantDigits: 6 })}`;
const share = (value) => `${value < 0 ? MINUS : ""}${(100 * Math.abs(value)).toFixed(1)} %`;
const WRITE = { bytes, seconds: (value) => (value < 0 ? `${MINUS}${seconds(-value)}` : seconds(value)), count, share, number };

export const HEADS = ["last", "min", "max", "change"];

/** Returns [{name, cells}] in the order of the lines; a line without readings in the range has no row. */
export function lineNumbers(unit, lines, range) {
  const write = WRITE[unit];
  return lines.map((line) => ({ name: line.name, found: summary(line, range) })).filter(({ found }) => found).map(({ name, found }) => {
    const grown = found.last - found.first;
    return { name, cells: [write(found.last), write(found.min), write(found.max), `${grown > 0 ? "+" : ""}${write(grown)}`] };
  });
}

/** Returns first, last, min and max; extremes cover every snapshot behind a downsampled point. */
function summary({ x, y, low, high }, [first, last]) {
  let found = null;
  for (let i = 0; i < x.length; i += 1) {
    if (y[i] === null || y[i] === undefined || x[i] < first || x[i] > last) continue;
    found ??= { first: y[i], min: Infinity, max: -Infinity };
    found.last = y[i];
    found.min = Math.min(found.min, low?.[i] ?? y[i]);
    found.max = Math.max(found.max, high?.[i] ?? y[i]);
  }
  return found;
}
