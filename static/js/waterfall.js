// A chart whose bars are the steps of one sum, read from top to bottom like an account. Pure.

import { bytes } from "./formats.js";
import { escapeHtml, resolve } from "./paint.js";

const LONGEST_NAME = 26;
const LONGEST_ON_A_PHONE = 15;

/** @param scale as scaleOf of figure.js gives it */
export function waterfall(chart, theme, colour, view, scale) {
  const rows = chart.steps.map((name, i) => `${i}`);
  const data = chart.lines.map((line) => bars(chart, line, rows, scale, colour));
  const resolved = resolve(theme.layout, colour);
  const axis = resolve(theme.xaxis, colour);
  return {
    data,
    layout: {
      ...resolved,
      ...(view.narrow ? { margin: { ...resolved.margin, l: 112, r: 84, t: 12 } } : { margin: { ...resolved.margin, l: 190, r: 92, t: 12 } }),
      showlegend: false,
      dragmode: false,
      hovermode: "closest",
      barmode: "overlay",
      shapes: joins(chart, scale, colour),
      annotations: numbers(chart, scale, colour),
      xaxis: {
        ...axis,
        nticks: view.narrow ? 4 : 7,
        fixedrange: true, zeroline: true, zerolinecolor: colour("--line-strong"), showgrid: true, gridcolor: colour("--grid"),
        title: { ...axis.title, text: view.narrow ? "" : escapeHtml(chart.y_title) }, ticksuffix: scale.suffix, tickformat: ",~g",
        ...(chart.y_range ? { range: chart.y_range.map((each) => each / scale.factor) } : {}),
      },
      yaxis: {
        type: "category", categoryorder: "array", categoryarray: rows, autorange: "reversed", fixedrange: true, ticks: "", automargin: false,
        tickvals: rows, ticktext: chart.steps.map((name) => escapeHtml(shortened(name, view.narrow ? LONGEST_ON_A_PHONE : LONGEST_NAME))),
      },
    },
  };
}

function bars(chart, line, rows, scale, colour) {
  const tone = colour(`--series-${line.colour}`);
  return {
    type: "bar", orientation: "h", name: escapeHtml(line.name), meta: line.name,
    y: line.x.map((i) => rows[i]), x: line.y.map((value) => value / scale.factor),
    ...(line.base ? { base: line.base.map((value) => value / scale.factor) } : {}),
    marker: { color: line.base ? tone : colour("--line-strong") },
    text: line.y.map((value) => amount(value, Boolean(line.base))), textposition: "none",
    customdata: line.x.map((i) => escapeHtml(chart.steps[i])),
    hovertemplate: "%{customdata}: %{text}<extra></extra>",
  };
}

/** Right of each bar, where the smallest has room too. */
function numbers(chart, scale, colour) {
  return chart.lines.flatMap((line) => line.x.map((i, at) => {
    const begin = line.base?.[at] ?? 0;
    return {
      x: Math.max(begin, begin + line.y[at]) / scale.factor, y: i, xref: "x", yref: "y", xanchor: "left", xshift: 2, showarrow: false,
      text: amount(line.y[at], Boolean(line.base)), font: { color: colour("--ink"), size: 12 },
    };
  }));
}

/** `+1.20 GiB`, each in the unit that reads best: a small step is not nothing. */
const amount = (value, signed) => `${signed && value > 0 ? "+" : ""}${bytes(value)}`;

/** From the end of each bar down to the next, where that begins. */
function joins(chart, scale, colour) {
  const steps = chart.lines.flatMap((line) => line.x.map((i, at) => [i, (line.base?.[at] ?? 0) + line.y[at]]));
  const ends = new Map(steps);
  return chart.steps.slice(0, -1).flatMap((_, i) => (ends.has(i) ? [{
    type: "line", xref: "x", yref: "y", x0: ends.get(i) / scale.factor, x1: ends.get(i) / scale.factor, y0: i, y1: i + 1, layer: "below",
    line: { color: colour("--line-strong"), width: 1 },
  }] : []));
}

/** Of a path its end, which tells more; of a name its beginning. */
function shortened(name, most) {
  if (name.length <= most) return name;
  return name.includes("/") ? `…${name.slice(1 - most)}` : `${name.slice(0, most - 1)}…`;
}
