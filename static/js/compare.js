// The comparison: both runs on one axis.

import { Charts, loadTheme } from "./chart.js";
import { onKey } from "./page.js";

const charts = new Charts(await loadTheme(), () => {});
charts.read();
charts.redraw();
onKey("r", () => charts.setRange(null));
