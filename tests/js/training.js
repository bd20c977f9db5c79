/** Fake TensorFlow.js, server and run for the tests of the JavaScript client. */
import { init } from "../../agent_client/js/leakline.js";

/** Create a TensorFlow.js that reports the given number of tensors. */
export function fakeTf(tensors = 10) {
  return { tensors, memory() { return { numTensors: this.tensors, numDataBuffers: this.tensors, numBytes: 1000 * this.tensors, unreliable: false }; } };
}

/** Create a server that gives the next of `answers` (a status, or a status with body and headers), then succeeds. */
export function fakeServer(...answers) {
  const asked = [];
  const fetch = async (url, { method, body, headers }) => {
    const wanted = answers.shift();
    const request = { method, path: new URL(url).pathname, text: body, json: JSON.parse(body), headers };
    asked.push(request);
    if (wanted === "down") throw new TypeError("fetch failed");
    const well = request.path.endsWith("/batches") ? [200, { accepted: request.json.count, requests: [] }] : [201, { attempt: 1 }];
    const [status, said, more] = typeof wanted === "number" ? [wanted, { error: { code: "no", message: "no, thank you" } }] : (wanted ?? well);
    return new Response(JSON.stringify(said), { status, headers: more });
  };
  const batches = () => asked.filter((each) => each.path.endsWith("/batches")).map((each) => each.json);
  return {
    asked, fetch, batches,
    rows: () => batches().flatMap(({ columns, count }) => Array.from({ length: count }, (_, i) => ({ kind: columns.kind[i], phase: columns.phase[i], label: columns.label[i], generation: columns.generation[i], tensors: columns.series["tfjs.tensors"]?.[i] }))),
    events: () => batches().flatMap((batch) => batch.events),
  };
}

export function begin(server, more = {}) {
  return init({ tf: fakeTf(), server: "http://leakline.test", mode: "online", project: "ppo", name: "n", intervalSeconds: 0, sendSeconds: 3600, quiet: true, fetch: server.fetch, ...more });
}

export function listen(work) {
  const kept = [console.warn, console.info], said = [];
  console.warn = console.info = (text) => said.push(text);
  return Promise.resolve(work()).finally(() => { [console.warn, console.info] = kept; }).then(() => said);
}
