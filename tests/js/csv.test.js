import assert from "node:assert/strict";
import { test } from "node:test";

import { chartToCsv } from "../../static/js/csv.js";

const chart = (lines, groups = []) => ({ x_title: "generation", unit: "bytes", groups, lines });

test("a name with a quote and a comma stays one field", () => {
  const csv = chartToCsv(chart([{ name: 'a "b", c', x: [0], y: [1] }]));
  assert.equal(csv, 'generation,"a ""b"", c [bytes]"\r\n0,1\r\n');
});

test("what one line did not measure is empty, not zero", () => {
  const csv = chartToCsv(chart([{ name: "a", x: [0, 1], y: [5, null] }, { name: "b", x: [1], y: [7] }]));
  assert.deepEqual(csv.split("\r\n").slice(1, 3), ["0,5,", "1,,7"]);
});

test("lines of several groups say which memory they are", () => {
  const line = { name: "end", group: "rss", x: [0], y: [1] };
  assert.match(chartToCsv(chart([line], [{ id: "rss", label: "RSS" }])), /RSS: end \[bytes\]/);
});

test("a name that a spreadsheet would take for a formula is a text, a negative number stays one", () => {
  const names = ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2", "@x", "＝1+1", "＋1", "－1", "＠x", " =1+1"];
  const csv = chartToCsv(chart(names.map((name) => ({ name, x: [0], y: [-5] }))));
  const [header, row] = csv.split("\r\n");
  for (const name of names) assert.ok(header.includes(`,'${name} [bytes]`));
  assert.equal(row, `0${",-5".repeat(names.length)}`);
});

test("nor where a spreadsheet separates cells by something else", () => {
  const names = { "a;=1": "a;'=1", "a; -2": "a;' -2", 'a|"=1"': `a|'"=1"`, "a\n@x": "a\n'@x", "a-b, =c": "a-b, =c" };
  for (const [name, safe] of Object.entries(names)) {
    const csv = chartToCsv(chart([{ name, x: [0], y: [1] }]));
    assert.ok(csv.includes(safe.replaceAll('"', '""')), csv);
  }
});
