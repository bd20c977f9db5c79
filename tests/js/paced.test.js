import assert from "node:assert/strict";
import { test } from "node:test";

import { Paced } from "../../static/js/paced.js";

function stage(cost) {
  const waits = [];
  let now = 0;
  let done = 0;
  const paced = new Paced(async () => { done += 1; now += cost; }, { wait: (action, ms) => waits.push([action, ms]), now: () => now });
  return { paced, waits, done: () => done, next: async () => { const [action, ms] = waits.shift(); await action(); return ms; } };
}

test("wanted many times at once, it is done once", async () => {
  const { paced, waits, done, next } = stage(10);
  paced.want();
  paced.want();
  paced.want();
  assert.equal(waits.length, 1);
  await next();
  assert.equal(done(), 1);
});

test("what is wanted while it rests is done after the rest", async () => {
  const { paced, done, next } = stage(10);
  paced.want();
  await next();
  paced.want();
  await next();
  await next();
  assert.equal(done(), 2);
});

test("a dear job rests ten times as long as it took, and no longer than half a minute", async () => {
  for (const [cost, rest] of [[10, 1500], [400, 4000], [60_000, 30_000]]) {
    const { paced, waits, next } = stage(cost);
    paced.want();
    await next();
    assert.equal(waits[0][1], rest);
  }
});
