// Prepares a chart for export as an image, with a title because the image is viewed without its page. Pure.

import { escapeHtml } from "./paint.js";

// Height in pixels of two lines above the legend.
const HEAD = 58;
const HEIGHT = 560;

/** Returns the unit of the values as the axis shows it: "GiB". */
export const scaleName = (layout, unit) => (layout.yaxis.ticksuffix ?? "").trim() || (unit === "count" ? "count" : "");

/** Adds a title: content and unit, run, range, and time of the export. `whole`: x is an integer. */
export function titled({ data, layout }, { run, chart, unit, at, ink, whole }) {
  const what = [chart, unit && `(${unit})`].filter(Boolean).join(" ");
  const text = escapeHtml([what, run].filter(Boolean).join(", "));
  const [first, last] = layout.xaxis.range;
  const over = `${layout.xaxis.title.text} ${place(Math.max(0, whole ? Math.ceil(first) : first))} to ${place(whole ? Math.floor(last) : last)}`;
  return {
    data,
    layout: {
      ...layout,
      title: {
        text, x: 0.01, xanchor: "left", y: 1 - 22 / HEIGHT, yref: "container", yanchor: "middle", automargin: false,
        font: { size: 17, color: ink }, subtitle: { text: `${over}, ${escapeHtml(at)}`, font: { size: 12, color: ink } },
      },
      legend: { ...layout.legend, y: 1 - HEAD / HEIGHT },
      margin: { ...layout.margin, t: (layout.margin?.t ?? 0) + HEAD },
    },
  };
}

const place = (x) => Number(x.toPrecision(4)).toLocaleString("en-US");
