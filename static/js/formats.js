// Formats numbers for people. The counterpart of server/leakline_server/web/rendering/number_formats.py: both are
// tested against tests/data/formats.json. Does not access the page.

const BINARY = { base: 1024, names: ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] };
const DECIMAL = { base: 1000, names: ["B", "kB", "MB", "GB", "TB", "PB"] };
// A size as the server formats it: a number and its unit.
const WRITTEN = /(\d[\d,]*(?:\.\d+)?)([ \u00a0])([KMGTP]iB)\b/g;
let units = BINARY;
export const NOT_MEASURED = "not measured";
const MINUS = "\u2212";

/** Formats sizes in decimal or binary units from now on. */
export function useDecimal(wanted) {
  units = wanted ? DECIMAL : BINARY;
}

/** Converts the sizes in a text of the server to the viewer's units. */
export function inUnits(text) {
  if (units === BINARY) return text;
  return text.replace(WRITTEN, (_, number, space, name) => {
    const size = Number(number.replaceAll(",", "")) * BINARY.base ** BINARY.names.indexOf(name);
    return bytes(size).replace(" ", space);
  });
}

/** Returns {factor, name} of the most readable unit for sizes up to `largest`. */
export function byteUnit(largest) {
  const { base, names } = units;
  let step = 0;
  let size = Math.abs(largest);
  // 1023.995 would be printed as 1024.00 of the smaller unit.
  while (step < names.length - 1 && size >= base - (step === 0 ? 0.5 : 0.005)) {
    size /= base;
    step += 1;
  }
  return { factor: base ** step, name: names[step] };
}

const fixed = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function bytes(value) {
  if (value === null || value === undefined) return NOT_MEASURED;
  const unit = byteUnit(value);
  const text = fixed(Math.abs(value) / unit.factor, unit.factor === 1 ? 0 : 2);
  return `${value < 0 && /[1-9]/.test(text) ? MINUS : ""}${text} ${unit.name}`;
}

export function count(value) {
  if (value === null || value === undefined) return NOT_MEASURED;
  return fixed(Math.abs(value), Number.isInteger(value) ? 0 : 2).replace(/^/, value < 0 ? MINUS : "");
}

export function seconds(value) {
  if (value === null || value === undefined) return NOT_MEASURED;
  if (value < 0.0995) return `${fixed(value * 1000, 1)} ms`;
  if (value < 60) return `${fixed(value, 2)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  const hours = Math.round(value / 3600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Formats an age in a single unit. */
export function ago(then, now) {
  const age = (now - then) / 1000;
  if (age < 5) return "now";
  if (age < 60) return `${Math.floor(age)} s ago`;
  if (age < 3600) return `${Math.floor(age / 60)} min ago`;
  if (age < 86400) return `${Math.floor(age / 3600)} h ago`;
  return `${Math.floor(age / 86400)} d ago`;
}
