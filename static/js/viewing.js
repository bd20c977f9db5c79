// Charts with zoom and line selection: the view is stored in the URL, and a zoomed range is loaded at full resolution.

import { Charts, loadTheme } from "./chart.js";
import { stretched, StretchReader } from "./zoom_range.js";
import { rangeText, readView, writeView } from "./view.js";

/**
 * Creates the charts with the view from the URL, and the reader that loads their ranges.
 * @param linesAddress URL that returns the lines of a range
 * @param kept         parameters of the page's URL to pass on
 * @param heard        callbacks as for Charts
 */
export async function chartsInView(linesAddress, kept, heard = {}) {
  const reader = new StretchReader(
    (range) => stretchAddress(linesAddress, kept, rangeText(range, charts.axis())),
    // The lines of an overlay come without `seconds`, because an overlay never has a time axis.
    (range, lines, seconds = 1) => charts.takeLines(range, stretched(lines, seconds / charts.axis().seconds)),
  );
  const remember = () => {
    history.replaceState(null, "", writeView(location.href, charts.view()));
  };
  const charts = new Charts(await loadTheme(), {
    ...heard,
    zoomed(range) {
      remember();
      reader.want(charts.stretch());
      heard.zoomed?.(range);
    },
    changed: remember,
  });
  charts.read();
  const view = readView(location.search, charts.axis());
  charts.setView(view);
  if (view.range) charts.setRange(view.range);
  reader.want(charts.stretch());
  return { charts, reader };
}

function stretchAddress(linesAddress, kept, text) {
  const address = new URL(linesAddress, location.href);
  const here = new URLSearchParams(location.search);
  for (const name of kept) if (here.has(name)) address.searchParams.set(name, here.get(name));
  address.searchParams.set("x", text);
  return address;
}
