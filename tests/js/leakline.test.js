import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { bandOf, BANDS, init, toWire } from "../../agent_client/js/leakline.js";
import { bytes, count, inUnits, useDecimal } from "../../static/js/formats.js";
import { begin, fakeServer, fakeTf, listen } from "./training.js";

test("a band begins above its limit", () => {
  const bands = [0, 99, 100, 200, 201, 500, 501, 4038].map((tensors) => bandOf(tensors));
  assert.deepEqual(bands, ["normal", "normal", "elevated", "elevated", "high", "high", "critical", "critical"]);
  assert.equal(bandOf(501, { ...BANDS, critical: 1000 }), "high");
});

test("wrong options are reported immediately with their value", () => {
  const good = { tf: fakeTf(), mode: "disabled" }, selfish = {};
  selfish.own = selfish;
  for (const [name, value] of [["tf", {}], ["tf", undefined], ["server", "ftp://x"], ["server", ""], ["project", 3], ["unit", ""], ["mode", "offline"],
    ["runId", "a b"], ["total", -1], ["total", 2.5], ["phases", "train"], ["tags", [1]], ["intervalSeconds", -1], ["sendSeconds", "1"], ["bands", { elevated: 300 }],
    ["config", { seed: 1n }], ["config", selfish], ["config", "lr=1"], ["config", [1]],
    ["config", { text: "é".repeat(40_000) }]]) {
    assert.throws(() => init({ ...good, [name]: value }), (error) => error instanceof TypeError && error.message.startsWith(`leakline.init: ${name} is `), name);
  }
});

test("a configuration is sent as it was at init", async () => {
  const server = fakeServer(), config = { seed: 1, layers: [8, 8] };
  const run = begin(server, { config });
  config.layers.push(config);
  config.seed = 2n;
  await run.finish();
  assert.deepEqual(server.asked[0].json.config, { seed: 1, layers: [8, 8] });
  assert.equal(run._outbox.waiting, 0);
});

test("without a project the server chooses one", async () => {
  for (const [project, told] of [[undefined, false], ["ppo", true]]) {
    const server = fakeServer();
    await begin(server, { project }).finish();
    assert.equal("project" in server.asked[0].json, told);
  }
});

test("a disabled run sends nothing and runs the given functions", async () => {
  const server = fakeServer();
  const run = begin(server, { mode: "disabled" });
  run.generation(0);
  assert.equal(run.phase("train", () => 7), 7);
  assert.equal(await run.phase("train", async () => 8), 8);
  assert.throws(() => run.phase("train", () => { throw new RangeError("mine"); }), /mine/);
  assert.deepEqual(run._phases, []);
  assert.equal(run.check(), null);
  run.registerCleanup("all", () => assert.fail());
  await run.cleanup();
  await run.finish();
  assert.deepEqual(server.asked, []);
});

test("a second loop continues the axis with one warning", async () => {
  const server = fakeServer();
  const said = await listen(async () => {
    const run = begin(server, { quiet: false });
    for (const number of [0, 1, 2, 1, 2, 3]) run.generation(number);
    await run.finish();
  });
  const ends = server.rows().filter((row) => row.kind === "generation_end");
  assert.deepEqual(ends.map((row) => row.generation), [0, 1, 2, 3, 4, 5]);
  assert.equal(ends[5].label, "generation 5 (called 3): end");
  assert.equal(said.filter((line) => line.includes("came again")).length, 1);
});

test("generations and phases are snapshots in order, with paths", async () => {
  const server = fakeServer();
  const run = begin(server);
  for (const generation of [0, 1]) {
    run.generation(generation);
    run.phase("train", () => run.phase("clip", () => {}));
  }
  await run.finish();
  const rows = server.rows().map(({ kind, phase, generation }) => [kind, phase, generation]);
  const once = (g) => [["phase_end", "train/clip", g], ["phase_end", "train", g], ["generation_end", null, g]];
  assert.deepEqual(rows, [["baseline", null, null], ...once(0), ...once(1), ["finish", null, null]]);
  const [batch] = server.batches();
  assert.equal(batch.first_sequence, 0);
  assert.ok(batch.columns.series["generation.seconds"][3] >= 0);
  assert.equal(batch.columns.series["generation.seconds"][1], null);
  assert.ok("phase.train/clip.seconds" in batch.columns.series);
  assert.equal(server.rows()[1].label, "generation 0: after train/clip");
  const ending = server.asked.at(-1);
  assert.deepEqual([ending.method, ending.json.state, ending.json.instance], ["PATCH", "finished", batch.process.instance]);
});

test("a phase returns the result of its body or its error", async () => {
  const server = fakeServer();
  const run = begin(server);
  assert.equal(run.phase("a", () => 5), 5);
  assert.equal(await run.phase("b", async () => 6), 6);
  assert.throws(() => run.phase("c", () => { throw new RangeError("mine"); }), /mine/);
  await assert.rejects(run.phase("d", async () => { throw new RangeError("mine too"); }), /mine too/);
  assert.equal(await run.generation(3, async () => "end"), "end");
  await run.finish();
  assert.deepEqual(server.rows().map((row) => row.phase), [null, "a", "b", "c", "d", null, null]);
  const exceptions = server.events().filter((event) => event.kind === "exception");
  assert.deepEqual(exceptions.map(({ name, data, sequence }) => [name, data.type, sequence]), [["c", "RangeError", 3], ["d", "RangeError", 4]]);
});

test("text cut within a character stays valid", async () => {
  const server = fakeServer(), name = `${"x".repeat(199)}\u{1f600}`;
  const run = begin(server, { name, config: { half: "\ud83d" }, tags: ["\u{1f600}"] });
  run.phase(name, () => {});
  run.mark(name);
  run.note(`${"x".repeat(3_999)}\u{1f600}`);
  run.phase("no escape: \\ud83d", () => {});
  await run.finish();
  for (const { text } of server.asked) assert.ok(!/(^|[^\\])(\\\\)*\\ud[89a-f]/.test(text), text);
  assert.deepEqual(server.rows().map((row) => row.phase).slice(1, 3), [`${"x".repeat(199)}\ufffd`, "no escape: \\ud83d"]);
  assert.deepEqual([server.asked[0].json.name, server.asked[0].json.tags], [name, ["\u{1f600}"]]);
});

test("overlapping phases end once each", async () => {
  const server = fakeServer();
  const run = begin(server);
  const gates = [Promise.withResolvers?.() ?? gate(), Promise.withResolvers?.() ?? gate()];
  const both = [run.phase("a", () => gates[0].promise), run.phase("b", () => gates[1].promise)];
  gates[0].resolve();
  await both[0];
  gates[1].resolve();
  await both[1];
  run.phase("c", () => {});
  await run.finish();
  assert.deepEqual(server.rows().map((row) => row.phase), [null, "a", "a/b", "c", null]);
});

function gate() {
  let resolve;
  const promise = new Promise((done) => { resolve = done; });
  return { promise, resolve };
}

test("no internal error reaches the training", async () => {
  const said = await listen(async () => {
    const tf = { memory() { throw new Error("no backend"); } };
    const run = init({ tf, server: "http://leakline.test", mode: "online", name: "n", intervalSeconds: 0, fetch: () => { throw new Error("no fetch"); } });
    run.generation("x");
    run.generation(1);
    assert.equal(run.check(), null);
    let times = 0;
    assert.equal(run.phase(Symbol("s"), () => { times += 1; return 1; }), 1);
    assert.equal(run.phase(Object.create(null), () => { times += 1; return 2; }), 2);
    assert.equal(times, 2);
    run.gauge("g", NaN);
    run.mark(undefined);
    run.registerCleanup("c", "no function");
    await run.cleanup();
    await run.finish();
    assert.ok(run._losses.client_errors > 0);
    assert.equal(run._losses.bad_cleanups, 1);
  });
  assert.ok(said.some((line) => line.includes("the training goes on")));
});

test("unmeasured values are omitted and never zero", async () => {
  const server = fakeServer();
  const tf = { memory: () => ({ numTensors: 3, numBytes: NaN }) };
  await begin(server, { tf }).finish();
  const { series } = server.batches()[0].columns;
  assert.deepEqual(series["tfjs.tensors"], [3, 3]);
  assert.ok(!("tfjs.bytes" in series) && !("tfjs.buffers" in series));
  assert.ok(Number.isInteger(series["process.rss_bytes"][0]));
});

test("rows become columns, with null for missing readings", () => {
  const row = (series) => ({ time: 1, monotonic: 2, generation: null, phase: null, label: "", kind: "manual", series, events: [{ kind: "mark", name: "m" }] });
  const wire = toWire([row({ a: 1 }), row({ b: 2 })], 7, { instance: "i" }, { queue_full: 1 });
  assert.deepEqual(wire.columns.series, { a: [1, null], b: [null, 2] });
  assert.deepEqual(wire.events.map((event) => event.sequence), [7, 8]);
  assert.deepEqual(wire.lost, { queue_full: 1 });
});

test("without an answer the same batch is sent again unchanged", async () => {
  const server = fakeServer([201, { attempt: 2 }], "down");
  const run = begin(server);
  await run.flush();
  await run.finish();
  const texts = server.asked.filter((each) => each.path.endsWith("/batches")).map((each) => each.text);
  assert.equal(texts[0], texts[1]);
  const batches = server.batches();
  assert.deepEqual(batches.map((batch) => batch.first_sequence), [0, 0, 1]);
  assert.equal(batches[0].process.attempt, 2);
});

test("retry-after is respected", async () => {
  const server = fakeServer(undefined, [503, {}, { "retry-after": "600" }]);
  const run = begin(server);
  await run.flush();
  assert.equal(server.asked.length, 2);
  await run.flush();
  run.generation(1);
  await run.finish();
  // Only the end is sent; waiting snapshots are counted.
  assert.deepEqual(server.asked.map((each) => each.method), ["POST", "POST", "PATCH"]);
  assert.equal(run._outbox.waiting, 3);
});

test("during an outage a bounded queue keeps the most important snapshots", async () => {
  const server = fakeServer(...Array(2).fill("down"));
  const run = begin(server);
  await run.flush();
  for (let generation = 0; generation < 900; generation += 1) {
    run.generation(generation);
    run.phase("train", () => {});
    run.mark(`m${generation}`);
    run.snapshot();
  }
  assert.equal(run._outbox.waiting, 2000);
  await run.finish();
  assert.equal(server.batches().at(-1).lost.queue_full, run._losses.queue_full);
  const rows = server.rows();
  assert.equal(new Set(rows.filter((row) => row.kind === "generation_end").map((row) => row.generation)).size, 900);
  assert.equal(rows.filter((row) => row.kind === "phase_end").length, 900 - run._losses.queue_full);
  assert.equal(server.events().filter((event) => event.kind === "mark").length, 900);
  const sequences = server.batches().map((batch) => [batch.first_sequence, batch.count]);
  sequences.reduce((next, [first, count]) => (assert.equal(first, next), first + count), 0);
});

test("phase ends per generation are limited and counted", async () => {
  const server = fakeServer();
  const run = begin(server);
  run.generation(0);
  for (let i = 0; i < 250; i += 1) run.phase("step", () => {});
  await run.finish();
  assert.equal(server.rows().filter((row) => row.kind === "phase_end").length, 200);
  assert.equal(run._losses.phase_limit, 50);
});

test("endless new phase names make a bounded number of series", async () => {
  const server = fakeServer();
  const run = begin(server);
  for (let generation = 0; generation < 3; generation += 1) {
    run.generation(generation);
    for (let i = 0; i < 150; i += 1) run.phase(`step ${150 * generation + i}`, () => {});
  }
  await run.finish();
  const names = new Set(server.batches().flatMap((batch) => Object.keys(batch.columns.series)));
  assert.equal([...names].filter((name) => name.startsWith("phase.")).length, 256);
});

test("a batch that is too large is sent in halves", async () => {
  const server = fakeServer(undefined, 413);
  const run = begin(server);
  run.snapshot();
  run.snapshot();
  run.snapshot();
  await run.flush();
  assert.deepEqual(server.batches().map((batch) => [batch.first_sequence, batch.count]), [[0, 4], [0, 2], [2, 2]]);
  await run.finish();
});

test("permanently refused batches are counted and not sent again", async () => {
  const server = fakeServer(undefined, 422);
  const run = begin(server);
  await run.flush();
  run.snapshot();
  await run.finish();
  assert.deepEqual(server.batches().map((batch) => [batch.first_sequence, batch.lost.refused]), [[0, undefined], [1, 1]]);
});

test("after 401 the client stops sending and explains it once", async () => {
  const server = fakeServer(401);
  const said = await listen(async () => {
    const run = begin(server, { quiet: false, token: "secret" });
    await run.flush();
    run.snapshot();
    await run.finish();
  });
  assert.equal(server.asked.length, 1);
  assert.equal(server.asked[0].headers.authorization, "Bearer secret");
  assert.equal(said.filter((line) => line.includes("no, thank you")).length, 1);
  assert.ok(!said.join().includes("secret"));
});

test("a run is announced again to a server that forgot it", async () => {
  const server = fakeServer(undefined, 404);
  await begin(server).finish();
  assert.deepEqual(server.asked.map((each) => each.path.split("/").at(-1)).slice(0, 4), ["runs", "batches", "runs", "batches"]);
});

test("a worse band is reported once with its multiple of normal", async () => {
  const server = fakeServer(), tf = fakeTf(87);
  const said = await listen(async () => {
    const run = begin(server, { tf, quiet: false });
    for (const tensors of [87, 99, 4038, 4038, 4038, 87]) {
      tf.tensors = tensors;
      assert.equal(run.check().band, bandOf(tensors));
    }
    await run.finish();
  });
  const told = server.events().map(({ kind, name, data }) => [kind, name, data.text, data.above]);
  assert.deepEqual(told, [["warning", "tensors critical", "4038 tensors (3.85 MiB), 40 times as many as normal: dispose of what the loop makes, clipped gradients too, or register a cleanup", 500], ["mark", "tensors normal", "87 tensors (0.08 MiB), 2 steps above 200 since a band was last reported", null]]);
  assert.equal(said.filter((line) => line.includes("4038")).length, 1);
});

test("each band worse than normal is reported with advice", async () => {
  const server = fakeServer(), tf = fakeTf(87);
  await listen(async () => {
    const run = begin(server, { tf });
    for (const tensors of [99, 100, 200, 201, 500, 501]) {
      tf.tensors = tensors;
      run.check();
    }
    await run.finish();
  });
  const told = server.events().filter((event) => event.kind === "warning").map(({ name, data }) => [name, data.tensors, data.text.split(": ")[1]]);
  assert.deepEqual(told, [
    ["tensors elevated", 100, "watch whether it comes down again after each step"],
    ["tensors high", 201, "look for tensors that are neither in tf.tidy() nor disposed of"],
    ["tensors critical", 501, "dispose of what the loop makes, clipped gradients too, or register a cleanup"],
  ]);
});

test("the measurements of report 003 are shown exactly", async () => {
  const server = fakeServer(), tf = { ...fakeTf(4038), memory: () => ({ numTensors: 4038, numDataBuffers: 4038, numBytes: 156_300_000 }) };
  await listen(async () => {
    const run = begin(server, { tf });
    run.check();
    await run.finish();
  });
  const [sent] = server.events().filter((event) => event.kind === "warning");
  assert.deepEqual([sent.data.tensors, sent.data.bytes], [4038, 156_300_000]);
  useDecimal(true);
  try {
    assert.deepEqual([bytes(sent.data.bytes), bytes(12_400_000), count(sent.data.tensors)], ["156.30 MB", "12.40 MB", "4,038"]);
    assert.match(inUnits(sent.data.text), /^4038 tensors \(156\.30 MB\), 40 times/);
  } finally {
    useDecimal(false);
  }
});

test("steps above the limit are counted in the next event or at the end", async () => {
  const server = fakeServer(), tf = fakeTf(87);
  let now = 0;
  const run = begin(server, { tf, intervalSeconds: 10, clock: () => now });
  // The second reading is too early to be reported, but its step is counted.
  for (const [second, tensors] of [[0, 250], [1, 250], [2, 87], [3, 250], [4, 150], [20, 250], [21, 250], [22, 250]]) {
    now = second;
    tf.tensors = tensors;
    run.check();
  }
  run.generation(1);
  await run.finish();
  const told = server.events().map(({ kind, name, data }) => [kind, name, data.steps_above_high]);
  assert.deepEqual(told, [
    ["warning", "tensors high", 1], ["mark", "tensors normal", 1], ["mark", "tensors elevated", 1], ["warning", "tensors high", 1],
    ["mark", "tensors at the end", 2],
  ]);
  assert.equal(server.events().at(-1).data.text, "2 steps above 200 tensors since a band was last reported");
});

test("buffers are sent with each snapshot", async () => {
  const server = fakeServer();
  const tf = { buffers: 4, memory() { return { numTensors: 9, numDataBuffers: this.buffers, numBytes: 900 }; } };
  const run = begin(server, { tf });
  tf.buffers = 7;
  run.snapshot();
  await run.finish();
  assert.deepEqual(server.batches().flatMap((batch) => batch.columns.series["tfjs.buffers"]), [4, 7, 7]);
});

test("a change of reliability of bytes is sent once with the next snapshot", async () => {
  const server = fakeServer();
  const tf = { unreliable: undefined, memory() { return { numTensors: 9, numDataBuffers: 9, numBytes: 900, unreliable: this.unreliable }; } };
  const run = begin(server, { tf });
  await run.flush();
  for (let generation = 0; generation < 7; generation += 1) {
    run.generation(generation);
    tf.unreliable = generation >= 3 && generation < 5 ? true : undefined;
    run.phase("train", () => run.check());
  }
  await run.finish();
  assert.equal(server.asked[0].json.environment.tfjs_memory_unreliable, false);
  const told = server.events().map(({ kind, name, generation, phase, data, sequence }) => [kind, name, generation, phase, data.tfjs_memory_unreliable, server.rows()[sequence].generation]);
  assert.deepEqual(told, [["mark", "tfjs bytes unreliable", 3, "train", true, 3], ["mark", "tfjs bytes reliable", 5, "train", false, 5]]);
});

test("a count that oscillates around a limit is not reported at each step", async () => {
  // A hundred steps in ten seconds. The default interval is ten seconds, the minimum one second.
  for (const [intervalSeconds, told] of [[undefined, 1], [10, 1], [4, 3], [2, 5], [0.1, 10], [0, 10]]) {
    const server = fakeServer(), tf = fakeTf(87);
    let now = 0;
    const run = begin(server, { tf, intervalSeconds, clock: () => now });
    for (let step = 0; step < 100; step += 1) {
      tf.tensors = step % 2 ? 250 : 87;
      now = step / 10;
      run.check();
    }
    await run.finish();
    assert.equal(server.events().filter((event) => event.kind === "warning").length, told, `${intervalSeconds} seconds`);
  }
});

test("the interval of background readings is configurable and ends with the run", async (t) => {
  t.mock.timers.enable({ apis: ["setInterval"] });
  for (const [intervalSeconds, read] of [[undefined, 3], [10, 3], [1, 30], [30, 1], [31, 0], [0, 0]]) {
    const server = fakeServer();
    const run = begin(server, { intervalSeconds });
    for (let second = 0; second < 30; second += 1) t.mock.timers.tick(1000);
    await run.finish();
    t.mock.timers.tick(100_000);
    const samples = server.rows().filter((row) => row.kind === "sample");
    assert.equal(samples.length, read, `${intervalSeconds} seconds`);
    assert.ok(samples.every((row) => row.tensors === 10));
  }
});

test("limits can be configured or disabled", async () => {
  const tf = fakeTf(400);
  assert.equal(begin(fakeServer(), { tf, bands: { elevated: 500, high: 600, critical: 700 } }).check().band, "normal");
  assert.equal(begin(fakeServer(), { tf, bands: false }).check().band, "normal");
});

test("only registered functions clean up", async () => {
  const server = fakeServer(), tf = fakeTf(4038);
  const run = begin(server, { tf });
  run.registerCleanup("by hand", () => assert.fail("nobody asked"));
  run.check();
  assert.equal(tf.tensors, 4038);
  await run.finish();
});

test("an automatic cleanup runs at a check and reports before, after and freed", async () => {
  const server = fakeServer(), tf = fakeTf(600);
  const run = begin(server, { tf });
  run.registerCleanup("dispose", () => { tf.tensors = 87; }, { above: 500 });
  assert.equal(tf.tensors, 600);
  run.check();
  assert.equal(tf.tensors, 87);
  await run.finish();
  const { name, data } = server.events().find((event) => event.kind === "cleanup");
  assert.equal(name, "dispose");
  assert.deepEqual([data.before_bytes, data.after_bytes, data.freed_bytes], [600_000, 87_000, 513_000]);
  assert.deepEqual(data.counts, { "tf.Tensor": [600, 87] });
  assert.equal(data.because, "tfjs.tensors is 600, above 500");
  assert.ok(!server.events().some((event) => event.name.includes("does not help")));
});

test("an ineffective cleanup is reported and does not run at each step", async () => {
  const server = fakeServer(), tf = fakeTf(600);
  let now = 0, times = 0;
  const run = begin(server, { tf, intervalSeconds: 10, clock: () => now });
  run.registerCleanup("dispose", () => { times += 1; }, { above: 500 });
  for (let step = 0; step < 30; step += 1) {
    run.check();
    now += 1;
  }
  assert.equal(times, 3);
  await run.finish();
  assert.equal(server.events().filter((event) => event.name === "dispose does not help" && event.kind === "warning").length, 3);
});

test("a failing cleanup does no harm and is reported", async () => {
  const server = fakeServer(), tf = fakeTf(600);
  const run = begin(server, { tf });
  run.registerCleanup("now", () => { throw new RangeError("x"); }, { above: 500 });
  run.registerCleanup("later", async () => { throw new TypeError("x"); }, { above: 500 });
  run.check();
  await run.finish();
  const errors = server.events().filter((event) => event.kind === "cleanup").map((event) => [event.name, event.data.error]);
  assert.deepEqual(errors.sort(), [["later", "TypeError"], ["now", "RangeError"]]);
});

test("a forced collection happens only if requested and available", async () => {
  const run = begin(fakeServer());
  run.registerCleanup("collects", () => {}, { collect: true });
  await run.cleanup();
  let times = 0;
  globalThis.gc = () => { times += 1; };
  try {
    await run.cleanup();
    run.registerCleanup("collects", () => {});
    await run.cleanup();
  } finally {
    delete globalThis.gc;
  }
  assert.equal(times, 1);
  await run.finish();
});

test("a request of a person is executed once at the next check", async () => {
  const wish = { id: "9", kind: "cleanup", asked_by: "person" }, search = { id: "10", kind: "find_holders", type: "a.B" };
  const server = fakeServer(undefined, [200, { accepted: 1, requests: [wish, search, "nonsense"] }], [200, { accepted: 1, requests: [wish, search] }]);
  const tf = fakeTf(300);
  let times = 0;
  const run = begin(server, { tf, quiet: false });
  await listen(async () => {
    run.registerCleanup("dispose", () => { times += 1; tf.tensors = 80; });
    run.registerCleanup("never asked", () => assert.fail(), { onRequest: false });
    await run.flush();
    assert.equal(times, 0);
    run.check();
    assert.equal(times, 1);
    await run.flush();
    run.check();
    await run.finish();
  });
  assert.equal(times, 1);
  const answers = server.events().filter((event) => event.data.request).map((event) => [event.name, event.data.request]);
  assert.deepEqual(answers.sort(), [["cleanup: done", "9"], ["find_holders a.B: refused: JavaScript cannot look into its own heap", "10"]]);
});

test("a quiet run refuses requests", async () => {
  const server = fakeServer(undefined, [200, { requests: [{ id: "1", kind: "cleanup" }] }]);
  const run = begin(server);
  run.registerCleanup("dispose", () => assert.fail());
  await run.flush();
  run.check();
  await run.finish();
  assert.ok(server.events().some((event) => event.name === "cleanup: refused: the run is quiet"));
});

test("the callbacks of fit make each epoch a generation", async () => {
  const server = fakeServer();
  const run = begin(server, { unit: "epoch" });
  const fit = run.callbacks();
  for (const epoch of [0, 1]) {
    await fit.onEpochBegin(epoch);
    await fit.onBatchEnd(0, {});
  }
  await fit.onTrainEnd();
  await run.finish();
  assert.deepEqual(server.rows().filter((row) => row.kind === "generation_end").map((row) => row.generation), [0, 1]);
});

test("memory statistics can be queried", () => {
  const stats = begin(fakeServer(), { tf: fakeTf(150) }).stats();
  assert.deepEqual([stats["tfjs.tensors"], stats["tfjs.bytes"], stats.band], [150, 150_000, "elevated"]);
});

test("a check takes far less than a tenth of a millisecond", () => {
  const run = begin(fakeServer());
  const took = () => {
    const began = performance.now();
    for (let i = 0; i < 1000; i += 1) run.check();
    return performance.now() - began;
  };
  took();
  assert.ok(Math.min(took(), took(), took()) < 100);
});

test("a token can be read from a file, and a wrong file is named without its content", async (t) => {
  const server = fakeServer();
  const folder = mkdtempSync(join(tmpdir(), "leakline-"));
  const file = (name, content) => {
    writeFileSync(join(folder, name), content);
    return join(folder, name);
  };
  t.after(() => {
    delete process.env.LEAKLINE_TOKEN_FILE;
    delete process.env.LEAKLINE_TOKEN;
    rmSync(folder, { recursive: true });
  });
  const wrong = [
    [join(folder, "missing"), "ENOENT"], [folder, "is not a regular file"], [file("empty", "\n"), "is empty"],
    [file("two", "SECRET\nSECRET"), "one line"], [file("binary", "SECRET\u00ff"), "printable ASCII"],
  ];
  for (const [path, why] of wrong) {
    process.env.LEAKLINE_TOKEN_FILE = path;
    const named = (error) => error instanceof TypeError && error.message.includes("LEAKLINE_TOKEN_FILE") && error.message.includes(why) && !/SECRET|\n/.test(error.message);
    assert.throws(() => begin(server), named, why);
  }
  process.env.LEAKLINE_TOKEN_FILE = file("token", "leakline_ingest_1\n");
  process.env.LEAKLINE_TOKEN = "leakline_ingest_2";
  assert.throws(() => begin(server), /LEAKLINE_TOKEN is also set; set only one of the two/);
  delete process.env.LEAKLINE_TOKEN;
  await begin(server).finish();
  assert.equal(server.asked[0].headers.authorization, "Bearer leakline_ingest_1");
  await begin(server, { token: "argument" }).finish();
  assert.equal(server.asked.at(-1).headers.authorization, "Bearer argument");
});

// -- leaving.js

/** Record beacons, which the browser accepts while `takes` is true. */
function beacons(takes = () => true) {
  const sent = [];
  const sendBeacon = (url, blob) => takes() && Boolean(sent.push({ path: new URL(url).pathname, blob }));
  Object.defineProperty(globalThis, "navigator", { value: { sendBeacon }, configurable: true });
  const batches = () => Promise.all(sent.filter((each) => each.path.endsWith("/batches")).map(async (each) => JSON.parse(await each.blob.text())));
  return { sent, batches, bytes: () => sent.reduce((sum, each) => sum + each.blob.size, 0) };
}

const snapshots = (run, many, size) => {
  for (let i = 0; i < many; i += 1) {
    run.note("x".repeat(size));
    run.snapshot(`s${i}`);
  }
};
const turn = () => new Promise((resolve) => { setImmediate(resolve); });

test("a closing page sends as many snapshots as fit, and its end", async () => {
  const server = fakeServer(), { batches, bytes } = beacons();
  const run = begin(server);
  await run.flush();
  snapshots(run, 150, 3_000);
  run._leave(true);
  const ends = server.asked.filter((each) => each.method === "PATCH");
  assert.deepEqual(ends.map((each) => each.json.state), ["finished"]);
  assert.ok(bytes() + ends[0].text.length <= 60_000);
  assert.ok(bytes() > 50_000);
  const told = await batches();
  told.reduce((next, { first_sequence, count }) => (assert.equal(first_sequence, next), first_sequence + count), 1);
  run._outbox._closed = true;
});

test("a pending batch too large for a beacon is sent in parts and counted once", async () => {
  const server = fakeServer(undefined, undefined, "down"), { batches } = beacons();
  const run = begin(server);
  await run.flush();
  snapshots(run, 40, 3_000);
  await run._outbox._send();
  const [batch] = run._outbox._formed;
  run._leave(false);
  const told = await batches();
  assert.ok(told.length > 1);
  assert.equal(told[0].first_sequence, batch.first);
  assert.deepEqual([run._outbox._formed.length, batch.count, batch.carried], [1, 40, false]);
  run._outbox._closed = true;
});

test("snapshots refused by a beacon are retried", async () => {
  let takes = false;
  const server = fakeServer(undefined, undefined, "down", "down"), { sent } = beacons(() => takes);
  const run = begin(server);
  await run.flush();
  run.snapshot();
  await run._outbox._send();
  run._leave(false);
  await turn();
  takes = true;
  run._leave(false);
  assert.equal(sent.length, 1);
  run._leave(false);
  assert.equal(sent.length, 1);
  run._outbox._closed = true;
});

test("a hidden page during an outage drops its least important snapshots first", async () => {
  const server = fakeServer(undefined, undefined, "down"), { sent } = beacons();
  const run = begin(server);
  await run.flush();
  run.snapshot();
  await run._outbox._send();
  for (let i = 0; i < 1_990; i += 1) run._take("sample", "sample");
  run._leave(false);
  assert.equal(sent.length, 1);
  for (let generation = 0; generation < 40; generation += 1) run.generation(generation);
  const kept = run._outbox._queue.filter((row) => row.kind === "generation_end");
  assert.equal(kept.length, 39);
  assert.ok(run._losses.queue_full > 0);
  run._outbox._closed = true;
});

test("a server that never answers does not keep Node from exiting", async () => {
  const server = createServer(() => {}).listen(0, "127.0.0.1");
  await once(server, "listening");
  const code = `import { init } from ${JSON.stringify(new URL("../../agent_client/js/leakline.js", import.meta.url).href)};
    const tf = { memory: () => ({ numTensors: 1, numDataBuffers: 1, numBytes: 1 }) };
    const signals = [], asking = (url, request) => { signals.push(request.signal); return fetch(url, request); };
    const run = init({ tf, server: "http://127.0.0.1:${server.address().port}", mode: "online", fetch: asking });
    await run.finish();
    process.exitCode = signals.length && signals.every((each) => each.aborted) ? 0 : 3;`;
  const began = performance.now();
  const program = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: "ignore" });
  try {
    const [status] = await once(program, "exit");
    assert.equal(status, 0);
    // It gives up after two seconds; a busy machine gets more time.
    assert.ok(performance.now() - began < 12_000, `${performance.now() - began} ms`);
  } finally {
    program.kill();
    server.closeAllConnections();
    server.close();
  }
});
