import assert from "node:assert/strict";
import { test } from "node:test";

import { BEAT_MS, MOST_STREAMS, Slots } from "../../static/js/slots.js";

/** Windows of one browser, opened one after the other, with one clock. */
function windows(count) {
  let time = 1_000_000;
  const kept = new Map();
  const storage = { getItem: (name) => kept.get(name) ?? null, setItem: (name, text) => kept.set(name, text) };
  const all = Array.from({ length: count }, (_, i) => new Slots(storage, `w${i}`, () => time + i));
  return { all, storage, wait: (ms) => { time += ms; } };
}

test("no more windows hold a stream than leave room for everything else", () => {
  const { all } = windows(7);
  assert.deepEqual(all.map((each) => each.hold()), [true, true, true, true, false, false, false]);
  assert.ok(MOST_STREAMS <= 4);
});

test("a window keeps its place at each beat, and one that goes gives it to the next", () => {
  const { all, wait } = windows(6);
  all.forEach((each) => each.hold());
  wait(BEAT_MS);
  assert.deepEqual(all.map((each) => each.hold()), [true, true, true, true, false, false]);
  all[1].release();
  wait(BEAT_MS);
  assert.deepEqual(all.filter((_, i) => i !== 1).map((each) => each.hold()), [true, true, true, true, false]);
});

test("a window that ended without a word is not waited for long", () => {
  const { all, wait } = windows(5);
  all.forEach((each) => each.hold());
  for (let beat = 0; beat < 4; beat += 1) {
    wait(BEAT_MS);
    for (const each of all.slice(1)) each.hold();
  }
  assert.equal(all[4].hold(), true);
});

test("what somebody else wrote there, or storage that may not be used, is as if alone", () => {
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
