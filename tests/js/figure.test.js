import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { figure, fullRange, scaleOf } from "../../static/js/figure.js";
import { scaleName, titled } from "../../static/js/image.js";
import { lineNumbers } from "../../static/js/line_numbers.js";
import { markLines, markTraces } from "../../static/js/marks.js";
import { escapeHtml, faded, resolve } from "../../static/js/paint.js";

const theme = JSON.parse(readFileSync(new URL("../../static/plotly-theme.json", import.meta.url)));
const colour = () => "rgb(1, 2, 3)";
const line = (more = {}) => ({ name: "after train", x: [0, 1], y: [2 ** 30, 3 * 2 ** 30], low: null, high: null, colour: 1, dash: 0, symbol: 0, draw: "line", hidden: false, group: null, source: null, ...more });
const chart = (more = {}) => ({ id: "c", unit: "bytes", y_title: "memory", x_title: "generation", x_unit: "generation", lines: [line()], bands: [], levels: [], cone: null, marks: [], groups: [], y_range: null, ...more });
const view = { range: [0, 1], group: null, narrow: false };

test("no chart offers to share data with another host", () => {
  assert.equal(theme.config.showSendToCloud, false);
  assert.equal(theme.config.displaylogo, false);
});

test("no chart is drawn with WebGL: browsers keep about sixteen contexts", () => {
  for (const draw of ["line", "bar", "area", "points"]) {
    const { data } = figure(chart({ lines: [line({ draw })] }), theme, colour, view);
    assert.ok(data.every((trace) => trace.type === "scatter" || trace.type === "bar"));
  }
});

test("a phase name that looks like markup is shown as text", () => {
  const { data } = figure(chart({ lines: [line({ name: "<b>x</b>" })] }), theme, colour, view);
  assert.equal(data[0].name, "&lt;b&gt;x&lt;/b&gt;");
  assert.equal(escapeHtml("a & b"), "a &amp; b");
});

test("sizes are shown in a binary unit", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  assert.deepEqual(data[0].y, [1, 3]);
  assert.equal(layout.yaxis.ticksuffix, " GiB");
});

test("a missing value leaves a gap", () => {
  const { data } = figure(chart({ lines: [line({ y: [null, 2 ** 20] })] }), theme, colour, view);
  assert.deepEqual(data[0].y, [null, 1]);
});

test("only an axis of changes may go below zero", () => {
  const cone = { x: [1, 2], label: "forecast", estimate: [2 ** 30, 0], low: [2 ** 30, -(2 ** 30)], high: [2 ** 30, 2 ** 30] };
  assert.equal(figure(chart({ cone }), theme, colour, { ...view, range: [0, 2] }).layout.yaxis.rangemode, "nonnegative");
  const changes = chart({ lines: [line({ y: [2 ** 30, -(2 ** 20)] })] });
  assert.equal(figure(changes, theme, colour, view).layout.yaxis.rangemode, "tozero");
});

test("a range given by the server also sets the unit", () => {
  assert.equal(scaleOf(chart({ y_range: [0, 2 ** 30] }), [line({ y: [5] })]).suffix, " GiB");
});

test("the extremes of joined snapshots are drawn as a band behind the line", () => {
  const { data } = figure(chart({ lines: [line({ low: [0, 0], high: [2 ** 31, 2 ** 31] })] }), theme, colour, view);
  assert.equal(data.length, 3);
  assert.equal(data[1].fill, "tonexty");
});

test("extremes too close to be visible are omitted", () => {
  const y = Array(200).fill(2 ** 30);
  const thin = line({ x: y.map((_, i) => i), y, low: y.map((each) => each - 2 ** 19), high: y.map((each) => each + 2 ** 19) });
  assert.equal(figure(chart({ lines: [thin] }), theme, colour, view).data.length, 1);
  const spike = { ...thin, high: thin.high.with(77, 2 ** 30 + 2 ** 23) };
  assert.equal(figure(chart({ lines: [spike] }), theme, colour, view).data.length, 3);
  // With a much taller line the axis is taller, so the spike is too small to be visible.
  const tall = line({ name: "tall", x: [0, 1], y: [0, 2 ** 40] });
  assert.equal(figure(chart({ lines: [spike, tall] }), theme, colour, view).data.length, 2);
  assert.equal(figure(chart({ lines: [spike, { ...tall, hidden: true }] }), theme, colour, view).data.length, 4);
});

test("stacked areas are added up to decide whether a limit is near", () => {
  const area = (name, x, y) => line({ name, x, y, draw: "area" });
  const shapes = (value, lines, range = [0, 9]) =>
    figure(chart({ lines, levels: [{ value, label: "limit", tone: "confirmed" }] }), theme, colour, { ...view, zoomed: true, range }).layout.shapes.length;
  const both = [area("a", [0, 1, 2], [10, 10, 10]), area("b", [0, 1, 2], [30, 30, 30])];
  assert.deepEqual([shapes(50, both), shapes(51, both)], [1, 0]);
  const apart = [area("a", [0, 2], [10, 10]), area("b", [1, 3], [30, 30])];
  assert.deepEqual([shapes(50, apart), shapes(51, apart)], [1, 0]);
  // Values outside the zoomed range do not count.
  assert.equal(shapes(50, [area("a", [0, 1, 2], [10, 90, 10])], [1.5, 2.5]), 0);
});

test("a forecast is cut at the end of a zoom", () => {
  const cone = { x: [1, 5], label: "forecast", estimate: [2 ** 30, 5 * 2 ** 30], low: [2 ** 30, 2 ** 30], high: [2 ** 30, 9 * 2 ** 30] };
  const drawn = (zoomed) => figure(chart({ cone }), theme, colour, { ...view, zoomed, range: [0, 2] }).data.at(-1);
  assert.deepEqual([drawn(false).x, drawn(true).x, drawn(true).y], [[1, 5], [1, 2], [1, 2]]);
});

test("lines of many points have no markers, and named lines are thicker", () => {
  const of = (length, more) => figure(chart({ lines: [line({ x: Array(length).fill(0).map((_, i) => i), y: Array(length).fill(1), ...more })] }), theme, colour, view).data[0];
  assert.deepEqual([of(30).mode, of(31).mode], ["lines+markers", "lines"]);
  assert.ok(of(31, { named: true }).line.width > of(31).line.width);
  assert.ok(of(31, { named: true, draw: "area" }).line.width > of(31, { draw: "area" }).line.width);
});

test("on touch screens dragging scrolls the page", () => {
  const mode = (coarse) => figure(chart(), theme, colour, { ...view, coarse }).layout.dragmode;
  assert.deepEqual([mode(true), mode(false)], [false, "zoom"]);
});

test("on a logarithmic axis labels use logarithms and lines use values", () => {
  const plan = { first: 0, last: 1, label: "plan", tone: "ok", low: 0, high: 2 ** 31, group: null };
  const { layout } = figure(chart({ bands: [plan], levels: [{ value: 100 * 2 ** 30, label: "limit", tone: "confirmed" }] }), theme, colour, { ...view, log: true });
  assert.deepEqual([layout.yaxis.type, layout.yaxis.range], ["log", undefined]);
  assert.deepEqual(layout.annotations.map((each) => each.y), [Math.log10(2), 2]);
  assert.deepEqual(layout.shapes.map((each) => each.y1), [2, 100]);
  // A logarithmic axis has no zero.
  assert.ok(layout.shapes[0].y0 > 0);
});

test("an exported image has its own title", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  const image = titled({ data, layout }, { run: "<b> / one", chart: "Memory", unit: scaleName(layout, "bytes"), at: "Nov 29", ink: "black", whole: true });
  assert.equal(image.layout.title.text, "Memory (GiB), &lt;b&gt; / one");
  assert.equal(image.layout.title.subtitle.text, "generation 0 to 1, Nov 29");
  assert.ok(image.layout.margin.t > layout.margin.t && image.layout.legend.y < 1);
  // The chart on the page has no title.
  assert.equal(layout.title, undefined);
});

test("the numbers of a line cover the visible part", () => {
  const lines = [line({ x: [0, 1, 2, 3], y: [2 ** 30, null, 3 * 2 ** 30, 2 * 2 ** 30], low: [0, null, 2 ** 30, 2 ** 30], high: null }), line({ name: "later", x: [9], y: [1] })];
  assert.deepEqual(lineNumbers("bytes", lines, [0, 3]), [{ name: "after train", cells: ["2.00 GiB", "0 B", "3.00 GiB", "+1.00 GiB"] }]);
  assert.deepEqual(lineNumbers("bytes", lines, [1.5, 3])[0].cells, ["2.00 GiB", "1.00 GiB", "3.00 GiB", "\u22121.00 GiB"]);
  assert.deepEqual(lineNumbers("bytes", lines, [0.5, 1.5]), []);
  const written = (unit, y) => lineNumbers(unit, [line({ x: [0, 1], y })], [0, 1])[0].cells.at(-1);
  assert.deepEqual([written("count", [9, 4]), written("seconds", [9, 4]), written("share", [0.5, 0.75]), written("number", [0, 1 / 3]), written("count", [3, 3])], ["\u22125", "\u22125.00 s", "+25.0 %", "+0.333333", "0"]);
});

test("only the chosen group of lines is drawn", () => {
  const lines = [line({ group: "private" }), line({ group: "rss", name: "rss" })];
  const { data } = figure(chart({ lines }), theme, colour, { ...view, group: "rss" });
  assert.deepEqual(data.map((trace) => trace.name), ["rss"]);
});

test("a planned band has its own height and group", () => {
  const started = { first: 1, last: 2, label: "leak starts", tone: "confirmed", low: null, high: null, group: null };
  const plan = { first: 0.5, last: 5.5, label: "plan", tone: "ok", low: 2 ** 30, high: 2 ** 31, group: "rss" };
  const lines = [line({ group: "private" }), line({ group: "rss", name: "rss" })];
  const shown = (group) => figure(chart({ lines, bands: [started, plan] }), theme, colour, { ...view, group }).layout;
  const [time, band] = shown("rss").shapes;
  assert.deepEqual([time.yref, time.y0, time.y1], ["paper", 0, 1]);
  assert.deepEqual([band.yref, band.x0, band.x1, band.y0, band.y1], ["y", 0.5, 5.5, 1, 2]);
  assert.deepEqual(shown("rss").annotations.map((each) => each.text), ["leak starts", "plan"]);
  assert.equal(shown("private").shapes.length, 1);
  assert.equal(shown("private").annotations.length, 1);
});

test("nested phases have short names in the legend of bars", () => {
  const bars = ["evaluate/run_episode", "evaluate"].map((name) => line({ name, draw: "bar" }));
  const drawn = figure(chart({ lines: bars }), theme, colour, view).data;
  assert.deepEqual(drawn.map(({ name, meta }) => [name, meta]), [["…/run_episode", "evaluate/run_episode"], ["evaluate", "evaluate"]]);
  assert.match(drawn[0].hovertemplate, /evaluate\/run_episode/);
});

test("hidden lines are not in the legend on a phone", () => {
  const lines = [line(), line({ hidden: true })];
  assert.equal(figure(chart({ lines }), theme, colour, view).data.length, 2);
  assert.equal(figure(chart({ lines }), theme, colour, { ...view, narrow: true }).data.length, 1);
});

test("charts share the widest range, and an empty one has a default", () => {
  const [first, last] = fullRange([chart(), chart({ lines: [line({ x: [4, 9] })] })]);
  assert.ok(first < 0 && last > 9);
  assert.deepEqual(fullRange([]), [-0.5, 1.5]);
});

test("every colour of the theme is a variable of the style sheet", () => {
  const css = readFileSync(new URL("../../static/css/variables.css", import.meta.url), "utf8");
  resolve(theme, (name) => assert.ok(css.includes(`${name}:`), name));
  assert.equal(faded("rgb(1, 2, 3)", 0.5), "rgba(1, 2, 3, 0.5)");
});

test("only a nearby limit is drawn in a zoomed chart", () => {
  const levels = (zoomed, value, more) => figure(chart({ levels: [{ value, label: "limit", tone: "confirmed", ...more }] }), theme, colour, { ...view, zoomed }).layout;
  const lines = (...given) => levels(...given).shapes.length;
  assert.deepEqual([lines(false, 2 ** 40), lines(true, 2 ** 40), lines(true, 3.5 * 2 ** 30)], [1, 0, 1]);
  // The label of the limit is always shown; without the line it includes the value.
  const limit = { limit: true };
  assert.deepEqual([lines(false, 2 ** 40, limit), lines(false, 5 * 2 ** 30, limit), lines(true, 3.5 * 2 ** 30, limit)], [0, 1, 1]);
  const texts = (...given) => levels(...given).annotations.map((each) => each.text);
  assert.deepEqual([texts(false, 2 ** 40), texts(true, 2 ** 40), texts(false, 2 ** 40, limit)], [["limit"], ["\u2191 limit: 1.00 TiB"], ["\u2191 limit: 1.00 TiB"]]);
});

test("lines chosen by the viewer override the server, on a phone too", () => {
  const lines = [line({ low: [1, 1], high: [2, 2] }), line({ name: "nested", hidden: true })];
  const wanted = new Map([["after train", false], ["nested", true]]);
  const { data } = figure(chart({ lines }), theme, colour, { ...view, narrow: true, lines: wanted });
  assert.deepEqual(data.map((trace) => [trace.name, trace.visible]), [["after train", "legendonly"], ["nested", undefined]]);
});

test("the forecast belongs to the visible lines", () => {
  const cone = (y) => ({ label: "forecast", x: [1, 2], low: [y, y], estimate: [y, y], high: [y, y] });
  const both = chart({ cone: cone(2 ** 30), cones: { rss: cone(2 ** 32) } });
  const drawn = (group) => figure(both, theme, colour, { ...view, group, range: [0, 3] }).data.at(-1).y[0];
  assert.equal(drawn("rss"), 4 * drawn("private"));
});

test("a forecast outside a zoom does not set its height", () => {
  const cone = { label: "forecast", x: [5, 9], low: [1, 1], estimate: [2, 2], high: [9, 9] };
  assert.equal(figure(chart({ cone }), theme, colour, view).data.length, 1);
  assert.equal(figure(chart({ cone }), theme, colour, { ...view, range: [0, 6] }).data.length, 4);
});

test("a unit that looks like markup is shown as text on both axes", () => {
  const { layout } = figure(chart({ x_title: "<a href='https://x'>epoch</a>", y_title: "growth per <b>epoch</b>" }), theme, colour, view);
  for (const { text } of [layout.xaxis.title, layout.yaxis.title]) assert.ok(!text.includes("<"), text);
});

// -- marks.js

const mark = (x, kind, text = "", label = "label") => ({ x, kind, text, label });

test("a chart without marks has no traces for them", () => {
  assert.deepEqual(markTraces([], String), []);
});

test("notes of a training are shown as text, line by line", () => {
  const [trace] = markTraces([mark(3, "note", "see <script>\nand more"), mark(5, "mark")], String);
  assert.deepEqual(trace.text, ["note: see &lt;script&gt;<br>and more", "mark: label"]);
});

test("several marks at one point share the most important symbol", () => {
  const [trace] = markTraces([mark(3, "cleanup", "freed nothing"), mark(3, "fix", "detach")], String);
  assert.deepEqual([trace.x, trace.marker.symbol], [[3], ["star"]]);
  assert.equal(trace.text[0], "fix: detach<br>cleanup: freed nothing");
});

test("cleanups have symbols but no lines, unknown kinds have both", () => {
  const marks = [mark(1, "cleanup"), mark(2, "tomorrow")];
  assert.deepEqual(markLines(marks, String).map((line) => line.x0), [2]);
  assert.equal(markTraces(marks, String)[0].marker.symbol.length, 2);
});
