// A chart as an image that is read far from its page: with a title of its own. Pure.

import { escapeHtml } from "./paint.js";

// Pixels of an image for two lines above the legend.
const HEAD = 58;
const HEIGHT = 560;

/** What the values are in, as the axis has it: "GiB". */
export const scaleName = (layout, unit) => (layout.yaxis.ticksuffix ?? "").trim() || (unit === "count" ? "count" : "");

/** The figure with a title: what it shows and in which unit, of which run, over what, and when it was made. `whole`: the axis counts. */
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
