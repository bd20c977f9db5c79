import assert from "node:assert/strict";
import { test } from "node:test";

import { appendRows, valueOf, wantedNames } from "../../static/js/append.js";

const source = { names: ["process.anon_bytes", "process.swap_bytes"], process: "p1", phase: "train", kind: "phase_end" };
const chart = () => ({ x_unit: "generation", lines: [{ x: [0], y: [10], source: { ...source } }, { x: [0], y: [1], source: null }] });
const row = (generation, value, more = {}) => ({ generation, kind: "phase_end", phase: "train", samples: { "process.anon_bytes": value }, ...more });

test("rows of another process, phase or kind change nothing", () => {
  const drawn = chart();
  assert.equal(appendRows(drawn, "p2", [row(1, 5)], 0), false);
  assert.equal(appendRows(drawn, "p1", [row(1, 5, { phase: "evolve" }), row(1, 5, { kind: "sample" })], 0), false);
  assert.deepEqual(drawn.lines[0].x, [0]);
});

test("a row that was drawn before changes nothing", () => {
  const drawn = chart();
  assert.equal(appendRows(drawn, "p1", [row(0, 10)], 0), false);
  assert.equal(appendRows(drawn, "p1", [row(3, 30), row(2, 20)], 0), true);
  assert.deepEqual(drawn.lines[0].x, [0, 3]);
});

test("a row without the reading makes no point", () => {
  const drawn = chart();
  assert.equal(appendRows(drawn, "p1", [row(1, null)], 0), false);
  assert.equal(appendRows(drawn, "p1", [row(null, 5)], 0), false);
});

test("a new row continues its line and no other", () => {
  const drawn = chart();
  assert.equal(appendRows(drawn, "p1", [row(1, 12)], 0), true);
  assert.deepEqual(drawn.lines[0].y, [10, 12]);
  assert.deepEqual(drawn.lines[1].y, [1]);
});

test("private memory is what is resident and what is swapped out", () => {
  assert.equal(valueOf(source, { "process.anon_bytes": 5, "process.swap_bytes": 2 }), 7);
  assert.equal(valueOf(source, {}), null);
});

test("on the time axis x is what passed since the start", () => {
  const drawn = { x_unit: "time", x_seconds: 60, lines: [{ x: [], y: [], source: { ...source, phase: "train" } }] };
  appendRows(drawn, "p1", [{ ...row(null, 5), time: 1120 }], 1000);
  assert.deepEqual(drawn.lines[0].x, [2]);
});

test("the stream is asked for each name once", () => {
  assert.deepEqual(wantedNames([chart(), chart()]), source.names);
});
