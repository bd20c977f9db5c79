// A page that was saved as a file: its charts on one axis. There is no server to hear from.

import { Charts, loadTheme } from "./chart.js";
import { onKey } from "./page.js";

const charts = new Charts(await loadTheme());
charts.read();
charts.redraw();
onKey("r", () => charts.reset());
