// The comparison page: both runs on one axis.

import { onKey } from "./page.js";
import { chartsInView } from "./viewing.js";

const { charts } = await chartsInView(document.getElementById("comparison").dataset.lines, ["before", "after"]);
charts.redraw();
onKey("r", () => charts.reset());
