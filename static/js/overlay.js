// The overlay page: several runs on one axis. Links to other series keep the visible range.

import { onKey } from "./page.js";
import { writeView } from "./view.js";
import { chartsInView } from "./viewing.js";

const page = document.getElementById("overlay-view");
const { charts } = await chartsInView(page.dataset.lines, []);
charts.redraw();
onKey("r", () => charts.reset());
page.addEventListener("click", (event) => {
  const series = event.target.closest("a[data-series]");
  if (series) series.href = writeView(series.href, charts.view());
});
