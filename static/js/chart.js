// Draws the charts of a page on one shared axis: zoom and hover are linked, drawing waits until a chart is in view.

import { chartToCsv } from "./csv.js";
import { figure, fullRange } from "./figure.js";
import { covers, withLines } from "./zoom_range.js";

const probe = document.createElement("span");
probe.hidden = true;

const colours = new Map();
// Before any chart hears of it, and draws anew.
document.addEventListener("leakline:theme", () => colours.clear());

/** A css variable as the `rgb(...)` the browser computes for the theme in force. Asked once: each time, it looks at the whole page. */
function colour(name) {
  if (!colours.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

export class Charts {
  /**
   * @param heard {zoomed([first, last] or null), changed(), clicked(x)}: the viewer moved the axis, chose other lines,
   *              or clicked a point
   */
  constructor(theme, heard = {}) {
    this.theme = theme;
    this.heard = { zoomed() {}, changed() {}, clicked() {}, ...heard };
    this.all = new Map();
    this.range = null;
    // Where a line marks the point that was clicked.
    this.point = null;
    // The lines of each chart over the stretch that was read last, and that stretch.
    this.parts = {};
    this.partRange = null;
    this.groups = new Map();
    this.lines = new Map(); // chart -> line -> whether the viewer wants it shown
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.#seen(entry)), { rootMargin: "200px" });
    document.addEventListener("leakline:theme", () => this.redraw());
    matchMedia("(max-width: 44rem)").addEventListener("change", () => this.redraw());
  }

  /** Reads every `<script type="application/json" data-chart>` below root; known charts get the new numbers. */
  read(root = document) {
    const before = this.axis();
    for (const script of root.querySelectorAll("script[data-chart]")) {
      const chart = JSON.parse(script.textContent);
      const element = document.getElementById(`chart-${chart.id}`);
      const known = this.all.get(chart.id);
      if (known && (known.element === element || !element)) {
        known.chart = chart;
        known.stale = true;
      } else if (element) {
        if (known) this.watcher.unobserve(known.element);
        this.#add(chart, element);
      }
    }
    this.#keepPlace(before.seconds / this.axis().seconds);
  }

  charts() {
    return [...this.all.values()].map((each) => each.chart);
  }

  /** What the charts share: {unit, seconds that one of x is worth where that is time}. */
  axis() {
    const [one] = this.charts();
    return { unit: one?.x_unit ?? "generation", seconds: one?.x_seconds ?? 1 };
  }

  /** What the viewer has chosen to see, for an address. */
  view() {
    return { range: this.range, groups: this.chosenGroups(), lines: this.lines, axis: this.axis() };
  }

  /** Of a run that grew old the axis is in hours instead of minutes: what was looked at stays. */
  #keepPlace(times) {
    if (times === 1 || !this.range) return;
    this.range = this.range.map((each) => each * times);
    this.#forget();
  }

  setRange(range) {
    // Until its own points are there, a wider stretch is drawn from the whole.
    if (!covers(this.partRange, range)) this.#forget();
    this.range = range;
    this.redraw();
  }

  /** What was read of a stretch; it is drawn while the viewer looks into it. */
  takeLines(range, lines) {
    if (!covers(range, this.range)) return;
    this.parts = lines;
    this.partRange = range;
    this.redraw();
  }

  /** Chart -> group of lines, and chart -> line -> shown, as the viewer had chosen. */
  setView(groups, lines) {
    for (const [id, group] of groups) {
      const entry = this.all.get(id);
      if (!entry?.chart.groups.some((each) => each.id === group)) continue;
      this.groups.set(id, group);
      press(toolsOf(id), group);
    }
    this.lines = lines;
    this.redraw();
  }

  /** Chart -> chosen group, where it is not the first. */
  chosenGroups() {
    return new Map([...this.groups].filter(([id, group]) => group && group !== this.all.get(id)?.chart.groups[0]?.id));
  }

  #forget() {
    this.parts = {};
    this.partRange = null;
  }

  /** Draws what is in view and marks the rest for when it comes into view. */
  redraw() {
    for (const entry of this.all.values()) {
      entry.stale = true;
      if (entry.visible) this.#draw(entry);
    }
  }

  #add(chart, element) {
    const entry = { chart, element, visible: false, stale: true, drawn: false };
    this.all.set(chart.id, entry);
    if (!this.groups.has(chart.id)) this.groups.set(chart.id, chart.groups[0]?.id ?? null);
    this.watcher.observe(element);
    const tools = toolsOf(chart.id);
    tools?.querySelector("[data-png]")?.addEventListener("click", () => this.#png(entry));
    tools?.querySelector("[data-csv]")?.addEventListener("click", () => csv(this.#shown(entry)));
    for (const button of tools?.querySelectorAll("[data-group]") ?? []) {
      button.addEventListener("click", () => this.#choose(entry, button, tools));
    }
  }

  #choose(entry, button, tools) {
    this.groups.set(entry.chart.id, button.dataset.group);
    press(tools, button.dataset.group);
    this.#draw(entry);
    this.heard.changed();
  }

  #seen(observed) {
    const entry = [...this.all.values()].find((each) => each.element === observed.target);
    // Of a chart that was replaced, a last word may still come.
    if (!entry) return;
    entry.visible = observed.isIntersecting;
    if (entry.visible && entry.stale) this.#draw(entry);
  }

  #shown({ chart }) {
    const part = this.range ? this.parts[chart.id] : null;
    return part ? withLines(chart, part) : chart;
  }

  #draw(entry) {
    const { element } = entry;
    const chart = this.#shown(entry);
    const view = {
      range: this.range ?? fullRange(this.charts()),
      zoomed: this.range !== null,
      group: this.groups.get(chart.id),
      lines: this.lines.get(chart.id),
      narrow: matchMedia("(max-width: 44rem)").matches,
    };
    const { data, layout } = figure(chart, this.theme, colour, view);
    // A later range set from outside must win over what plotly remembers of the viewer's zoom.
    layout.xaxis.uirevision = view.range.join();
    if (this.point !== null) layout.shapes.push(pointLine(this.point, colour("--ink")));
    Plotly.react(element, data, layout, this.theme.config);
    entry.stale = false;
    if (!entry.drawn) this.#listen(entry);
    element.dataset.points = String(Math.max(0, ...entry.chart.lines.map((line) => line.x.length)));
    element.dataset.of = chart === entry.chart ? "all" : "stretch";
  }

  #listen(entry) {
    entry.drawn = true;
    const { element } = entry;
    element.on("plotly_restyle", () => this.#toggled(entry));
    element.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined) this.zoom([Number(range[0]), Number(range[1])]);
    });
    element.on("plotly_click", ({ points }) => this.heard.clicked(points[0].x));
    element.on("plotly_doubleclick", () => this.zoom(null));
    element.on("plotly_hover", (event) => this.#hover(entry, event.points[0].x));
    element.on("plotly_unhover", () => this.#others(entry, (other) => Plotly.Fx.unhover(other.element)));
  }

  /** Lines were hidden or shown in the legend. What is as the server gave it is not remembered. */
  #toggled(entry) {
    const wanted = new Map();
    const given = new Map(entry.chart.lines.map((line) => [line.name, !line.hidden]));
    for (const trace of entry.element.data) {
      const shown = (trace.visible ?? true) === true;
      if (given.has(trace.meta) && given.get(trace.meta) !== shown) wanted.set(trace.meta, shown);
    }
    this.lines.set(entry.chart.id, wanted);
    this.#draw(entry);
    this.heard.changed();
  }

  /** As the viewer moves the axis; null shows everything again. */
  zoom(range) {
    this.setRange(range);
    this.heard.zoomed(range);
  }

  #hover(entry, xval) {
    this.#others(entry, (other) => {
      const [first, last] = other.element.layout.xaxis.range;
      if (xval >= first && xval <= last) Plotly.Fx.hover(other.element, { xval, yval: 0 });
    });
  }

  #others(entry, action) {
    for (const other of this.all.values()) {
      if (other !== entry && other.drawn && other.visible) action(other);
    }
  }

  #png(entry) {
    if (entry.stale) this.#draw(entry);
    Plotly.downloadImage(entry.element, { format: "png", width: 1200, height: 560, scale: 2, filename: filename(entry.chart.id) });
  }
}

const pointLine = (x, color) => ({ name: "clicked", type: "line", xref: "x", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width: 2, dash: "dot" } });

const filename = (id) => `leakline-${id}`;

const toolsOf = (id) => document.querySelector(`[data-tools="${CSS.escape(id)}"]`);

function press(tools, group) {
  for (const each of tools?.querySelectorAll("[data-group]") ?? []) each.setAttribute("aria-pressed", String(each.dataset.group === group));
}

function csv(chart) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([chartToCsv(chart)], { type: "text/csv" }));
  link.download = `${filename(chart.id)}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The theme file, from the address the page names. */
export async function loadTheme() {
  const answer = await fetch(document.body.dataset.theme);
  return answer.json();
}
