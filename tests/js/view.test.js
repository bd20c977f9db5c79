import assert from "node:assert/strict";
import { test } from "node:test";

import { covers, followed, lastStretch, stretched, StretchReader, within, withLines } from "../../static/js/zoom_range.js";
import { rangeText, readView, writeView } from "../../static/js/view.js";

const nothing = { range: null, groups: new Map(), lines: new Map(), last: null, log: new Set() };
const generations = { unit: "generation", seconds: 1 };
const minutes = { unit: "time", seconds: 60 };
const hours = { unit: "time", seconds: 3600 };

test("an empty or invalid address shows everything", () => {
  for (const search of ["", "?x=", "?x=..", "?x=3..", "?x=a..b", "?x=4..2", "?x=1..2..3", "?x=1s..2", "?x=s..2s", "?hide=x&show=:y&group=z:", "?last=", "?last=-3", "?last=1.5", "?last=x"]) {
    for (const axis of [generations, minutes]) assert.deepEqual(readView(search, axis), nothing, search);
  }
  assert.deepEqual(readView("?x=60s..90s", generations), nothing);
});

test("a view is restored from its address", () => {
  const view = {
    range: [12.5, 49_999.25],
    groups: new Map([["trend", "rss"]]),
    lines: new Map([["trend", new Map([["after a/b & <c>: d", true], ["generation end", false]])], ["gpu", new Map([["GPU 0 active", true]])]]),
    axis: generations,
    last: 50,
    log: ["trend", "types"],
  };
  const address = writeView("http://h/runs/r?process=rank+0+main&x=1..2&group=old:one", view);
  assert.equal(address.searchParams.get("process"), "rank 0 main");
  const read = readView(address.search, generations);
  assert.deepEqual(read.range, view.range);
  assert.deepEqual(read.groups, view.groups);
  assert.deepEqual([read.last, [...read.log]], [50, ["trend", "types"]]);
  assert.deepEqual(new Map([...read.lines].map(([id, of]) => [id, Object.fromEntries(of)])), new Map([...view.lines].map(([id, of]) => [id, Object.fromEntries(of)])));
});

test("a default view adds nothing to the address", () => {
  assert.equal(writeView("http://h/runs/r?x=1..2&hide=trend:a&g=4&last=10&log=trend", nothing).search, "?g=4");
});

test("positions far into a long run are not rounded", () => {
  assert.equal(rangeText([1_234_567.5, 1_234_569], generations), "1234567.5..1234569");
});

test("a link to a time range works with an axis in hours or minutes", () => {
  const early = writeView("http://h/runs/r", { ...nothing, range: [30, 120], axis: minutes });
  assert.equal(early.search, "?x=1800s..7200s");
  assert.deepEqual(readView(early.search, minutes).range, [30, 120]);
  assert.deepEqual(readView(early.search, hours).range, [0.5, 2]);
});

// -- zoom_range.js

const line = (name, more = {}) => ({ name, group: null, x: [0, 9], y: [1, 2], low: null, high: null, colour: 3, ...more });

test("a range covers only ranges within it", () => {
  assert.equal(covers(null, [1, 2]), false);
  assert.equal(covers([1, 2], null), false);
  assert.equal(covers([1, 4], [0, 3]), false);
  assert.equal(covers([1, 4], [2, 3]), true);
});

test("a line keeps its style and gets the points of the zoomed range", () => {
  const chart = { id: "c", lines: [line("a"), line("a", { group: "rss" }), line("b")] };
  const part = [line("a", { x: [4, 5], y: [7, 8], low: [6, 8], high: [9, 8], colour: 1 }), line("unknown")];
  const [a, rss, b] = withLines(chart, part).lines;
  assert.deepEqual([a.x, a.y, a.low, a.high, a.colour], [[4, 5], [7, 8], [6, 8], [9, 8], 3]);
  assert.deepEqual([rss.x, b.x], [[], []]);
  assert.deepEqual(chart.lines[0].x, [0, 9]);
});

test("lines in hours are drawn in the minutes of the page", () => {
  const found = stretched({ trend: [line("a", { x: [0.5, 2] })] }, 60);
  assert.deepEqual([found.trend[0].x, found.trend[0].y], [[30, 120], [1, 2]]);
  const same = { trend: [] };
  assert.equal(stretched(same, 1), same);
});

/** Create a server that answers when the test says so, unless the request was aborted. */
function server() {
  const asked = [];
  const get = (address, { signal }) => new Promise((answer, fail) => {
    signal.addEventListener("abort", () => fail(Object.assign(new Error("stopped"), { name: "AbortError" })));
    asked.push({ address, answer: (lines, ok = true) => answer({ ok, json: async () => ({ lines }) }) });
  });
  return { asked, get };
}

test("answers to outdated requests are ignored", async () => {
  const { asked, get } = server();
  const taken = [];
  const reader = new StretchReader((range) => range.join(), (range, lines) => taken.push([range, lines]), get);
  const first = reader.want([0, 5]);
  const second = reader.want([1, 2]);
  asked[1].answer({ trend: [] });
  asked[0].answer({ trend: ["old"] });
  await Promise.all([first, second]);
  assert.deepEqual(taken, [[[1, 2], { trend: [] }]]);
  assert.deepEqual(asked.map((each) => each.address), ["0,5", "1,2"]);
});

test("answers after a zoom reset are ignored", async () => {
  const { asked, get } = server();
  const taken = [];
  const reader = new StretchReader(String, (range) => taken.push(range), get);
  const wish = reader.want([0, 5]);
  await reader.want(null);
  asked[0].answer({});
  await wish;
  assert.deepEqual(taken, []);
});

test("a failed request keeps the points of the full view", async () => {
  const taken = [];
  const refusing = new StretchReader(String, (range) => taken.push(range), async () => ({ ok: false }));
  await refusing.want([0, 5]);
  const away = new StretchReader(String, (range) => taken.push(range), async () => { throw new TypeError("Failed to fetch"); });
  await away.want([0, 5]);
  assert.deepEqual(taken, []);
});

test("the last n generations end at the newest reading, not the forecast", () => {
  const chart = (unit, ...xs) => ({ x_unit: unit, lines: xs.map((x) => ({ x })), cone: { x: [9, 40] } });
  assert.deepEqual(lastStretch([chart("generation", [0, 5, 9], []), chart("generation", [0, 12])], 10), [1.5, 12.5]);
  assert.deepEqual(lastStretch([chart("time", [0, 100])], 50), [50, 101]);
  assert.equal(lastStretch([chart("generation", [])], 10), null);
  assert.equal(lastStretch([], 10), null);
});

test("a zoomed range keeps one point on either side", () => {
  const whole = { lines: [line("a", { x: [0, 1, 2, 3, 4], y: [0, 1, 2, 3, 4], low: [0, 0, 0, 0, 0] }), line("b", { x: [0], y: [7] }), line("c", { x: [], y: [] })] };
  const [a, b, c] = within(whole, [1.5, 2.5]).lines;
  assert.deepEqual([a.x, a.y, a.low, a.high], [[1, 2, 3], [1, 2, 3], [0, 0, 0], null]);
  assert.deepEqual([b.x, c.x], [[], []]);
});

test("newer points are appended to those of a zoomed range", () => {
  const chart = { lines: [line("a", { x: [0, 8, 9, 10], y: [1, 2, 3, 4], low: [0, 0, 3, 4] }), line("b", { x: [10], y: [5] })] };
  const [a, b] = followed(chart, [line("a", { x: [7, 8, 9], y: [20, 21, 22], low: [19, 20, 21] })]).lines;
  assert.deepEqual([a.x, a.y, a.low], [[7, 8, 9, 10], [20, 21, 22, 4], [19, 20, 21, 4]]);
  assert.deepEqual([b.x, b.y], [[10], [5]]);
});
