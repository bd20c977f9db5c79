import assert from "node:assert/strict";
import { test } from "node:test";

import { isOver, markOf, quiet, WORDS } from "../../static/js/standing.js";

const run = (state, more = {}) => ({ state, reason: "", presumed: false, ...more });
const presumed = run("killed", { reason: "memory: 191 GiB of its limit of 192 GiB", presumed: true });

test("no run but one that runs is called live", () => {
  for (const state of ["finished", "failed", "killed", "silent"]) {
    for (const paused of [false, true]) assert.notEqual(markOf("live", run(state), paused), "live");
  }
  assert.equal(markOf("live", run("running"), false), "live");
});

test("who is presumed killed, or is silent, is not over", () => {
  assert.equal(isOver(presumed), false);
  assert.equal(isOver(run("silent")), false);
  assert.equal(isOver(run("killed")), true);
});

test("a run is told as what it is", () => {
  assert.equal(markOf("live", presumed, false), "killed");
  assert.equal(markOf("live", run("silent"), false), "silent");
  assert.equal(markOf("closed", run("finished"), false), "ended");
  assert.equal(markOf("closed", run("failed"), false), "failed");
  assert.equal(quiet(run("killed", { reason: "SIGTERM" })), "killed");
  assert.equal(quiet(run("interrupted", { reason: "KeyboardInterrupt" })), "interrupted");
  assert.equal(quiet(run("running")), null);
});

test("a server that does not answer is told before what it told last, and after what nothing can change", () => {
  assert.equal(markOf("disconnected", run("silent"), true), "disconnected");
  assert.equal(markOf("disconnected", presumed, false), "disconnected");
  assert.equal(markOf("disconnected", run("finished"), false), "ended");
});

test("a pause is told of a run that speaks", () => {
  assert.equal(markOf("live", run("running"), true), "paused");
  assert.equal(markOf("closed", run("running"), true), "closed");
  assert.equal(markOf("live", run("silent"), true), "silent");
});

test("a run that missed two heartbeats has no data, as long as nothing else is known of it", () => {
  assert.equal(markOf("live", run("running"), false, 21), "live");
  assert.equal(markOf("live", run("running"), false, 25), "late");
  assert.equal(markOf("live", run("running"), true, 25), "late");
  assert.equal(markOf("disconnected", run("running"), false, 25), "disconnected");
  assert.equal(markOf("live", run("silent"), false, 70), "silent");
  assert.equal(markOf("live", run("finished"), false, 70), "ended");
  assert.ok(WORDS.late);
});

test("every mark has a word, but for the paused one, which counts what is new", () => {
  const marks = ["live", "closed", "disconnected"].flatMap((connection) =>
    ["running", "finished", "failed", "killed", "silent"].map((state) => markOf(connection, run(state), false)));
  for (const mark of marks) assert.ok(WORDS[mark], mark);
});
