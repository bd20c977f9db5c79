// Charts that a viewer zooms and chooses lines of: the view stands in the address, and a stretch gets points of its own.

import { Charts, loadTheme } from "./chart.js";
import { stretched, StretchReader } from "./zoom_range.js";
import { rangeText, readView, writeView } from "./view.js";

/**
 * Charts as the address says they were seen, and the reader of their stretches.
 * @param linesAddress where the lines of a stretch are read
 * @param kept         parameters of the page's address that go with the question
 * @param heard        as for Charts
 */
export async function chartsInView(linesAddress, kept, heard = {}) {
  const reader = new StretchReader(
    (range) => stretchAddress(linesAddress, kept, rangeText(range, charts.axis())),
    // An overlay has no axis of time.
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
