// Converts the server's description of a chart (chart_builder.py) to data and layout for plotly. Pure: theme, colours
// and view are parameters, and nothing is read from the page.

import { byteUnit, bytes, inUnits } from "./formats.js";
import { MARK_AXIS, markLines, markTraces } from "./marks.js";
import { escapeHtml, faded, resolve } from "./paint.js";

/**
 * @param whole  the output of chart_builder.py: lines, bands, levels, cone, marks
 * @param theme  static/plotly-theme.json
 * @param colour function from the name of a CSS variable to its colour
 * @param view   {range: [first, last], zoomed: whether the range is less than everything, group: string | null,
 *               narrow: boolean, coarse: whether the pointer is a finger, log: boolean,
 *               lines: Map of line name -> whether the viewer wants it shown, or undefined}
 */
export function figure(whole, theme, colour, view) {
  // Each group of lines has its own forecast.
  const cone = view.group in (whole.cones ?? {}) ? whole.cones[view.group] : whole.cone;
  const chart = { ...whole, cone: view.zoomed ? cutCone(cone, view.range[1]) : cone };
  const lines = shownLines(chart, view);
  const levels = nearLevels(chart, lines, view);
  const ahead = inView(chart.cone, view) ? chart.cone.estimate : [];
  const scale = scaleOf(chart, lines, [...ahead, ...levels.map((level) => level.value)]);
  const finest = FINEST * extent(chart, lines);
  const data = [
    ...lines.flatMap((line) => traces(chart, line, scale, theme, colour, finest)),
    ...(inView(chart.cone, view) ? coneTraces(chart, scale, colour) : []),
    ...markTraces(chart.marks, colour),
  ];
  const far = chart.levels.filter((level) => !levels.includes(level));
  return { data, layout: layout({ ...chart, levels, far }, theme, colour, view, scale) };
}

/** Returns the lines of the selected group, with the lines that the viewer has hidden or enabled. */
export function shownLines(chart, view) {
  const chosen = (line) => view.lines?.get(line.name);
  // On a phone the legend would take too much space; lines that are hidden by default are in the table.
  const shown = (line) => (!line.group || line.group === view.group) && !(view.narrow && line.hidden && chosen(line) === undefined);
  return chart.lines.filter(shown).map((line) => ({ ...line, hidden: chosen(line) === undefined ? line.hidden : !chosen(line) }));
}

// Share of the axis height below which extremes are not drawn: less than half a pixel, and each trace costs as much as
// the line itself.
const FINEST = 1 / 600;

/** Returns the extent of the y-axis, which starts at zero or below. */
function extent(chart, lines) {
  let low = chart.y_range?.[0] ?? 0;
  let high = chart.y_range?.[1] ?? 0;
  for (const line of lines) {
    if (line.hidden) continue;
    for (const y of line.low ?? line.y) if (y < low) low = y;
    for (const y of line.high ?? line.y) if (y > high) high = y;
  }
  return high - low;
}

// With more markers, a line looks like a chain.
const MOST_MARKERS = 30;

const reaches = ({ low, high }, least) => high.some((y, i) => y - low[i] > least);

/** Returns the levels to draw. A limit far above the lines would flatten them, so only its label is shown. */
function nearLevels(chart, lines, view) {
  const foretold = inView(chart.cone, view) ? chart.cone.high : [];
  const top = Math.max(topOf(lines.filter((line) => !line.hidden), view.range), ...foretold);
  const near = (level) => (view.zoomed ? level.value <= 1.25 * top : !level.limit || 0.6 * level.value <= top);
  return chart.levels.filter(near);
}

/** Returns the highest value in a range. Areas are stacked, with interpolated values between readings. */
function topOf(lines, [first, last]) {
  const inside = (x) => x >= first && x <= last;
  const alone = lines.filter((line) => line.draw !== "area").flatMap((line) => (line.high ?? line.y).filter((_, i) => inside(line.x[i])));
  const readings = lines.flatMap((line, place) => (line.draw === "area" ? line.x.map((x, i) => [x, place, line.y[i] ?? 0]) : []));
  const now = new Map();
  let sum = 0;
  let top = alone.reduce((most, y) => Math.max(most, y ?? 0), 0);
  readings.sort((a, b) => a[0] - b[0]).forEach(([x, place, y], i) => {
    sum += y - (now.get(place) ?? 0);
    now.set(place, y);
    if (inside(x) && readings[i + 1]?.[0] !== x) top = Math.max(top, sum);
  });
  return top;
}

/** Returns a divisor by a binary unit, so that ticks and hover use GiB; other units stay unchanged. `more`: other drawn values. */
export function scaleOf(chart, lines, more = []) {
  if (chart.unit === "share") return { factor: 0.01, suffix: " %", format: ".1f" };
  if (chart.unit === "seconds") return { factor: 1, suffix: " s", format: ".2f" };
  if (chart.unit !== "bytes") return { factor: 1, suffix: "", format: ",.6~g" };
  const shown = lines.filter((line) => !line.hidden);
  const values = [...(chart.y_range ?? []), ...shown.flatMap((line) => line.y), ...more].filter((y) => y !== null);
  const unit = byteUnit(values.reduce((most, y) => Math.max(most, Math.abs(y)), 0));
  return { factor: unit.factor, suffix: ` ${unit.name}`, format: unit.factor === 1 ? ",.0f" : ",.2f" };
}

/** Returns the first and last x of all charts on the axis, with a margin. */
export function fullRange(charts) {
  let first = Infinity;
  let last = -Infinity;
  for (const chart of charts) {
    for (const { x } of [...chart.lines, ...(chart.cone ? [chart.cone] : [])]) {
      if (!x.length) continue;
      first = Math.min(first, x[0]);
      last = Math.max(last, x[x.length - 1]);
    }
  }
  if (first > last) return [-0.5, 1.5];
  const air = Math.max(0.6, (last - first) * 0.015);
  return [first - air, last + air];
}

/** Cuts the forecast at the end of the range, so that the rest does not determine the height. */
function cutCone(cone, last) {
  if (!cone || cone.x[cone.x.length - 1] <= last || cone.x[0] >= last) return cone;
  const next = cone.x.findIndex((x) => x > last);
  const part = (last - cone.x[next - 1]) / (cone.x[next] - cone.x[next - 1]);
  const cut = (values) => [...values.slice(0, next), values[next - 1] + part * (values[next] - values[next - 1])];
  return { ...cone, x: cut(cone.x), low: cut(cone.low), estimate: cut(cone.estimate), high: cut(cone.high) };
}

// A forecast outside the zoom must not determine the height.
const inView = (cone, { range: [first, last] }) => Boolean(cone) && cone.x[0] < last && cone.x[cone.x.length - 1] > first;

function traces(chart, line, scale, theme, colour, finest) {
  const tone = colour(`--series-${line.colour}`);
  const divided = (values) => values.map((value) => (value === null ? null : value / scale.factor));
  const hovertemplate = `%{y:${scale.format}}${scale.suffix}<extra>${escapeHtml(line.name)}</extra>`;
  const base = { name: escapeHtml(line.name), x: line.x, y: divided(line.y), hovertemplate, meta: line.name };
  if (line.hidden) base.visible = "legendonly";
  // The longest name determines the column width of the legend, so nested names are shortened.
  if (line.draw === "bar") return [{ ...base, name: escapeHtml(nested(line.name)), type: "bar", marker: { color: tone } }];
  if (line.draw === "area") {
    return [{ ...base, type: "scatter", mode: "lines", stackgroup: "whole", stackgaps: "interpolate", line: { color: tone, width: line.named ? 2.5 : 1 }, fillcolor: faded(tone, line.named ? 0.7 : 0.55) }];
  }
  if (line.draw === "points") {
    return [{ ...base, type: "scatter", mode: "markers", marker: { color: colour("--ink"), size: 9, symbol: "line-ew-open", line: { width: 2, color: colour("--ink") } } }];
  }
  const main = {
    ...base,
    type: "scatter",
    mode: line.x.length > MOST_MARKERS ? "lines" : "lines+markers",
    connectgaps: false,
    line: { color: tone, width: line.named ? 3 : 2, dash: theme.dashes[line.dash % theme.dashes.length], simplify: true },
    marker: { color: tone, size: 6, symbol: theme.symbols[line.symbol % theme.symbols.length] },
  };
  if (!line.low || !line.high || line.hidden || !reaches(line, finest)) return [main];
  // The extremes of downsampled points form a band, so that a spike in one snapshot is visible at every zoom.
  const edge = { x: line.x, type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  return [
    { ...edge, y: divided(line.low) },
    { ...edge, y: divided(line.high), fill: "tonexty", fillcolor: faded(tone, 0.18) },
    main,
  ];
}

/** Shortens the name of a nested phase: its parent is listed before it. */
const nested = (name) => (name.includes("/") ? `…/${name.split("/").at(-1)}` : name);

function coneTraces(chart, scale, colour) {
  const tone = colour("--suspected");
  const divided = (values) => values.map((value) => value / scale.factor);
  const edge = { x: chart.cone.x, type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false };
  return [
    { ...edge, y: divided(chart.cone.low), line: { width: 0 } },
    { ...edge, y: divided(chart.cone.high), line: { width: 0 }, fill: "tonexty", fillcolor: faded(tone, 0.14) },
    { ...edge, y: divided(chart.cone.estimate), line: { width: 1.5, dash: "dot", color: tone }, name: chart.cone.label, showlegend: true },
  ];
}

function layout(chart, theme, colour, view, scale) {
  const resolved = resolve(theme.layout, colour);
  const phone = view.narrow ? theme.phone : {};
  const bands = shownBands(chart, view).map((band) => ({
    type: "rect", xref: "x", x0: band.first, x1: band.last, layer: "below",
    // A logarithmic axis has no zero.
    ...(isPlan(band) ? { yref: "y", y0: (view.log ? band.low || band.high / 1000 : band.low) / scale.factor, y1: band.high / scale.factor } : { yref: "paper", y0: 0, y1: 1 }),
    line: { width: 0 }, fillcolor: faded(colour(`--${band.tone}`), 0.13),
  }));
  const levels = chart.levels.map((level) => ({
    type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: level.value / scale.factor, y1: level.value / scale.factor,
    line: { color: colour(`--${level.tone}`), width: 1.5, dash: "dash" },
  }));
  return {
    ...resolved,
    ...(phone.margin ? { margin: phone.margin } : {}),
    uirevision: "keep",
    // If dragging zoomed on a touch screen, it could not scroll the page.
    ...(view.coarse ? { dragmode: false } : {}),
    // Hidden lines are passed with each drawing and are part of uirevision, because plotly itself remembers them by
    // position.
    legend: { ...resolved.legend, ...phone.legend, uirevision: JSON.stringify([view.group ?? null, ...(view.lines ?? [])]) },
    shapes: [...bands, ...markLines(chart.marks, colour), ...levels],
    annotations: annotations(chart, view, colour, scale),
    xaxis: {
      ...resolve(theme.xaxis, colour),
      ...(phone.nticks ? { nticks: phone.nticks } : {}),
      title: { ...resolve(theme.xaxis.title, colour), text: escapeHtml(chart.x_title) },
      range: [...view.range],
      tickformat: chart.x_unit === "generation" ? ",d" : ",~g",
      ...(view.range[1] - view.range[0] < 12 && chart.x_unit === "generation" ? { dtick: 1 } : {}),
      unifiedhovertitle: { text: `${escapeHtml(chart.x_title)} %{x}` },
    },
    yaxis: {
      ...resolve(theme.yaxis, colour),
      ...(view.log ? { type: "log", rangemode: "normal" } : linear(chart, scale)),
      title: { ...resolve(theme.yaxis.title, colour), text: view.narrow ? "" : escapeHtml(chart.y_title) },
      ticksuffix: scale.suffix === "" ? "" : scale.suffix.replace(/^ (?=%)/, "\u202f"),
      tickformat: chart.unit === "count" ? "~s" : ",~g",
    },
    ...(chart.marks.length ? { yaxis2: MARK_AXIS } : {}),
  };
}

const linear = (chart, scale) => ({
  type: "linear",
  ...(isAmount(chart) ? { rangemode: "nonnegative" } : {}),
  ...(chart.y_range ? { range: chart.y_range.map((each) => each / scale.factor) } : {}),
});

// For amounts of memory, not changes: a forecast may reach below zero, but the axis must not.
const isAmount = ({ unit, lines }) => unit === "bytes" && lines.every(({ y, low }) => (low ?? y).every((each) => (each ?? 0) >= 0));

// Only planned bands have a height; the others mark a time.
const isPlan = (band) => (band.high ?? null) !== null;

function shownBands(chart, view) {
  return chart.bands.filter((band) => !band.group || band.group === view.group);
}

function annotations(chart, view, colour, scale) {
  const text = (label, tone) => ({ text: escapeHtml(inUnits(label)), showarrow: false, font: { size: 11, color: tone }, bgcolor: faded(colour("--surface"), 0.8) });
  // On a logarithmic axis, plotly expects the position of an annotation as a logarithm, but that of a shape as it is.
  const at = (value) => (view.log ? Math.log10(value / scale.factor) : value / scale.factor);
  return [
    ...shownBands(chart, view).filter((band) => band.label).map((band) => ({
      ...text(band.label, colour(`--${band.tone}`)), xref: "x",
      ...(isPlan(band)
        ? { yref: "y", x: band.first, y: at(band.high), xanchor: "left", yanchor: "top" }
        : { yref: "paper", x: band.first, y: 0.985, xanchor: "left", yanchor: "top" }),
    })),
    ...chart.levels.map((level) => ({
      ...text(level.label, colour(`--${level.tone}`)), xref: "paper", yref: "y", x: 0.995, y: at(level.value), xanchor: "right", yanchor: "bottom",
    })),
    ...chart.far.filter(() => chart.unit === "bytes").map((level, i) => ({
      ...text(`\u2191 ${level.label}: ${bytes(level.value)}`, colour(`--${level.tone}`)),
      xref: "paper", yref: "paper",
      // On a phone, the legend may fill the space above the plot. The label is on the left, where growing lines are low.
      ...(view.narrow ? { x: 0, y: 0.87 - 0.1 * i, xanchor: "left", yanchor: "top" } : { x: 1, y: 1 + 0.1 * i, xanchor: "right", yanchor: "bottom" }),
    })),
  ];
}
