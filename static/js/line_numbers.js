// The last, lowest and highest value and the change of each line over what is shown of the axis, in words. Pure.

import { bytes, count, seconds } from "./formats.js";

const MINUS = "\u2212";
const number = (value) => `${value < 0 ? MINUS : ""}${Math.abs(value).toLocaleString("en-US", { maximumSignificantDigits: 6 })}`;
const share = (value) => `${value < 0 ? MINUS : ""}${(100 * Math.abs(value)).toFixed(1)} %`;
const WRITE = { bytes, seconds: (value) => (value < 0 ? `${MINUS}${seconds(-value)}` : seconds(value)), count, share, number };

export const HEADS = ["last", "min", "max", "change"];

/** [{name, cells}] of the lines, in their order; one without a reading there has none and no row. */
export function lineNumbers(unit, lines, range) {
  const write = WRITE[unit];
  return lines.map((line) => ({ name: line.name, found: summary(line, range) })).filter(({ found }) => found).map(({ name, found }) => {
    const grown = found.last - found.first;
    return { name, cells: [write(found.last), write(found.min), write(found.max), `${grown > 0 ? "+" : ""}${write(grown)}`] };
  });
}

/** Extremes are those of every snapshot that a point stands for. */
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
