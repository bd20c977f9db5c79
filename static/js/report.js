// A page saved as a file: its charts on one axis, without a server to update them.

import { Charts, loadTheme } from "./chart.js";
import { onKey } from "./page.js";

const charts = new Charts(await loadTheme());
charts.read();
charts.redraw();
onKey("r", () => charts.reset());
