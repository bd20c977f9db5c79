// The page of one run: charts, and live updates through the same fragments as the first paint.

import { appendRows, wantedNames } from "./append.js";
import { listenForAsking } from "./ask.js";
import { Charts, loadTheme } from "./chart.js";
import { LiveStream } from "./live.js";
import { onKey, reveal, showTimes } from "./page.js";
import { Paced } from "./paced.js";
import { takeParts } from "./parts.js";

const WORDS = { live: "Live", closed: "Not connected", disconnected: "Disconnected", ended: "Ended", paused: "Paused" };

const page = document.getElementById("run");
const mark = document.getElementById("live");
const charts = new Charts(await loadTheme(), zoomed);
const fragments = new Paced(refresh);
let paused = false;
let connection = page.dataset.ended === "true" ? "ended" : "closed";
let missed = 0;

charts.read();
restoreView();
const stream = new LiveStream(liveAddress(), {
  state: connected,
  snapshots: takeSnapshots,
  verdict: () => fragments.want(),
  reload: () => fragments.want(),
  run: takeRun,
});
if (connection !== "ended") stream.open();
else stream.end();
mark.addEventListener("click", () => pause(!paused));
listenForAsking(page);
onKey("l", () => pause(!paused));
onKey("r", () => {
  charts.setRange(null);
  zoomed(null);
});
showState();

function liveAddress() {
  const address = new URL(page.dataset.live, location.href);
  for (const name of wantedNames(charts.charts())) address.searchParams.append("name", name);
  address.searchParams.set("since", page.dataset.revision);
  return address;
}

function restoreView() {
  const range = new URLSearchParams(location.search).get("x")?.split("..").map(Number);
  if (range?.length !== 2 || !range.every(Number.isFinite)) return;
  charts.setRange(range);
  paused = true;
}

function zoomed(range) {
  const address = new URL(location.href);
  if (range) address.searchParams.set("x", range.map((each) => Number(each.toPrecision(6))).join(".."));
  else address.searchParams.delete("x");
  history.replaceState(null, "", address);
  pause(Boolean(range));
}

function pause(wanted) {
  paused = wanted;
  if (!paused && missed) fragments.want();
  missed = 0;
  showState();
}

function showState() {
  const state = paused && connection === "live" ? "paused" : connection;
  mark.dataset.live = state;
  mark.disabled = connection === "ended";
  mark.setAttribute("aria-pressed", String(paused));
  mark.textContent = WORDS[state] + (state === "paused" && missed ? `, ${missed} new` : "");
  mark.title = paused ? "Resume (l). Double-click a chart to see everything again." : "Pause (l)";
}

function connected(state) {
  if (connection === "ended") return;
  connection = state;
  showState();
}

async function refresh() {
  if (paused) return;
  try {
    const answer = await fetch(page.dataset.fragments + location.search);
    if (answer.ok) show(await answer.text());
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the server is away: the mark says so
  }
}

function show(html) {
  const changed = takeParts(html);
  if (changed.some((name) => name.endsWith(".data"))) {
    charts.read();
    charts.redraw();
  }
  reveal();
  showTimes();
}

let drawing = false;

function takeSnapshots({ process, rows }) {
  if (paused) {
    missed += rows.length;
    showState();
    return;
  }
  const startedAt = Number(page.dataset.startedAt);
  const changed = charts.charts().filter((chart) => appendRows(chart, process, rows, startedAt));
  if (changed.length && !drawing) {
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      charts.redraw();
    });
  }
  fragments.want();
}

function takeRun(run) {
  fragments.want();
  // What is presumed from silence may speak again.
  const over = ["finished", "failed"].includes(run.state) || (run.state === "killed" && !run.presumed);
  if (!over) return;
  connection = "ended";
  stream.end();
  showState();
}
