// Marks of events during a run: symbols along the bottom of a chart, each with a tooltip. Pure.

import { escapeHtml } from "./paint.js";

const SIGNS = {
  fix: ["star", "--ok"],
  incident: ["triangle-up", "--confirmed"],
  alert: ["diamond-tall", "--suspected"],
  exception: ["x", "--confirmed"],
  attempt: ["diamond", "--accent"],
  note: ["square", "--accent"],
  mark: ["triangle-down", "--ink"],
  cleanup: ["circle", "--ink-faint"],
};
const OTHER = ["triangle-down", "--ink"];
// Of several marks at the same x, the first in this order determines the symbol; the tooltip lists all marks.
const ORDER = Object.keys(SIGNS);

/** Returns one trace on a separate axis from 0 to 1, or an empty list if there are no marks. */
export function markTraces(marks, colour) {
  if (!marks.length) return [];
  const places = new Map();
  for (const mark of [...marks].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind))) {
    places.set(mark.x, [...(places.get(mark.x) ?? []), mark]);
  }
  const signs = [...places.values()].map(([first]) => SIGNS[first.kind] ?? OTHER);
  return [{
    type: "scatter", mode: "markers", yaxis: "y2", cliponaxis: false, showlegend: false,
    x: [...places.keys()], y: signs.map(() => 0.025),
    text: [...places.values()].map((found) => found.map(words).join("<br>")),
    hovertemplate: "%{text}<extra></extra>",
    marker: { size: 9, symbol: signs.map(([symbol]) => symbol), color: signs.map(([, tone]) => colour(tone)), line: { width: 1, color: colour("--surface") } },
  }];
}

// Only the <br> tag is used: plotly renders others with a style attribute, which our CSP forbids.
const words = (mark) => `${escapeHtml(mark.kind)}: ${escapeHtml(mark.text || mark.label).replaceAll("\n", "<br>")}`;

/** Returns vertical lines for the marks, except for cleanups, which may occur in every generation. */
export function markLines(marks, colour) {
  return marks.filter((mark) => mark.kind !== "cleanup").map((mark) => ({
    type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: 0, y1: 1, layer: "below",
    line: { color: colour("--line-strong"), width: 1, dash: "dot" },
  }));
}

export const MARK_AXIS = { overlaying: "y", range: [0, 1], fixedrange: true, visible: false };
