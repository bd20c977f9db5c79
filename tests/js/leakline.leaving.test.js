import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import { begin, fakeServer } from "./training.js";

/** What a browser takes as beacons, as long as it takes any. */
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

test("a page with more than it can still send sends what there is room for, and its end", async () => {
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

test("a batch on its way that is too large for a beacon goes in parts, and counts once", async () => {
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

test("what no beacon took is tried again the next time", async () => {
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

test("a page out of sight while nobody answers still drops its least telling snapshots first", async () => {
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

test("a server that takes requests and never answers does not keep Node from ending", async () => {
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
    // It gives up after two seconds; machines that do other things as well have some more.
    assert.ok(performance.now() - began < 12_000, `${performance.now() - began} ms`);
  } finally {
    program.kill();
    server.closeAllConnections();
    server.close();
  }
});
