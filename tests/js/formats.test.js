import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { chartToCsv } from "../../static/js/csv.js";
import { ago, bytes, byteUnit, count, inUnits, seconds, useDecimal } from "../../static/js/formats.js";

const shared = JSON.parse(readFileSync(new URL("../data/formats.json", import.meta.url)));

for (const [name, write] of Object.entries({ bytes, count, seconds })) {
  for (const [value, text] of shared[name]) {
    test(`${name} of ${value} reads as the server writes it`, () => assert.equal(write(value), text));
  }
}

test("unmeasured values are never shown as zero", () => {
  assert.equal(bytes(undefined), "not measured");
  assert.equal(count(undefined), "not measured");
});

test("a size just below the next unit is not shown as 1024", () => {
  assert.equal(byteUnit(1024 ** 3 - 1).name, "GiB");
});

test("a time in the future is shown as now", () => assert.equal(ago(2000, 1000), "now"));
test("a time long ago is shown in days", () => assert.equal(ago(0, 3 * 86_400_000), "3 d ago"));

test("a text is unchanged until the viewer chooses decimal sizes", () => assert.equal(inUnits("7.10 GiB of 10 GiB"), "7.10 GiB of 10 GiB"));

test("decimal sizes are computed from numbers and from text", () => {
  useDecimal(true);
  try {
    assert.equal(bytes(999), "999 B");
    assert.equal(bytes(1000), "1.00 kB");
    assert.equal(bytes(999_995_000), "1.00 GB");
    assert.equal(bytes(7623566950), "7.62 GB");
    assert.deepEqual(byteUnit(3e9), { factor: 1e9, name: "GB" });
    assert.equal(inUnits("+1,023.50\u00a0MiB per epoch (0.90 GiB to 2 TiB), 12 B and a GiB"), "+1.07\u00a0GB per epoch (966.37 MB to 2.20 TB), 12 B and a GiB");
    assert.equal(inUnits("5 KiBs, x7 MiB"), "5 KiBs, x7.34 MB");
  } finally {
    useDecimal(false);
  }
  assert.equal(bytes(7623566950), "7.10 GiB");
});

// -- csv.js

const chart = (lines, groups = []) => ({ x_title: "generation", unit: "bytes", groups, lines });

test("a name with a quote and a comma stays one field", () => {
  const csv = chartToCsv(chart([{ name: 'a "b", c', x: [0], y: [1] }]));
  assert.equal(csv, 'generation,"a ""b"", c [bytes]"\r\n0,1\r\n');
});

test("values missing from a line are empty, not zero", () => {
  const csv = chartToCsv(chart([{ name: "a", x: [0, 1], y: [5, null] }, { name: "b", x: [1], y: [7] }]));
  assert.deepEqual(csv.split("\r\n").slice(1, 3), ["0,5,", "1,,7"]);
});

test("lines of several groups are labelled with their group", () => {
  const line = { name: "end", group: "rss", x: [0], y: [1] };
  assert.match(chartToCsv(chart([line], [{ id: "rss", label: "RSS" }])), /RSS: end \[bytes\]/);
});

test("names are never formulas, and negative numbers stay numbers", () => {
  const names = ["=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2", "@x", "＝1+1", "＋1", "－1", "＠x", " =1+1"];
  const csv = chartToCsv(chart(names.map((name) => ({ name, x: [0], y: [-5] }))));
  const [header, row] = csv.split("\r\n");
  for (const name of names) assert.ok(header.includes(`,'${name} [bytes]`));
  assert.equal(row, `0${",-5".repeat(names.length)}`);
});

test("names are never formulas with other cell separators either", () => {
  const names = { "a;=1": "a;'=1", "a; -2": "a;' -2", 'a|"=1"': `a|'"=1"`, "a\n@x": "a\n'@x", "a-b, =c": "a-b, =c" };
  for (const [name, safe] of Object.entries(names)) {
    const csv = chartToCsv(chart([{ name, x: [0], y: [1] }]));
    assert.ok(csv.includes(safe.replaceAll('"', '""')), csv);
  }
});
