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

test("no chart may offer to share itself with another host", () => {
  assert.equal(theme.config.showSendToCloud, false);
  assert.equal(theme.config.displaylogo, false);
});

test("no chart is drawn with WebGL: browsers keep about sixteen contexts", () => {
  for (const draw of ["line", "bar", "area", "points"]) {
    const { data } = figure(chart({ lines: [line({ draw })] }), theme, colour, view);
    assert.ok(data.every((trace) => trace.type === "scatter" || trace.type === "bar"));
  }
});

test("a phase called like markup stays text", () => {
  const { data } = figure(chart({ lines: [line({ name: "<b>x</b>" })] }), theme, colour, view);
  assert.equal(data[0].name, "&lt;b&gt;x&lt;/b&gt;");
  assert.equal(escapeHtml("a & b"), "a &amp; b");
});

test("sizes are divided by a binary unit and say so", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  assert.deepEqual(data[0].y, [1, 3]);
  assert.equal(layout.yaxis.ticksuffix, " GiB");
});

test("a chart with one missing value keeps the gap", () => {
  const { data } = figure(chart({ lines: [line({ y: [null, 2 ** 20] })] }), theme, colour, view);
  assert.deepEqual(data[0].y, [null, 1]);
});

test("an axis of memory never goes below zero, one of changes does", () => {
  const cone = { x: [1, 2], label: "forecast", estimate: [2 ** 30, 0], low: [2 ** 30, -(2 ** 30)], high: [2 ** 30, 2 ** 30] };
  assert.equal(figure(chart({ cone }), theme, colour, { ...view, range: [0, 2] }).layout.yaxis.rangemode, "nonnegative");
  const changes = chart({ lines: [line({ y: [2 ** 30, -(2 ** 20)] })] });
  assert.equal(figure(changes, theme, colour, view).layout.yaxis.rangemode, "tozero");
});

test("a range given by the server sets the unit too, so that two charts read alike", () => {
  assert.equal(scaleOf(chart({ y_range: [0, 2 ** 30] }), [line({ y: [5] })]).suffix, " GiB");
});

test("the extremes of joined snapshots are drawn as a band behind the line", () => {
  const { data } = figure(chart({ lines: [line({ low: [0, 0], high: [2 ** 31, 2 ** 31] })] }), theme, colour, view);
  assert.equal(data.length, 3);
  assert.equal(data[1].fill, "tonexty");
});

test("extremes nearer to each other than a chart can show are left out, but for as long as one of them is not", () => {
  const y = Array(200).fill(2 ** 30);
  const thin = line({ x: y.map((_, i) => i), y, low: y.map((each) => each - 2 ** 19), high: y.map((each) => each + 2 ** 19) });
  assert.equal(figure(chart({ lines: [thin] }), theme, colour, view).data.length, 1);
  const spike = { ...thin, high: thin.high.with(77, 2 ** 30 + 2 ** 23) };
  assert.equal(figure(chart({ lines: [spike] }), theme, colour, view).data.length, 3);
  // Where others reach far higher, the axis does too.
  const tall = line({ name: "tall", x: [0, 1], y: [0, 2 ** 40] });
  assert.equal(figure(chart({ lines: [spike, tall] }), theme, colour, view).data.length, 2);
  assert.equal(figure(chart({ lines: [spike, { ...tall, hidden: true }] }), theme, colour, view).data.length, 4);
});

test("a limit is near the top of what areas add up to, also between two readings of one", () => {
  const area = (name, x, y) => line({ name, x, y, draw: "area" });
  const shapes = (value, lines, range = [0, 9]) =>
    figure(chart({ lines, levels: [{ value, label: "limit", tone: "confirmed" }] }), theme, colour, { ...view, zoomed: true, range }).layout.shapes.length;
  const both = [area("a", [0, 1, 2], [10, 10, 10]), area("b", [0, 1, 2], [30, 30, 30])];
  assert.deepEqual([shapes(50, both), shapes(51, both)], [1, 0]);
  const apart = [area("a", [0, 2], [10, 10]), area("b", [1, 3], [30, 30])];
  assert.deepEqual([shapes(50, apart), shapes(51, apart)], [1, 0]);
  // What was higher outside of the stretch does not count.
  assert.equal(shapes(50, [area("a", [0, 1, 2], [10, 90, 10])], [1.5, 2.5]), 0);
});

test("a forecast is cut where a zoom ends, so that what comes later sets no height", () => {
  const cone = { x: [1, 5], label: "forecast", estimate: [2 ** 30, 5 * 2 ** 30], low: [2 ** 30, 2 ** 30], high: [2 ** 30, 9 * 2 ** 30] };
  const drawn = (zoomed) => figure(chart({ cone }), theme, colour, { ...view, zoomed, range: [0, 2] }).data.at(-1);
  assert.deepEqual([drawn(false).x, drawn(true).x, drawn(true).y], [[1, 5], [1, 2], [1, 2]]);
});

test("lines of many points have no markers, and what the verdict names is thicker", () => {
  const of = (length, more) => figure(chart({ lines: [line({ x: Array(length).fill(0).map((_, i) => i), y: Array(length).fill(1), ...more })] }), theme, colour, view).data[0];
  assert.deepEqual([of(30).mode, of(31).mode], ["lines+markers", "lines"]);
  assert.ok(of(31, { named: true }).line.width > of(31).line.width);
  assert.ok(of(31, { named: true, draw: "area" }).line.width > of(31, { draw: "area" }).line.width);
});

test("where a finger points a chart leaves dragging to the page", () => {
  const mode = (coarse) => figure(chart(), theme, colour, { ...view, coarse }).layout.dragmode;
  assert.deepEqual([mode(true), mode(false)], [false, "zoom"]);
});

test("on a logarithmic axis texts stand at logarithms and lines at values", () => {
  const plan = { first: 0, last: 1, label: "plan", tone: "ok", low: 0, high: 2 ** 31, group: null };
  const { layout } = figure(chart({ bands: [plan], levels: [{ value: 100 * 2 ** 30, label: "limit", tone: "confirmed" }] }), theme, colour, { ...view, log: true });
  assert.deepEqual([layout.yaxis.type, layout.yaxis.range], ["log", undefined]);
  assert.deepEqual(layout.annotations.map((each) => each.y), [Math.log10(2), 2]);
  assert.deepEqual(layout.shapes.map((each) => each.y1), [2, 100]);
  // There is no place for zero.
  assert.ok(layout.shapes[0].y0 > 0);
});

test("an image has a title of its own: what in which unit, of which run, over what, and when", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  const image = titled({ data, layout }, { run: "<b> / one", chart: "Memory", unit: scaleName(layout, "bytes"), at: "Nov 29", ink: "black", whole: true });
  assert.equal(image.layout.title.text, "Memory (GiB), &lt;b&gt; / one");
  assert.equal(image.layout.title.subtitle.text, "generation 0 to 1, Nov 29");
  assert.ok(image.layout.margin.t > layout.margin.t && image.layout.legend.y < 1);
  // The page keeps its own.
  assert.equal(layout.title, undefined);
});

test("the numbers of a line are those of what is shown of it", () => {
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

test("a planned band has a height of its own, in the unit of the lines, and belongs to its group", () => {
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

test("a phase within another has its own name in the legend of bars, and its whole one for the viewer's choice", () => {
  const bars = ["evaluate/run_episode", "evaluate"].map((name) => line({ name, draw: "bar" }));
  const drawn = figure(chart({ lines: bars }), theme, colour, view).data;
  assert.deepEqual(drawn.map(({ name, meta }) => [name, meta]), [["…/run_episode", "evaluate/run_episode"], ["evaluate", "evaluate"]]);
  assert.match(drawn[0].hovertemplate, /evaluate\/run_episode/);
});

test("what waits in the legend stays out of it on a phone", () => {
  const lines = [line(), line({ hidden: true })];
  assert.equal(figure(chart({ lines }), theme, colour, view).data.length, 2);
  assert.equal(figure(chart({ lines }), theme, colour, { ...view, narrow: true }).data.length, 1);
});

test("charts share the widest range, and nothing measured still has one", () => {
  const [first, last] = fullRange([chart(), chart({ lines: [line({ x: [4, 9] })] })]);
  assert.ok(first < 0 && last > 9);
  assert.deepEqual(fullRange([]), [-0.5, 1.5]);
});

test("every colour of the theme is a variable of the style sheet", () => {
  const css = readFileSync(new URL("../../static/css/variables.css", import.meta.url), "utf8");
  resolve(theme, (name) => assert.ok(css.includes(`${name}:`), name));
  assert.equal(faded("rgb(1, 2, 3)", 0.5), "rgba(1, 2, 3, 0.5)");
});

test("a limit far above a stretch does not press its lines flat, and one that is near stays", () => {
  const levels = (zoomed, value, more) => figure(chart({ levels: [{ value, label: "limit", tone: "confirmed", ...more }] }), theme, colour, { ...view, zoomed }).layout;
  const lines = (...given) => levels(...given).shapes.length;
  assert.deepEqual([lines(false, 2 ** 40), lines(true, 2 ** 40), lines(true, 3.5 * 2 ** 30)], [1, 0, 1]);
  // Its label is always there, with its value where its line is not.
  const limit = { limit: true };
  assert.deepEqual([lines(false, 2 ** 40, limit), lines(false, 5 * 2 ** 30, limit), lines(true, 3.5 * 2 ** 30, limit)], [0, 1, 1]);
  const texts = (...given) => levels(...given).annotations.map((each) => each.text);
  assert.deepEqual([texts(false, 2 ** 40), texts(true, 2 ** 40), texts(false, 2 ** 40, limit)], [["limit"], ["\u2191 limit: 1.00 TiB"], ["\u2191 limit: 1.00 TiB"]]);
});

test("what the viewer hid or brought in wins over what the server proposes, on a phone too", () => {
  const lines = [line({ low: [1, 1], high: [2, 2] }), line({ name: "nested", hidden: true })];
  const wanted = new Map([["after train", false], ["nested", true]]);
  const { data } = figure(chart({ lines }), theme, colour, { ...view, narrow: true, lines: wanted });
  assert.deepEqual(data.map((trace) => [trace.name, trace.visible]), [["after train", "legendonly"], ["nested", undefined]]);
});

test("the forecast drawn is that of the lines shown", () => {
  const cone = (y) => ({ label: "forecast", x: [1, 2], low: [y, y], estimate: [y, y], high: [y, y] });
  const both = chart({ cone: cone(2 ** 30), cones: { rss: cone(2 ** 32) } });
  const drawn = (group) => figure(both, theme, colour, { ...view, group, range: [0, 3] }).data.at(-1).y[0];
  assert.equal(drawn("rss"), 4 * drawn("private"));
});

test("a forecast beside a zoom does not set its height", () => {
  const cone = { label: "forecast", x: [5, 9], low: [1, 1], estimate: [2, 2], high: [9, 9] };
  assert.equal(figure(chart({ cone }), theme, colour, view).data.length, 1);
  assert.equal(figure(chart({ cone }), theme, colour, { ...view, range: [0, 6] }).data.length, 4);
});

test("a unit called like markup stays text on both axes", () => {
  const { layout } = figure(chart({ x_title: "<a href='https://x'>epoch</a>", y_title: "growth per <b>epoch</b>" }), theme, colour, view);
  for (const { text } of [layout.xaxis.title, layout.yaxis.title]) assert.ok(!text.includes("<"), text);
});

// -- marks.js

const mark = (x, kind, text = "", label = "label") => ({ x, kind, text, label });

test("a chart without marks gets nothing", () => {
  assert.deepEqual(markTraces([], String), []);
});

test("what a training wrote stays text, line by line", () => {
  const [trace] = markTraces([mark(3, "note", "see <script>\nand more"), mark(5, "mark")], String);
  assert.deepEqual(trace.text, ["note: see &lt;script&gt;<br>and more", "mark: label"]);
});

test("of several at one place the weightiest gives the sign, and all are told", () => {
  const [trace] = markTraces([mark(3, "cleanup", "freed nothing"), mark(3, "fix", "detach")], String);
  assert.deepEqual([trace.x, trace.marker.symbol], [[3], ["star"]]);
  assert.equal(trace.text[0], "fix: detach<br>cleanup: freed nothing");
});

test("cleanups have signs and no lines, a kind of tomorrow has both", () => {
  const marks = [mark(1, "cleanup"), mark(2, "tomorrow")];
  assert.deepEqual(markLines(marks, String).map((line) => line.x0), [2]);
  assert.equal(markTraces(marks, String)[0].marker.symbol.length, 2);
});
