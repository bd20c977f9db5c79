import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { ago, byteUnit, bytes, count, seconds } from "../../static/js/formats.js";

const shared = JSON.parse(readFileSync(new URL("../data/formats.json", import.meta.url)));

for (const [name, write] of Object.entries({ bytes, count, seconds })) {
  for (const [value, text] of shared[name]) {
    test(`${name} of ${value} reads as the server writes it`, () => assert.equal(write(value), text));
  }
}

test("what was not measured is never zero", () => {
  assert.equal(bytes(undefined), "not measured");
  assert.equal(count(undefined), "not measured");
});

test("a size just below the next unit does not read as 1024", () => {
  assert.equal(byteUnit(1024 ** 3 - 1).name, "GiB");
});

test("a time that lies ahead by a skewed clock is now", () => assert.equal(ago(2000, 1000), "now"));
test("a time long ago is told in days", () => assert.equal(ago(0, 3 * 86_400_000), "3 d ago"));
