// Draws the charts of a page on one shared axis. Zoom and hover are linked; a chart is drawn when it scrolls into view.

import { chartToCsv } from "./csv.js";
import { figure, fullRange, shownLines } from "./figure.js";
import { scaleName, titled } from "./image.js";
import { HEADS, lineNumbers } from "./line_numbers.js";
import { covers, followed, lastStretch, within, withLines } from "./zoom_range.js";

const probe = document.createElement("span");
probe.hidden = true;

const finger = matchMedia("(pointer: coarse)");

const colours = new Map();
// Registered first, so that the cache is cleared before the charts redraw.
document.addEventListener("leakline:theme", () => colours.clear());

/** Returns a CSS variable as the computed `rgb(...)` of the current theme. Cached, because computing it examines the whole page. */
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
   * @param heard callbacks {zoomed([first, last] or null), changed(), clicked(x)}: the viewer moved the axis, selected
   *              other lines, or clicked a point
   */
  constructor(theme, heard = {}) {
    this.theme = theme;
    this.heard = { zoomed() {}, changed() {}, clicked() {}, ...heard };
    this.all = new Map();
    this.range = null;
    // Without a range, only this much of the end of the axis is shown; null means all.
    this.last = null;
    this.log = new Set(); // charts with a logarithmic y-axis
    // The x of the clicked point, which a line marks.
    this.point = null;
    // The lines of each chart for the range that was last loaded, and that range.
    this.parts = {};
    this.partRange = null;
    this.groups = new Map();
    this.lines = new Map(); // chart -> line -> whether the viewer wants it shown
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.#seen(entry)), { rootMargin: "200px" });
    document.addEventListener("leakline:theme", () => this.redraw());
    matchMedia("(max-width: 44rem)").addEventListener("change", () => this.redraw());
  }

  /** Reads every `<script type="application/json" data-chart>` below root; known charts get the new data. */
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

  /** Returns the shared axis: {unit, seconds per unit of x if x is time}. */
  axis() {
    const [one] = this.charts();
    return { unit: one?.x_unit ?? "generation", seconds: one?.x_seconds ?? 1 };
  }

  /** Returns what the viewer has selected, for the URL. */
  view() {
    return { range: this.range, groups: this.chosenGroups(), lines: this.lines, axis: this.axis(), last: this.last, log: [...this.log] };
  }

  /** Returns the range to load at full resolution: a zoom, or the followed end if its points are downsampled. */
  stretch() {
    const joined = this.last && this.charts().some((chart) => chart.lines.some((line) => line.low));
    return this.range ?? (joined ? this.#followed() : null);
  }

  #followed() {
    return this.last ? lastStretch(this.charts(), this.last) : null;
  }

  /** Rescales the view when the axis of a long run changes from minutes to hours. */
  #keepPlace(times) {
    if (times === 1) return;
    if (this.point !== null) this.point *= times;
    if (this.last) this.last *= times;
    if (!this.range) return;
    this.range = this.range.map((each) => each * times);
    this.#forget();
  }

  setRange(range) {
    // Until its own points are loaded, a wider range is drawn from the points of the entire run.
    if (!covers(this.partRange, range)) this.#forget();
    this.range = range;
    this.redraw();
  }

  /** Takes the lines loaded for a range, unless the viewer has left it. */
  takeLines(range, lines) {
    if (this.range ? !covers(range, this.range) : !this.last) return;
    this.parts = lines;
    this.partRange = range;
    this.redraw();
  }

  /** Restores the view that `readView` returns. */
  setView({ groups, lines, last, log }) {
    this.last = last;
    this.log = log;
    for (const [id, group] of groups) {
      const entry = this.all.get(id);
      if (!entry?.chart.groups.some((each) => each.id === group)) continue;
      this.groups.set(id, group);
    }
    this.lines = lines;
    this.redraw();
  }

  /** Returns chart -> selected group, for charts where it is not the first. */
  chosenGroups() {
    return new Map([...this.groups].filter(([id, group]) => group && group !== this.all.get(id)?.chart.groups[0]?.id));
  }

  #forget() {
    this.parts = {};
    this.partRange = null;
  }

  /** Draws the visible charts and marks the others. The numbers of a drawn chart are updated too, because they may be visible without it. */
  redraw() {
    for (const entry of this.all.values()) {
      this.#showChoices(entry.chart.id);
      entry.stale = true;
      if (entry.visible) this.#draw(entry);
      else if (entry.drawn) {
        const chart = this.#shown(entry);
        writeNumbers(chart, this.#view(chart));
      }
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
      button.addEventListener("click", () => this.#choose(entry, button));
    }
    for (const button of tools?.querySelectorAll("[data-last]") ?? []) {
      button.addEventListener("click", () => this.#follow(Number(button.dataset.last) || null));
    }
    tools?.querySelector("[data-log]")?.addEventListener("click", () => this.#switchLog(entry));
    tools?.querySelector("[data-reset]")?.addEventListener("click", () => {
      this.reset();
      // The reset button is hidden now, so keyboard focus moves to the next control.
      tools.querySelector("[data-png]")?.focus();
    });
    this.#showChoices(chart.id);
  }

  /** Updates the buttons of a chart to match the selection. */
  #showChoices(id) {
    const tools = toolsOf(id);
    if (!tools) return;
    press(tools, "group", this.groups.get(id));
    press(tools, "last", String(this.last ?? ""));
    tools.querySelector("[data-log]")?.setAttribute("aria-pressed", String(this.log.has(id)));
    const reset = tools.querySelector("[data-reset]");
    if (reset) reset.hidden = !this.range && !this.last;
  }

  #switchLog(entry) {
    const { id } = entry.chart;
    if (!this.log.delete(id)) this.log.add(id);
    this.#showChoices(id);
    this.#draw(entry);
    this.heard.changed();
  }

  /** Shows and follows the end of the axis; null shows all of it. */
  #follow(last) {
    this.last = last;
    this.zoom(null);
  }

  /** Shows the entire axis again. */
  reset() {
    this.#follow(null);
  }

  #choose(entry, button) {
    this.groups.set(entry.chart.id, button.dataset.group);
    this.#showChoices(entry.chart.id);
    this.#draw(entry);
    this.heard.changed();
  }

  #seen(observed) {
    const entry = [...this.all.values()].find((each) => each.element === observed.target);
    // The observer may still report a chart that was replaced.
    if (!entry) return;
    entry.visible = observed.isIntersecting;
    if (entry.visible && entry.stale) this.#draw(entry);
  }

  #shown({ chart }) {
    const part = this.parts[chart.id];
    if (this.range) return part ? withLines(chart, part) : chart;
    const end = this.#followed();
    return end ? within(part ? followed(chart, part) : chart, end) : chart;
  }

  #view(chart) {
    return {
      range: this.range ?? this.#followed() ?? fullRange(this.charts()),
      zoomed: Boolean(this.range || this.last),
      log: this.log.has(chart.id),
      coarse: finger.matches,
      group: this.groups.get(chart.id),
      lines: this.lines.get(chart.id),
      narrow: matchMedia("(max-width: 44rem)").matches,
    };
  }

  #draw(entry) {
    const { element } = entry;
    const chart = this.#shown(entry);
    const view = this.#view(chart);
    const { data, layout } = figure(chart, this.theme, colour, view);
    // A range set from outside must override the zoom that plotly remembers.
    layout.xaxis.uirevision = view.range.join();
    if (this.point !== null) layout.shapes.push(pointLine(this.point, colour("--ink")));
    Plotly.react(element, data, layout, configFor(this.theme.config));
    writeNumbers(chart, view);
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
    element.on("plotly_doubleclick", () => this.reset());
    element.on("plotly_click", ({ points }) => this.heard.clicked(points[0].x));
    element.on("plotly_hover", (event) => this.#hover(entry, event.points[0].x));
    element.on("plotly_unhover", () => this.#others(entry, (other) => Plotly.Fx.unhover(other.element)));
  }

  /** Stores which lines were toggled in the legend, except those that are back in their initial state. */
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

  /** Zooms as the viewer does; null shows everything again. */
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
    const { data, layout } = entry.element;
    const image = titled({ data, layout }, titlesOf(entry.element, entry.chart));
    Plotly.downloadImage(image, { format: "png", width: 1200, height: 560, scale: 2, filename: filename(entry.chart.id) });
  }
}

const pointLine = (x, color) => ({ name: "clicked", type: "line", xref: "x", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width: 2, dash: "dot" } });

const filename = (id) => `leakline-${id}`;

const toolsOf = (id) => document.querySelector(`[data-tools="${CSS.escape(id)}"]`);

/** On touch screens dragging scrolls the page, so only zooming in steps remains. */
const configFor = (config) => (finger.matches ? { ...config, modeBarButtons: [["zoomIn2d", "zoomOut2d"]] } : config);

function press(tools, name, value) {
  for (const each of tools.querySelectorAll(`[data-${name}]`)) each.setAttribute("aria-pressed", String(each.dataset[name] === value));
}

/** Writes the numbers of the lines below a chart, for the visible range. */
function writeNumbers(chart, view) {
  const home = document.querySelector(`[data-numbers="${CSS.escape(chart.id)}"]`);
  if (!home) return;
  const rows = lineNumbers(chart.unit, shownLines(chart, view).filter((line) => !line.hidden), view.range);
  const text = JSON.stringify(rows);
  if (home.dataset.written === text) return;
  home.dataset.written = text;
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(...["line", ...HEADS].map((title) => cell("th", title, "col")));
  const body = table.createTBody();
  for (const { name, cells } of rows) body.insertRow().append(cell("th", name, "row"), ...cells.map((each) => cell("td", each)));
  home.replaceChildren(...(rows.length ? [table] : []));
}

function cell(tag, text, scope) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

/** Returns the texts of an exported image that say where it comes from. */
function titlesOf(element, chart) {
  const words = (found) => found?.textContent.replace(/\s+/g, " ").trim() ?? "";
  return {
    run: words(document.querySelector(".run-head h1") ?? document.querySelector("h1")),
    chart: words(element.closest("section")?.querySelector("h2")),
    unit: scaleName(element.layout, chart.unit),
    at: new Date().toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" }),
    ink: colour("--ink"),
    whole: chart.x_unit === "generation",
  };
}

function csv(chart) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([chartToCsv(chart)], { type: "text/csv" }));
  link.download = `${filename(chart.id)}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Loads the theme file from the URL that the page declares. */
export async function loadTheme() {
  const answer = await fetch(document.body.dataset.theme);
  return answer.json();
}
