import assert from "node:assert/strict";
import { test } from "node:test";

import { Paced } from "../../static/js/rate_limit.js";
import { BEAT_MS, MOST_STREAMS, Slots } from "../../static/js/stream_slots.js";
import { isOver, markOf, quiet, WORDS } from "../../static/js/run_state.js";

const run = (state, more = {}) => ({ state, reason: "", end_inferred: false, ...more });
const presumed = run("killed", { reason: "memory: 191 GiB of its limit of 192 GiB", end_inferred: true });

test("only a running run is marked live", () => {
  for (const state of ["finished", "failed", "killed", "silent"]) {
    for (const paused of [false, true]) assert.notEqual(markOf("live", run(state), paused), "live");
  }
  assert.equal(markOf("live", run("running"), false), "live");
});

test("runs that are silent or presumed killed are not over", () => {
  assert.equal(isOver(presumed), false);
  assert.equal(isOver(run("silent")), false);
  assert.equal(isOver(run("killed")), true);
});

test("each run is marked by its state", () => {
  assert.equal(markOf("live", presumed, false), "killed");
  assert.equal(markOf("live", run("silent"), false), "silent");
  assert.equal(markOf("closed", run("finished"), false), "ended");
  assert.equal(markOf("closed", run("failed"), false), "failed");
  assert.equal(quiet(run("killed", { reason: "SIGTERM" })), "killed");
  assert.equal(quiet(run("interrupted", { reason: "KeyboardInterrupt" })), "interrupted");
  assert.equal(quiet(run("running")), null);
});

test("disconnected overrides every state but a final one", () => {
  assert.equal(markOf("disconnected", run("silent"), true), "disconnected");
  assert.equal(markOf("disconnected", presumed, false), "disconnected");
  assert.equal(markOf("disconnected", run("finished"), false), "ended");
});

test("paused is shown only for a running run", () => {
  assert.equal(markOf("live", run("running"), true), "paused");
  assert.equal(markOf("closed", run("running"), true), "closed");
  assert.equal(markOf("live", run("silent"), true), "silent");
});

test("a run that missed two heartbeats is marked late", () => {
  assert.equal(markOf("live", run("running"), false, 21), "live");
  assert.equal(markOf("live", run("running"), false, 25), "late");
  assert.equal(markOf("live", run("running"), true, 25), "late");
  assert.equal(markOf("disconnected", run("running"), false, 25), "disconnected");
  assert.equal(markOf("live", run("silent"), false, 70), "silent");
  assert.equal(markOf("live", run("finished"), false, 70), "ended");
  assert.ok(WORDS.late);
});

test("every mark but paused has a word", () => {
  const marks = ["live", "closed", "disconnected"].flatMap((connection) =>
    ["running", "finished", "failed", "killed", "silent"].map((state) => markOf(connection, run(state), false)));
  for (const mark of marks) assert.ok(WORDS[mark], mark);
});

// -- stream_slots.js

/** Create windows of one browser, opened one after the other and sharing a clock. */
function windows(count) {
  let time = 1_000_000;
  const kept = new Map();
  const storage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, text) => kept.set(name, text) };
  const all = Array.from({ length: count }, (_, i) => new Slots(storage, `w${i}`, () => time + i));
  return { all, storage, wait: (ms) => { time += ms; } };
}

test("the number of windows with a stream is limited", () => {
  const { all } = windows(7);
  assert.deepEqual(all.map((each) => each.hold()), [true, true, true, true, false, false, false]);
  assert.ok(MOST_STREAMS <= 4);
});

test("a window keeps its slot until it releases it", () => {
  const { all, wait } = windows(6);
  all.forEach((each) => each.hold());
  wait(BEAT_MS);
  assert.deepEqual(all.map((each) => each.hold()), [true, true, true, true, false, false]);
  all[1].release();
  wait(BEAT_MS);
  assert.deepEqual(all.filter((_, i) => i !== 1).map((each) => each.hold()), [true, true, true, true, false]);
});

test("the slot of a crashed window is reused soon", () => {
  const { all, wait } = windows(5);
  all.forEach((each) => each.hold());
  for (let beat = 0; beat < 4; beat += 1) {
    wait(BEAT_MS);
    for (const each of all.slice(1)) each.hold();
  }
  assert.equal(all[4].hold(), true);
});

test("invalid or blocked storage is treated as a single window", () => {
  const { storage } = windows(0);
  for (const text of ["{", "null", "[1]", '{"a": 3, "b": ["x", 1]}']) {
    storage.setItem("leakline.streams", text);
    assert.equal(new Slots(storage, "me").hold(), true);
  }
  const closed = { getItem() { throw new Error("no"); }, setItem() { throw new Error("no"); } };
  const slots = new Slots(closed, "me");
  assert.equal(slots.hold(), true);
  slots.release();
});

// -- rate_limit.js

function stage(cost) {
  const waits = [];
  let now = 0;
  let done = 0;
  const paced = new Paced(async () => { done += 1; now += cost; }, { wait: (action, ms) => waits.push([action, ms]), now: () => now });
  return { paced, waits, done: () => done, next: async () => { const [action, ms] = waits.shift(); await action(); return ms; } };
}

test("simultaneous requests run once", async () => {
  const { paced, waits, done, next } = stage(10);
  paced.want();
  paced.want();
  paced.want();
  assert.equal(waits.length, 1);
  await next();
  assert.equal(done(), 1);
});

test("a request during the rest runs after it", async () => {
  const { paced, done, next } = stage(10);
  paced.want();
  await next();
  paced.want();
  await next();
  await next();
  assert.equal(done(), 2);
});

test("the rest is ten times the duration, at most half a minute", async () => {
  for (const [cost, rest] of [[10, 1500], [400, 4000], [60_000, 30_000]]) {
    const { paced, waits, next } = stage(cost);
    paced.want();
    await next();
    assert.equal(waits[0][1], rest);
  }
});
