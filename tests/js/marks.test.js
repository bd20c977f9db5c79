import assert from "node:assert/strict";
import { test } from "node:test";

import { markLines, markTraces } from "../../static/js/marks.js";

const colour = (name) => name;
const mark = (x, kind, text = "", label = "label") => ({ x, kind, text, label });

test("a chart without marks gets nothing", () => {
  assert.deepEqual(markTraces([], colour), []);
});

test("what a training wrote stays text, line by line", () => {
  const [trace] = markTraces([mark(3, "note", "see <script>\nand more"), mark(5, "mark")], colour);
  assert.deepEqual(trace.text, ["note: see &lt;script&gt;<br>and more", "mark: label"]);
});

test("of several at one place the weightiest gives the sign, and all are told", () => {
  const [trace] = markTraces([mark(3, "cleanup", "freed nothing"), mark(3, "fix", "detach")], colour);
  assert.deepEqual([trace.x, trace.marker.symbol], [[3], ["star"]]);
  assert.equal(trace.text[0], "fix: detach<br>cleanup: freed nothing");
});

test("cleanups have signs and no lines, a kind of tomorrow has both", () => {
  const marks = [mark(1, "cleanup"), mark(2, "tomorrow")];
  assert.deepEqual(markLines(marks, colour).map((line) => line.x0), [2]);
  assert.equal(markTraces(marks, colour)[0].marker.symbol.length, 2);
});
