// The page of a run: charts, and live updates through the same fragments as the first rendering.

import { listenForAsking } from "./request_buttons.js";
import { filterRows } from "./row_filter.js";
import { LiveStream } from "./live.js";
import { onKey, reveal, showTimes } from "./page.js";
import { Paced } from "./rate_limit.js";
import { takeParts } from "./page_fragments.js";
import { TwoPoints } from "./two_points.js";
import { isOver, markOf, quiet, WORDS } from "./run_state.js";
import { writeView } from "./view.js";
import { chartsInView } from "./viewing.js";

// The final verdict on a run is computed after its end.
const LAST_VERDICT_MS = 120_000;

const page = document.getElementById("run");
const mark = document.getElementById("live");
let paused = false;
let streamed = true;
let connection = "closed";
let run = { state: page.dataset.state, reason: page.dataset.reason, end_inferred: page.dataset.endInferred === "true", last_seen_at: page.dataset.seenAt };
let missed = 0;
let outdated = false;
// The server's clock, which sets `last_seen_at`, relative to the monotonic clock, which the viewer cannot change.
const madeAt = performance.getEntriesByType("navigation")[0]?.responseStart ?? 0;
const serverAt = Date.parse(page.dataset.seenAt) + 1000 * Number(page.dataset.quiet) - madeAt;
const secondsQuiet = () => Math.floor((serverAt + performance.now() - Date.parse(run.last_seen_at)) / 1000);
// For a run that is not active, show the state before the charts are drawn.
if (quiet(run)) showState();

const two = new TwoPoints(document.getElementById("marked-point"), document.getElementById("point-note"), {
  address: page.dataset.requests.replace(/\/requests$/, ""),
  added: () => fragments.want(),
});
const { charts, reader } = await chartsInView(page.dataset.lines, ["process", "tab", "axis"], { zoomed, clicked: (x) => two.click(x) });
two.charts = charts;
const fragments = new Paced(refresh);
paused = charts.range !== null;
const stream = new LiveStream(liveAddress(), page.dataset.live.replace(/\/live$/, ""), {
  state: connected,
  snapshots: takeSnapshots,
  verdict: () => fragments.want(),
  reload: () => fragments.want(),
  run: takeRun,
});
let leaving = null;
// A run that ended long ago has no more updates.
if (isOver(run) && Math.abs(Date.now() - Date.parse(run.last_seen_at)) > LAST_VERDICT_MS) stream.end();
else {
  stream.open();
  stayForTheLastVerdict();
}
mark.addEventListener("click", switchLive);
listenForAsking(page);
filterRows(document.getElementById("objects-filter"));
// A missing update triggers no event, so silence is detected with a timer.
setInterval(() => {
  if (mark.dataset.live === "late" || mark.dataset.live !== markOf(connection, run, paused, secondsQuiet())) showState();
}, 1000);
onKey("l", switchLive);
onKey("r", () => charts.reset());
page.addEventListener("click", choose);
page.querySelector(".tab-choice")?.addEventListener("change", (event) => {
  const place = event.target.selectedIndex;
  page.querySelectorAll('[data-part="tabs"] a')[place].click();
});
showState();

function liveAddress() {
  const address = new URL(page.dataset.live, location.href);
  // The page loads what has changed as fragments, so the stream needs to send hardly any data.
  address.searchParams.set("name", "process.rss_bytes");
  address.searchParams.set("since", page.dataset.revision);
  return address;
}

/** Links to other processes or tabs keep the view of the charts; links to another axis keep everything except the range. */
function choose(event) {
  const link = event.target.closest('[data-part="processes"] a, [data-part="tabs"] a, a[data-axis]');
  if (!link) return;
  const view = charts.view();
  link.href = writeView(link.href, "axis" in link.dataset ? { ...view, range: null, last: null } : view);
}

/** Pauses or resumes live updates. Resuming also resets the zoom, which may not include the end of the axis. */
function switchLive() {
  if (paused && charts.range) charts.zoom(null);
  else pause(!paused);
}

function zoomed(range) {
  two.moved();
  pause(Boolean(range));
  showChanges(range);
}

let asking = null;

/** Loads the changes within the visible range, which the URL already contains. */
async function showChanges(range) {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  const before = document.querySelector('[data-part="changes"] .panel');
  // The panel shows another range, or a range that is no longer selected.
  if (range) before?.setAttribute("aria-busy", "true");
  else before?.remove();
  try {
    const answer = await fetch(page.dataset.changes + location.search, { signal });
    if (!answer.ok) return;
    takeParts(await answer.text());
    showTimes();
  } catch (error) {
    // The server is unreachable, or another range was requested.
    if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
  }
}

function pause(wanted) {
  paused = wanted;
  if (!paused && (missed || outdated)) fragments.want();
  missed = 0;
  showState();
}

function showState() {
  const state = markOf(connection, run, paused, secondsQuiet());
  mark.dataset.live = state;
  mark.disabled = isOver(run);
  mark.setAttribute("aria-pressed", String(paused));
  mark.replaceChildren(...words(state));
  showTimes(mark);
  mark.dataset.by = streamed ? "stream" : "looks";
  const often = streamed || state !== "live" ? "" : " Other windows use all streams of this browser, so this one updates every five seconds.";
  mark.title = paused ? "Resume (l) and show the whole range" : `Pause (l).${often}`;
}

function words(state) {
  const held = paused && ["paused", "silent", "killed", "late"].includes(state) && !isOver(run);
  const more = held ? `${state === "paused" ? "Paused" : ", paused"}${missed ? `, ${missed} new` : ""}` : "";
  if (state === "late") return [`${WORDS.late} for ${secondsQuiet()} s${more}`];
  if (state !== "silent") return [`${WORDS[state] ?? ""}${more}`];
  const time = document.createElement("time");
  time.dateTime = run.last_seen_at;
  time.dataset.show = "clock";
  // A phone has no room for the time here, and shows it below the title.
  const since = document.createElement("span");
  since.append(" since ", time);
  return [WORDS.silent, since, more];
}

function connected(state, byStream) {
  if (isOver(run)) return;
  connection = state;
  streamed = byStream;
  showState();
}

async function refresh() {
  // The end of a run is shown even if the viewer has paused updates.
  outdated = paused && !quiet(run);
  if (outdated) return;
  const asked = location.search;
  try {
    const answer = await fetch(page.dataset.fragments + asked);
    const html = answer.ok ? await answer.text() : null;
    if (html === null) connected("disconnected", streamed);
    // Otherwise the viewer has selected another range meanwhile, and this response is outdated.
    else if (asked === location.search) show(html);
    else fragments.want();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the server is unreachable, which the live mark shows
  }
}

function show(html) {
  const changed = takeParts(html);
  if (changed.includes("title")) showTitle();
  if (changed.some((name) => name.endsWith(".data"))) {
    charts.read();
    charts.redraw();
    reader.want(charts.stretch());
  }
  reveal();
  showTimes();
}

/** Updates the title and icon of the browser tab. */
function showTitle() {
  const part = page.querySelector('[data-part="title"]');
  document.title = part.textContent;
  document.querySelector('link[rel="icon"]').href = part.dataset.icon;
}

function takeSnapshots({ rows }) {
  if (paused) {
    missed += rows.length;
    showState();
  } else fragments.want();
}

function takeRun(found) {
  run = found;
  fragments.want();
  stayForTheLastVerdict();
  showState();
}

function stayForTheLastVerdict() {
  if (isOver(run)) leaving ??= setTimeout(() => stream.end(), LAST_VERDICT_MS);
  else {
    clearTimeout(leaving);
    leaving = null;
  }
}
