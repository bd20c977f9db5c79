// Draws the charts of a page on one shared axis: zoom and hover are linked, drawing waits until a chart is in view.

import { chartToCsv } from "./csv.js";
import { figure, fullRange } from "./figure.js";

const probe = document.createElement("span");
probe.hidden = true;

/** A css variable as the `rgb(...)` the browser computes for the theme in force. */
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export class Charts {
  /** @param onZoom called with [first, last], or null after a reset, when the viewer moved the axis */
  constructor(theme, onZoom) {
    this.theme = theme;
    this.onZoom = onZoom;
    this.all = new Map();
    this.range = null;
    this.groups = new Map();
    this.watcher = new IntersectionObserver((entries) => entries.forEach((entry) => this.#seen(entry)), { rootMargin: "200px" });
    document.addEventListener("leakline:theme", () => this.redraw());
    matchMedia("(max-width: 44rem)").addEventListener("change", () => this.redraw());
  }

  /** Reads every `<script type="application/json" data-chart>` below root; known charts get the new numbers. */
  read(root = document) {
    for (const script of root.querySelectorAll("script[data-chart]")) {
      const chart = JSON.parse(script.textContent);
      const element = document.getElementById(`chart-${chart.id}`);
      const known = this.all.get(chart.id);
      if (known) {
        known.chart = chart;
        known.stale = true;
      } else if (element) {
        this.#add(chart, element);
      }
    }
  }

  charts() {
    return [...this.all.values()].map((each) => each.chart);
  }

  setRange(range) {
    this.range = range;
    this.redraw();
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
    this.groups.set(chart.id, chart.groups[0]?.id ?? null);
    this.watcher.observe(element);
    const tools = document.querySelector(`[data-tools="${CSS.escape(chart.id)}"]`);
    tools?.querySelector("[data-png]")?.addEventListener("click", () => this.#png(entry));
    tools?.querySelector("[data-csv]")?.addEventListener("click", () => csv(entry));
    for (const button of tools?.querySelectorAll("[data-group]") ?? []) {
      button.addEventListener("click", () => this.#choose(entry, button, tools));
    }
  }

  #choose(entry, button, tools) {
    this.groups.set(entry.chart.id, button.dataset.group);
    for (const each of tools.querySelectorAll("[data-group]")) each.setAttribute("aria-pressed", String(each === button));
    this.#draw(entry);
  }

  #seen(observed) {
    const entry = [...this.all.values()].find((each) => each.element === observed.target);
    entry.visible = observed.isIntersecting;
    if (entry.visible && entry.stale) this.#draw(entry);
  }

  #draw(entry) {
    const { chart, element } = entry;
    const view = {
      range: this.range ?? fullRange(this.charts()),
      group: this.groups.get(chart.id),
      narrow: matchMedia("(max-width: 44rem)").matches,
    };
    const { data, layout } = figure(chart, this.theme, colour, view);
    // A later range set from outside must win over what plotly remembers of the viewer's zoom.
    layout.xaxis.uirevision = view.range.join();
    Plotly.react(element, data, layout, this.theme.config);
    entry.stale = false;
    if (!entry.drawn) this.#listen(entry);
    element.dataset.points = String(Math.max(0, ...chart.lines.map((line) => line.x.length)));
  }

  #listen(entry) {
    entry.drawn = true;
    const { element } = entry;
    element.on("plotly_relayout", (change) => {
      const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range[0] !== undefined) this.#moved([Number(range[0]), Number(range[1])]);
    });
    element.on("plotly_doubleclick", () => this.#moved(null));
    element.on("plotly_hover", (event) => this.#hover(entry, event.points[0].x));
    element.on("plotly_unhover", () => this.#others(entry, (other) => Plotly.Fx.unhover(other.element)));
  }

  #moved(range) {
    this.setRange(range);
    this.onZoom(range);
  }

  #hover(entry, xval) {
    this.#others(entry, (other) => {
      const [first, last] = other.element.layout.xaxis.range;
      if (xval >= first && xval <= last) Plotly.Fx.hover(other.element, { xval, yval: 0 });
    });
  }

  #others(entry, action) {
    for (const other of this.all.values()) if (other !== entry && other.drawn && other.visible) action(other);
  }

  #png(entry) {
    if (entry.stale) this.#draw(entry);
    Plotly.downloadImage(entry.element, { format: "png", width: 1200, height: 560, scale: 2, filename: filename(entry) });
  }
}

const filename = (entry) => `leakline-${entry.chart.id}`;

function csv(entry) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([chartToCsv(entry.chart)], { type: "text/csv" }));
  link.download = `${filename(entry)}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The theme file, from the address the page names. */
export async function loadTheme() {
  const answer = await fetch(document.body.dataset.theme);
  return answer.json();
}
