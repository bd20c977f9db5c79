import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { figure } from "../../static/js/figure.js";
import { bytes } from "../../static/js/formats.js";

const theme = JSON.parse(readFileSync(new URL("../../static/plotly-theme.json", import.meta.url)));
const view = { range: [0, 9], zoomed: false, group: null, narrow: false };
const MiB = 2 ** 20;

// The parts of a page that units.js uses, in a window that shares its storage with others.
const stored = new Map();
const heard = new Map();
const drawnAnew = [];
globalThis.localStorage = { getItem: (name) => stored.get(name) ?? null, setItem: (name, value) => stored.set(name, value), removeItem: (name) => stored.delete(name) };
globalThis.addEventListener = (name, action) => heard.set(name, action);
globalThis.MutationObserver = class { observe() {} };
globalThis.Element = class { closest() { return this; } };
globalThis.document = { body: new Element(), querySelectorAll: () => [], dispatchEvent: (event) => drawnAnew.push(event.type) };
const { startUnits, unitsNow } = await import("../../static/js/units.js");
startUnits();

const line = (name, y) => ({
  name, x: [0, 1], y, low: null, high: null, colour: 1, dash: 0, symbol: 0, draw: "line", hidden: false, group: null,
});
const chart = (...lines) => ({ id: "memory", unit: "bytes", y_title: "memory", x_title: "epoch", x_unit: "generation", lines, bands: [], levels: [], cone: null, marks: [], groups: [], y_range: null });
const drawn = (of) => {
  const { data, layout } = figure(of, theme, () => "rgb(1, 2, 3)", view);
  return { y: data.map((trace) => trace.y), hover: data.map((trace) => trace.hovertemplate), axis: layout.yaxis.ticksuffix };
};

test("lines that grow into the next unit change it for the entire chart", () => {
  const live = chart(line("small", [100 * MiB, 100 * MiB]), line("large", [900 * MiB, 1000 * MiB]));
  assert.equal(drawn(live).axis, " MiB");
  for (const [line, y] of [[live.lines[0], 128 * MiB], [live.lines[1], 2048 * MiB]]) {
    line.x.push(2);
    line.y.push(y);
  }
  const after = drawn(live);
  assert.equal(after.axis, " GiB");
  assert.deepEqual(after.y.map((y) => y.at(-1)), [0.125, 2]);
  assert.deepEqual(after.y.map((y) => y[0]), [100 / 1024, 900 / 1024]);
  for (const template of after.hover) assert.ok(template.includes(" GiB<extra>"));
});

test("units chosen in another window apply here too", () => {
  const live = chart(line("small", [MiB, MiB]), line("large", [2 ** 30, 2 ** 30]));
  assert.equal(drawn(live).axis, " GiB");
  stored.set("leakline.units", "decimal");
  heard.get("storage")({ key: "leakline.units" });
  assert.equal(unitsNow(), "decimal");
  assert.deepEqual(drawnAnew.splice(0), ["leakline:theme"]);
  assert.deepEqual([drawn(live).axis, bytes(2 ** 30)], [" GB", "1.07 GB"]);
  stored.clear();
  heard.get("storage")({ key: null });
  assert.deepEqual([drawn(live).axis, bytes(2 ** 30), drawnAnew.splice(0).length], [" GiB", "1.00 GiB", 1]);
});

test("other stored values do not change the units", () => {
  stored.set("leakline.units", "decimal");
  heard.get("storage")({ key: "leakline.streams" });
  assert.deepEqual([bytes(2 ** 30), drawnAnew.length], ["1.00 GiB", 0]);
  stored.clear();
});
