// The visual language: its one chart.

import { Charts, loadTheme } from "/static/js/chart.js";

const charts = new Charts(await loadTheme());
charts.read();
charts.redraw();
