import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { figure, fullRange } from "../../static/js/figure.js";

const theme = JSON.parse(readFileSync(new URL("../../static/plotly-theme.json", import.meta.url)));
const colour = () => "rgb(1, 2, 3)";
const GIB = 2 ** 30;
const line = (name, x, y, base = null) => ({ name, x, y, base, low: null, high: null, colour: 1, dash: 0, symbol: 0, draw: "bar", hidden: false, group: null, source: null });
const chart = (more = {}) => ({
  id: "sum", unit: "bytes", y_title: "private memory", x_title: "generation", x_unit: "step", bands: [], levels: [], cone: null, marks: [], groups: [], y_range: [9 * GIB, 14 * GIB],
  steps: ["at the beginning", "train<b>", "between", "at the end"],
  lines: [line("memory", [0, 3], [10 * GIB, 12 * GIB]), line("train<b>", [1], [3 * GIB], [10 * GIB]), line("between", [2], [-GIB], [13 * GIB])],
  ...more,
});
const view = { range: [0, 1], group: undefined, narrow: false };

test("each bar begins where the one before ended, and the account is read from top to bottom", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  assert.deepEqual(data.map((trace) => trace.x), [[10, 12], [3], [-1]]);
  assert.deepEqual([data[1].base, data[2].base], [[10], [13]]);
  assert.equal(data[0].base, undefined);
  assert.equal(layout.yaxis.autorange, "reversed");
  assert.deepEqual(layout.yaxis.categoryarray, ["0", "1", "2", "3"]);
  assert.deepEqual(layout.shapes.map(({ x0, y0, y1 }) => [x0, y0, y1]), [[10, 0, 1], [13, 1, 2], [12, 2, 3]]);
});

test("each bar has its number with its sign, the smallest too", () => {
  const texts = (more) => figure(chart(more), theme, colour, view).layout.annotations.map(({ x, y, text }) => [y, x, text]);
  assert.deepEqual(texts(), [[0, 10, "10.00 GiB"], [3, 12, "12.00 GiB"], [1, 13, "+3.00 GiB"], [2, 13, "\u22121.00 GiB"]]);
  assert.deepEqual(texts({ lines: [line("between", [2], [3 * 2 ** 10], [13 * GIB])] })[0][2], "+3.00 KiB");
});

test("a step called like markup stays text", () => {
  const { data, layout } = figure(chart(), theme, colour, view);
  assert.equal(layout.yaxis.ticktext[1], "train&lt;b&gt;");
  assert.deepEqual(data[1].customdata, ["train&lt;b&gt;"]);
});

test("a sum has no place on the axis that the other charts share, and does not move", () => {
  assert.deepEqual(fullRange([chart()]), [-0.5, 1.5]);
  const { layout } = figure(chart(), theme, colour, view);
  assert.ok(layout.xaxis.fixedrange && layout.yaxis.fixedrange);
  assert.deepEqual(layout.xaxis.range, [9, 14]);
});
