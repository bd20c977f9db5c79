// Charts that a viewer zooms and chooses lines of: the view stands in the address, and a stretch gets points of its own.

import { Charts, loadTheme } from "./chart.js";
import { StretchReader } from "./stretch.js";
import { rangeText, readView, writeView } from "./view.js";

/**
 * Charts as the address says they were seen, and the reader of their stretches.
 * @param linesAddress where the lines of a stretch are read
 * @param kept         parameters of the page's address that go with the question
 * @param heard        as for Charts
 */
export async function chartsInView(linesAddress, kept, heard = {}) {
  const reader = new StretchReader(
    (range) => stretchAddress(linesAddress, kept, range),
    (range, lines) => charts.takeLines(range, lines),
  );
  const remember = () => {
    const view = { range: charts.range, groups: charts.chosenGroups(), lines: charts.lines };
    history.replaceState(null, "", writeView(location.href, view));
  };
  const charts = new Charts(await loadTheme(), {
    ...heard,
    zoomed(range) {
      remember();
      reader.want(range);
      heard.zoomed?.(range);
    },
    changed: remember,
  });
  charts.read();
  const view = readView(location.search);
  charts.setView(view.groups, view.lines);
  if (view.range) charts.setRange(view.range);
  reader.want(charts.range);
  return { charts, reader };
}

function stretchAddress(linesAddress, kept, range) {
  const address = new URL(linesAddress, location.href);
  const here = new URLSearchParams(location.search);
  for (const name of kept) if (here.has(name)) address.searchParams.set(name, here.get(name));
  address.searchParams.set("x", rangeText(range));
  return address;
}
