import assert from "node:assert/strict";
import { test } from "node:test";

import { rangeText, readView, writeView } from "../../static/js/view.js";

const nothing = { range: null, groups: new Map(), lines: new Map() };
const generations = { unit: "generation", seconds: 1 };
const minutes = { unit: "time", seconds: 60 };
const hours = { unit: "time", seconds: 3600 };

test("an address that says nothing, or nonsense, shows everything", () => {
  for (const search of ["", "?x=", "?x=..", "?x=3..", "?x=a..b", "?x=4..2", "?x=1..2..3", "?x=1s..2", "?x=s..2s", "?hide=x&show=:y&group=z:"]) {
    for (const axis of [generations, minutes]) assert.deepEqual(readView(search, axis), nothing, search);
  }
  assert.deepEqual(readView("?x=60s..90s", generations), nothing);
});

test("what was seen is read back from the address that was written", () => {
  const view = {
    range: [12.5, 49_999.25],
    groups: new Map([["trend", "rss"]]),
    lines: new Map([["trend", new Map([["after a/b & <c>: d", true], ["generation end", false]])], ["gpu", new Map([["GPU 0 active", true]])]]),
    axis: generations,
  };
  const address = writeView("http://h/runs/r?process=rank+0+main&x=1..2&group=old:one", view);
  assert.equal(address.searchParams.get("process"), "rank 0 main");
  const read = readView(address.search, generations);
  assert.deepEqual(read.range, view.range);
  assert.deepEqual(read.groups, view.groups);
  assert.deepEqual(new Map([...read.lines].map(([id, of]) => [id, Object.fromEntries(of)])), new Map([...view.lines].map(([id, of]) => [id, Object.fromEntries(of)])));
});

test("a view of everything leaves nothing in the address", () => {
  assert.equal(writeView("http://h/runs/r?x=1..2&hide=trend:a&g=4", nothing).search, "?g=4");
});

test("a place far into a long run is not rounded away", () => {
  assert.equal(rangeText([1_234_567.5, 1_234_569], generations), "1234567.5..1234569");
});

test("a link to a time shows the same when the axis is in hours instead of minutes", () => {
  const early = writeView("http://h/runs/r", { ...nothing, range: [30, 120], axis: minutes });
  assert.equal(early.search, "?x=1800s..7200s");
  assert.deepEqual(readView(early.search, minutes).range, [30, 120]);
  assert.deepEqual(readView(early.search, hours).range, [0.5, 2]);
});
