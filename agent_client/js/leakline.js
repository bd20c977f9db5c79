/**
 * Leakline for TensorFlow.js: memory telemetry of a training run, sent to a Leakline server from a page or from Node.
 *
 * One module without dependencies; the caller passes `tf`. The Python client's `snapshot.py` describes the wire format:
 * batches of snapshots, idempotent by instance and sequence. After `init`, no call throws into the training loop, waits for
 * the network, or keeps a tensor alive. Losses are counted by reason and reported with the next batch.
 *
 * @example
 * import * as leakline from "./leakline.js";
 * const run = leakline.init({ tf, server: "http://127.0.0.1:8765", project: "ppo" });
 */

/** @typedef {"normal" | "elevated" | "high" | "critical"} Band */
/** @typedef {{elevated: number, high: number, critical: number}} Bands A band begins above this number of tensors. */
/**
 * @typedef {object} Options
 * @property {any} tf the TensorFlow.js module that the program uses
 * @property {string} [server] default: LEAKLINE_SERVER, otherwise the server from which this module was loaded, otherwise this machine
 * @property {string} [token] sent as a bearer token; default: LEAKLINE_TOKEN, or the content of LEAKLINE_TOKEN_FILE
 * @property {string} [project] default: LEAKLINE_PROJECT, otherwise the token's project, otherwise "default"
 * @property {string} [name] default: LEAKLINE_RUN_NAME, otherwise a readable random name
 * @property {string} [runId] join this run; default: LEAKLINE_RUN_ID, otherwise a new id
 * @property {string} [unit] unit of the x axis: "generation", "episode", "epoch" or "step"
 * @property {number} [total] planned number of units
 * @property {string[]} [phases] declared phases; a declared phase that never ran is reported
 * @property {Record<string, unknown>} [config] any JSON object
 * @property {string[]} [tags]
 * @property {"online" | "disabled"} [mode] disabled: every call does nothing; default: LEAKLINE_MODE, otherwise online
 * @property {Partial<Bands> | false} [bands] limits of the tensor count; false: no bands
 * @property {number} [intervalSeconds] interval between two background readings; 0: no readings
 * @property {number} [sendSeconds] longest time that a snapshot waits to be sent while the server is reachable
 * @property {boolean} [quiet] no console output, and requests from the server are refused
 * @property {typeof globalThis.fetch} [fetch] replaces the runtime's fetch
 * @property {() => number} [clock] replaces the runtime's clock; returns seconds
 */
/** @typedef {{sequence?: number, time: number, kind: string, name: string, generation: number | null, phase: string | null, data: object}} RunEvent */
/** @typedef {{time: number, monotonic: number, generation: number | null, phase: string | null, label: string, kind: string, series: Record<string, number>, events: RunEvent[]}} Row */
/** @typedef {{tensors: number, bytes: number, band: Band}} Reading */
/** @typedef {{rows: Row[], first: number, count: number, text: string, again: boolean, carried: boolean}} Sent A batch, unchanged until the server has accepted it. */

/** Default limits, from a report on normal and leaking training runs: up to 99 tensors are normal. */
export const BANDS = Object.freeze({ elevated: 99, high: 200, critical: 500 });
/** The type name of TensorFlow.js tensors in the analysis. */
export const TENSOR = "tf.Tensor";

const QUEUE_LIMIT = 2_000; // queued snapshots while no server answers
const BATCH_LIMIT = 100; // snapshots per batch
const EVENT_LIMIT = 500; // queued events
const PHASE_LIMIT = 200; // phase ends sent per generation
const PATH_LIMIT = 256; // phases per run with a time series
const NAME_LIMIT = 200; // characters in names of phases, marks, gauges
const GAUGE_LIMIT = 64;
const CONFIG_BYTES = 65_536; // the server's limit is twice as high
const CLEANUP_LIMIT = 16;
const BEACON_BYTES = 60_000; // browsers refuse 64 KiB
const TIMEOUT_SECONDS = globalThis.document ? 15 : 5; // a pending request keeps Node alive
const FINISH_SECONDS = 2;
const RETRY_SECONDS = 0.5; // doubled with each attempt, up to the following maximum
const RETRY_AT_MOST = 60;
const FRAMES_SECONDS = 1; // minimum time to measure a frame rate
const PAGE_SECONDS = 20; // between two requests for the bytes of the entire page
const REPORT_MIB = 2 ** 20;
const RETRYABLE = new Set([408, 425, 429]);
const SNAPSHOTS_LOST = ["queue_full", "refused", "too_large"]; // the reasons that the server sums
const ADVICE = {
  elevated: "watch whether it comes down again after each step",
  high: "look for tensors that are neither in tf.tidy() nor disposed of",
  critical: "dispose of what the loop makes, clipped gradients too, or register a cleanup",
};
const WORDS = ["amber", "brave", "calm", "crisp", "eager", "gentle", "keen", "lively", "misty", "noble", "quiet", "steady"];
const ANIMALS = ["badger", "crane", "dove", "falcon", "finch", "fox", "heron", "lynx", "otter", "plover", "raven", "stork"];

/** Return the band of a tensor count. @param {number} tensors @param {Bands} [bands] @returns {Band} */
export function bandOf(tensors, bands = BANDS) {
  if (tensors > bands.critical) return "critical";
  if (tensors > bands.high) return "high";
  return tensors > bands.elevated ? "elevated" : "normal";
}

/**
 * Begin a run. This is the only call that throws: a TypeError with the option and its value.
 * @param {Options} options
 * @returns {Run}
 */
export function init(options) {
  return new Run(settingsOf(options));
}

/** The run of a training loop. Every call is safe: internal errors are counted and never reach the program. */
export class Run {
  /** @param {ReturnType<typeof settingsOf>} settings */
  constructor(settings) {
    this.id = settings.runId;
    this.url = `${settings.server}/runs/${encodeURIComponent(settings.runId)}`;
    this._settings = settings;
    this._disabled = settings.mode === "disabled";
    this._on = !this._disabled;
    this._losses = /** @type {Record<string, number>} */ ({});
    this._generation = /** @type {number | null} */ (null);
    this._axis = /** @type {number | null} */ (null); // number of the newest generation on the axis
    this._given = /** @type {number | null} */ (null); // the program's own number for that generation
    this._highest = -Infinity; // highest number used by the program
    this._renumbered = false;
    this._began = 0;
    this._phases = /** @type {string[][]} */ ([]);
    this._spent = new Map(); // path -> seconds in this generation
    this._paths = new Set();
    this._phaseEnds = 0; // phase ends of this generation
    this._gauges = new Map();
    this._events = /** @type {RunEvent[]} */ ([]);
    this._band = /** @type {Band} */ ("normal");
    this._warned = new Map(); // band -> time of the last report
    this._above = 0; // steps above the high limit since a band was reported
    this._unreliable = /** @type {boolean | undefined} */ (undefined); // whether TensorFlow.js calls its byte counts unreliable
    this._cleanups = new Map();
    this._asked = /** @type {{id: string, kind: string, type?: string}[]} */ ([]);
    this._known = new Set(); // ids of received requests
    this._busy = new Set(); // cleanups in progress
    this._cost = 0;
    this._last = -Infinity; // monotonic times never decrease
    this._ended = /** @type {Promise<void> | null} */ (null);
    this._said = new Set();
    this._stops = /** @type {(() => void)[]} */ ([]);
    if (!this._on) return;
    this._safely(() => {
      this._frames = frameCounter(this._stops);
      this._page = pageBytes();
      this._outbox = new Outbox(settings, this._losses, (wishes) => this._wish(wishes), (text) => this._say(text));
      this._take("baseline", "baseline");
      this._watch();
      this._say(`leakline: ${this.url}`, "info");
    });
  }

  /** End the open generation and begin the next. If `body` is given, run it in the new generation, which then ends. */
  generation(/** @type {number} */ number, /** @type {(() => any) | undefined} */ body = undefined) {
    this._safely(() => this._open(number));
    return body && this._around(body, () => this._close());
  }
  episode(/** @type {number} */ number, /** @type {(() => any) | undefined} */ body = undefined) { return this.generation(number, body); }
  epoch(/** @type {number} */ number, /** @type {(() => any) | undefined} */ body = undefined) { return this.generation(number, body); }
  step(/** @type {number} */ number, /** @type {(() => any) | undefined} */ body = undefined) { return this.generation(number, body); }

  /**
   * Run a part of the training loop and take a snapshot at the end of that part. Returns the result of `body`; a promise is awaited.
   * @template T @param {string} name @param {() => T} body @returns {T}
   */
  phase(name, body) {
    if (this._disabled) return body();
    const path = this._safely(() => [...(this._phases.at(-1) ?? []), String(name).slice(0, NAME_LIMIT)]) ?? [];
    const began = this._now();
    this._phases.push(path);
    return this._around(body, (error) => {
      this._phases = this._phases.filter((open) => open !== path);
      this._endPhase(path.join("/").slice(0, 256), this._now() - began, error);
      this._runDue();
    });
  }

  /** Call this after a training step; takes well under 0.1 ms. Warns when the tensor count has reached a worse band. @returns {Reading | null} */
  check() {
    return this._safely(() => {
      const reading = this._look(1);
      this._runDue(reading);
      return reading;
    }) ?? null;
  }

  /** Record a number on the same axis. */
  gauge(/** @type {string} */ name, /** @type {number} */ value) {
    this._safely(() => {
      if (!Number.isFinite(value)) return this._lose("bad_values");
      const series = `gauge.${String(name).slice(0, NAME_LIMIT)}`;
      if (this._gauges.has(series) || this._gauges.size < GAUGE_LIMIT) this._gauges.set(series, value);
      else this._lose("too_many_gauges");
    });
  }

  /** Add an event to the charts. */
  mark(/** @type {string} */ name) { this._safely(() => this._addEvent("mark", String(name), {})); }

  /** Add a text next to the charts. */
  note(/** @type {string} */ text, /** @type {string} */ link = "") {
    this._safely(() => this._addEvent("note", "note", { text: String(text).slice(0, 4_000), ...(link ? { link } : {}) }));
  }

  /** Take a snapshot now. */
  snapshot(/** @type {string} */ label = "snapshot") { this._safely(() => this._take("manual", String(label))); }

  /** Return the current readings, for example for the console of a page. @returns {Record<string, number | string>} */
  stats() {
    return this._safely(() => {
      const series = this._read();
      return { ...series, band: this._bandOf(series["tfjs.tensors"] ?? 0) };
    }) ?? {};
  }

  /**
   * Register a cleanup. It runs between two training steps: in `check`, or at the end of a phase or generation.
   * @param {string} name
   * @param {() => unknown} body frees the memory; Leakline itself never disposes of anything
   * @param {{above?: number | null, onRequest?: boolean, collect?: boolean}} [when] `above`: run automatically above
   *   this number of tensors (default null: never); `onRequest`: run when requested on the run's page; `collect`:
   *   force a garbage collection afterwards if the runtime offers one
   */
  registerCleanup(name, body, when = {}) {
    this._safely(() => {
      if (typeof body !== "function" || (!this._cleanups.has(name) && this._cleanups.size >= CLEANUP_LIMIT)) {
        return this._lose("bad_cleanups");
      }
      const above = Number.isFinite(when.above) ? Number(when.above) : null;
      const onRequest = (when.onRequest ?? true) && !this._settings.quiet;
      this._cleanups.set(name, { body, above, onRequest, collect: when.collect === true, ran: -Infinity, running: false });
      this._addEvent("register_cleanup", String(name), { on_request: onRequest, when: above === null ? null : ["tfjs.tensors", above] });
    });
  }

  /** Run all registered cleanups now and report what each has freed. @returns {Promise<void>} */
  async cleanup() {
    await Promise.all([...this._cleanups.keys()].map((name) => this._clean(name, "it was requested")));
  }

  /** Callbacks for `model.fit(x, y, { callbacks: run.callbacks() })`: each epoch is a generation. */
  callbacks() {
    return {
      onEpochBegin: async (/** @type {number} */ epoch) => { this.generation(epoch); },
      onBatchEnd: async () => { this.check(); },
      onTrainEnd: async () => { this._safely(() => this._close()); },
    };
  }

  /** Send queued snapshots, for a few seconds at most. @returns {Promise<void>} */
  async flush() { await this._outbox?.drain(FINISH_SECONDS); }

  /**
   * End the run. This also happens automatically when Node has nothing left to do, and when a page is left.
   * @param {"finished" | "failed" | "terminated"} [state] @returns {Promise<void>} never rejected
   */
  finish(state = "finished", reason = "") {
    this._ended ??= this._finish(state, reason).catch(() => this._lose("client_errors"));
    return this._ended;
  }

  async _finish(/** @type {string} */ state, /** @type {string} */ reason) {
    if (!this._on) return;
    if (this._busy.size) await within(FINISH_SECONDS, Promise.all([...this._busy]));
    this._safely(() => {
      this._close();
      this._reportSteps();
      this._take("finish", "finish");
    });
    this._on = false;
    for (const stop of this._stops) this._safely(stop);
    if (!this._outbox) return;
    await this._outbox.drain(FINISH_SECONDS);
    await this._outbox.end(state, reason);
    const lost = SNAPSHOTS_LOST.reduce((sum, reason) => sum + (this._losses[reason] ?? 0), this._outbox.waiting);
    this._say(`leakline: ${this._outbox.sent} snapshots sent, ${lost} lost: ${this.url}`, "info");
  }

  /** Run the program's own code once, and our code after it, even if one of the two throws. */
  _around(/** @type {() => any} */ body, /** @type {(error?: unknown) => void} */ after) {
    let result;
    try {
      result = body();
    } catch (error) {
      this._safely(() => after(error ?? "error"));
      throw error;
    }
    if (typeof result?.then === "function") {
      return Promise.resolve(result).then(
        (value) => { this._safely(() => after()); return value; },
        (error) => { this._safely(() => after(error ?? "error")); throw error; },
      );
    }
    this._safely(() => after());
    return result;
  }

  _open(/** @type {number} */ number) {
    if (!Number.isFinite(number) || Math.abs(number) > Number.MAX_SAFE_INTEGER) return this._lose("bad_values");
    if (this._generation !== null && number === this._given) return;
    this._close();
    this._generation = this._axis = this._continued(number);
    this._began = this._now();
    const again = this._given !== null && number <= this._given;
    this._highest = Math.max(number, this._highest);
    this._given = number;
    if (again && !this._renumbered) {
      this._renumbered = true;
      const unit = this._settings.unit;
      this._say(`leakline: ${unit} ${number} came again: it is recorded as ${unit} ${this._axis}, and counting continues from there, so that no earlier measurements are lost; for a separate training call init again`);
      this._addEvent("mark", `${this._title()} came again`, {});
    }
  }

  /** Return the number on the axis, which never decreases: a second loop continues the numbering. */
  _continued(/** @type {number} */ number) {
    if (this._axis === null || this._given === null) return Math.floor(number);
    if (number <= this._given) return this._axis + 1;
    return this._axis + Math.max(1, Math.floor(number - (number > this._highest ? this._highest : this._given)));
  }

  _title() {
    return `${this._settings.unit} ${this._axis}${this._axis === this._given ? "" : ` (called ${this._given})`}`;
  }

  _close() {
    if (this._generation === null) return;
    const series = /** @type {Record<string, number>} */ ({ "generation.seconds": this._now() - this._began, "client.seconds": this._cost });
    for (const [path, seconds] of this._spent) series[`phase.${path}.seconds`] = seconds;
    this._take("generation_end", `${this._title()}: end`, null, series);
    this._generation = null;
    this._spent.clear();
    this._phaseEnds = 0;
    this._cost = 0;
    this._look();
    this._runDue();
  }

  _endPhase(/** @type {string} */ path, /** @type {number} */ seconds, /** @type {any} */ error) {
    if (!path) return;
    if (this._paths.size < PATH_LIMIT) this._paths.add(path);
    // A phase with a new name at each execution would create a new series each time.
    if (this._paths.has(path)) this._spent.set(path, (this._spent.get(path) ?? 0) + seconds);
    if (error !== undefined) this._addEvent("exception", path, { type: error?.constructor?.name ?? typeof error }, path);
    this._phaseEnds += 1;
    if (this._phaseEnds > PHASE_LIMIT) return this._lose("phase_limit");
    const where = this._generation === null ? "" : `${this._title()}: `;
    this._take("phase_end", `${where}after ${path}`, path);
  }

  _now() { return this._settings.monotonic(); }

  /** Return all current readings; unknown values are left out. */
  _read() {
    const began = this._now();
    const series = /** @type {Record<string, number>} */ ({});
    for (const probe of [() => tensorMemory(this._memory()), processMemory, heapMemory, () => this._frames?.(), () => this._page?.()]) {
      try {
        Object.assign(series, probe());
      } catch {
        this._lose("probe_errors");
      }
    }
    for (const [name, value] of this._gauges) series[name] = value;
    this._cost += this._now() - began;
    return series;
  }

  _take(/** @type {string} */ kind, /** @type {string} */ label, /** @type {string | null} */ phase = null, more = {}) {
    if (!this._on) return;
    this._last = Math.max(this._last, this._now());
    const series = { ...this._read(), ...more };
    const row = { time: this._settings.time(), monotonic: this._last, generation: this._generation, phase, label: label.slice(0, 256), kind, series, events: this._events };
    this._events = [];
    this._outbox?.add(row);
  }

  /** Add an event to the next snapshot. */
  _addEvent(/** @type {string} */ kind, /** @type {string} */ name, /** @type {object} */ data, /** @type {string | null} */ phase = this._phases.at(-1)?.join("/").slice(0, 256) ?? null) {
    if (!this._on) return;
    if (this._events.length >= EVENT_LIMIT) return this._lose("events");
    this._events.push({ time: this._settings.time(), kind, name: name.slice(0, NAME_LIMIT) || kind, generation: this._generation, phase, data });
  }

  /** Read TensorFlow.js. An event is recorded when its byte counts become reliable or unreliable, for example after a change of the backend. @returns {any} */
  _memory() {
    const memory = this._settings.tf.memory();
    const unreliable = memory.unreliable === true;
    if (unreliable !== (this._unreliable ?? unreliable)) {
      const text = unreliable ? "TensorFlow.js calls its bytes an upper bound from here on" : "TensorFlow.js vouches for its bytes again";
      this._addEvent("mark", `tfjs bytes ${unreliable ? "unreliable" : "reliable"}`, { text, tfjs_memory_unreliable: unreliable });
    }
    this._unreliable = unreliable;
    return memory;
  }

  _bandOf(/** @type {number} */ tensors) { return this._settings.bands ? bandOf(tensors, this._settings.bands) : "normal"; }

  /** Read the tensors and report a change of band. @param {number} steps number of training steps that end here @returns {Reading} */
  _look(steps = 0) {
    const began = this._now();
    const { numTensors: tensors, numBytes: bytes } = this._memory();
    const band = this._bandOf(tensors);
    if (this._settings.bands && tensors > this._settings.bands.high) this._above += steps;
    this._cost += this._now() - began;
    if (band !== this._band) {
      const worse = Object.keys(ADVICE).indexOf(band) > Object.keys(ADVICE).indexOf(this._band);
      this._band = band;
      // A count that crosses a limit in each step is reported at most once per interval.
      if (this._now() - (this._warned.get(band) ?? -Infinity) >= Math.max(1, this._settings.intervalSeconds)) {
        this._warned.set(band, this._now());
        this._reportBand(worse, { tensors, bytes, band });
      }
    }
    return { tensors, bytes, band };
  }

  _reportBand(/** @type {boolean} */ worse, /** @type {Reading} */ { tensors, bytes, band }) {
    const bands = /** @type {Bands} */ (this._settings.bands);
    const times = Math.floor(tensors / (bands.elevated + 1));
    const often = times >= 2 ? `, ${times} times as many as normal` : "";
    const steps = this._above;
    this._above = 0;
    // If there was only one step, that step reached this band.
    const long = steps > 1 ? `, ${steps} steps above ${bands.high} since a band was last reported` : "";
    const counted = `${tensors} tensors (${mebibytes(bytes)})${often}${long}`;
    const above = band === "normal" ? null : bands[band];
    const text = worse && band !== "normal" ? `${counted}: ${ADVICE[band]}` : counted;
    this._addEvent(worse ? "warning" : "mark", `tensors ${band}`, { text, tensors, bytes, above, steps_above_high: steps });
    this._take("sample", `tensors ${band}`);
    if (worse && band !== "elevated" && band !== "normal") this._say(`leakline: ${text}`, "warn", false);
  }

  /** Report the steps above the limit since the last band event, if the count has stayed above the limit to the end. */
  _reportSteps() {
    if (!this._above || !this._settings.bands) return;
    const text = `${this._above} steps above ${this._settings.bands.high} tensors since a band was last reported`;
    this._addEvent("mark", "tensors at the end", { text, steps_above_high: this._above });
    this._above = 0;
  }

  /** Run the cleanups that are due. The program calls this between two training steps. */
  _runDue(/** @type {Reading | undefined} */ reading = undefined) {
    if (!this._cleanups.size && !this._asked.length) return;
    const asked = this._asked.splice(0);
    for (const wish of asked) this._inBackground(this._answer(wish));
    const tensors = reading ? reading.tensors : this._settings.tf.memory().numTensors;
    for (const [name, each] of this._cleanups) {
      if (each.above === null || tensors <= each.above || this._now() - each.ran < this._settings.intervalSeconds) continue;
      this._inBackground(this._clean(name, `tfjs.tensors is ${tensors}, above ${each.above}`));
    }
  }

  /** Run work that nobody awaits; in Node an unhandled rejection would end the program. */
  _inBackground(/** @type {Promise<unknown>} */ work) {
    const guarded = work.catch(() => this._lose("client_errors")).finally(() => this._busy.delete(guarded));
    this._busy.add(guarded);
  }

  async _answer(/** @type {{id: string, kind: string, type?: string}} */ wish) {
    const name = `${wish.kind} ${wish.type ?? ""}`.trim();
    const allowed = [...this._cleanups].filter(([, each]) => each.onRequest).map(([each]) => each);
    let outcome = "refused: JavaScript cannot look into its own heap";
    if (wish.kind === "cleanup") outcome = allowed.length ? "done" : "refused: no registered cleanup allows requests";
    if (this._settings.quiet) outcome = "refused: the run is quiet";
    if (outcome === "done") {
      const went = await Promise.all(allowed.map((each) => this._clean(each, "it was requested")));
      if (!went.every(Boolean)) outcome = "failed";
    }
    this._safely(() => {
      this._addEvent("mark", `${name}: ${outcome}`, { request: wish.id, outcome });
      this._take("manual", name);
    });
  }

  /** Run a cleanup; resolves to true if it succeeded. Never rejected. */
  async _clean(/** @type {string} */ name, /** @type {string} */ because) {
    const each = this._cleanups.get(name);
    if (!this._on || !each || each.running) return false;
    each.running = true;
    each.ran = this._now();
    const before = this._safely(() => this._settings.tf.memory()) ?? { numTensors: 0, numBytes: 0 };
    const began = this._now();
    let failed = "";
    try {
      const result = each.body();
      if (typeof result?.then === "function") await result;
      // Only available if the runtime was started with --expose-gc.
      if (each.collect && typeof globalThis.gc === "function") globalThis.gc();
    } catch (error) {
      failed = /** @type {any} */ (error)?.constructor?.name ?? "Error";
    }
    each.running = false;
    this._safely(() => this._reportCleanup(name, each, because, before, failed, this._now() - began));
    return !failed;
  }

  _reportCleanup(/** @type {string} */ name, /** @type {any} */ each, /** @type {string} */ because, /** @type {any} */ before, /** @type {string} */ failed, /** @type {number} */ seconds) {
    const after = this._settings.tf.memory();
    this._addEvent("cleanup", name, {
      before_bytes: before.numBytes, after_bytes: after.numBytes, freed_bytes: before.numBytes - after.numBytes, seconds, because,
      counts: { [TENSOR]: [before.numTensors, after.numTensors] }, ...(failed ? { error: failed } : {}),
    });
    const effect = `the cleanup ${name}: tensors ${before.numTensors} → ${after.numTensors}`;
    const deeper = each.above !== null && before.numTensors > each.above && after.numTensors > each.above;
    if (deeper) this._addEvent("warning", `${name} does not help`, { text: `${effect}: the leak lies deeper`, tensors: after.numTensors, above: each.above });
    this._take("manual", `after the cleanup ${name}`);
    const outcome = failed ? ` failed with ${failed}` : deeper ? ": it does not help, the leak lies deeper" : "";
    this._say(`leakline: ${effect}${outcome}`, deeper || failed ? "warn" : "info", false);
  }

  /** Queue the requests in the server's answer; they run at the next training step. */
  _wish(/** @type {unknown} */ wishes) {
    for (const wish of Array.isArray(wishes) ? wishes.slice(0, 16) : []) {
      if (typeof wish?.id !== "string" || typeof wish.kind !== "string" || this._known.has(wish.id)) continue;
      if (this._known.size >= 256) this._known.clear();
      this._known.add(wish.id);
      this._asked.push(wish);
    }
  }

  /** Start background readings and listen for the end of the page or the process. */
  _watch() {
    if (this._settings.intervalSeconds > 0) {
      const beat = () => this._safely(() => { this._take("sample", "sample"); this._look(); });
      const timer = setInterval(beat, 1000 * this._settings.intervalSeconds);
      loosely(timer);
      this._stops.push(() => clearInterval(timer));
    }
    if (typeof globalThis.addEventListener === "function" && globalThis.document) {
      const listen = (/** @type {any} */ target, /** @type {string} */ name, /** @type {(event: any) => void} */ act) => {
        target.addEventListener(name, act);
        this._stops.push(() => target.removeEventListener(name, act));
      };
      listen(globalThis, "pagehide", (event) => this._safely(() => this._leave(!event.persisted)));
      // Phones may end a hidden page without another event.
      listen(document, "visibilitychange", () => this._safely(() => { if (document.visibilityState === "hidden") this._leave(false); }));
    } else if (typeof globalThis.process?.once === "function") {
      const ended = () => void this.finish();
      globalThis.process.once("beforeExit", ended);
      this._stops.push(() => globalThis.process.removeListener("beforeExit", ended));
    }
  }

  /** The page is hidden or left: send everything that is queued while this is still possible. */
  _leave(/** @type {boolean} */ forGood) {
    if (forGood) this._take("finish", "the page is left");
    else if (this._events.length) this._take("sample", "the page is out of sight");
    this._outbox?.leave(forGood);
  }

  /** @template T @param {() => T} work @returns {T | undefined} */
  _safely(work) {
    if (this._disabled) return undefined;
    try {
      return work();
    } catch (error) {
      this._lose("client_errors");
      this._say(`leakline: ${error}; the training goes on without what failed`);
      return undefined;
    }
  }

  _lose(/** @type {string} */ reason, many = 1) { this._losses[reason] = (this._losses[reason] ?? 0) + many; }

  /** Print a line on the console; with `once`, repeated lines are not printed again. */
  _say(/** @type {string} */ text, /** @type {"warn" | "info"} */ how = "warn", once = true) {
    if (this._settings.quiet || (once && this._said.has(text))) return;
    if (once && this._said.size < 100) this._said.add(text);
    console[how](text);
  }
}

/** A bounded queue of snapshots, sent with one request at a time and with backoff while the server does not answer. */
class Outbox {
  /** @param {ReturnType<typeof settingsOf>} settings @param {Record<string, number>} losses @param {(wishes: unknown) => void} wish @param {(text: string) => void} say */
  constructor(settings, losses, wish, say) {
    this.sent = 0;
    this._queue = /** @type {Row[]} */ ([]);
    this._formed = /** @type {Sent[]} */ ([]);
    this._next = 0; // sequence number of the first snapshot that is not in a batch
    this._attempt = 1;
    this._joined = false;
    this._closed = false;
    this._failures = 0; // in a row
    this._notBefore = 0; // from Retry-After
    this._timer = /** @type {any} */ (null);
    this._at = 0;
    this._sending = /** @type {Promise<void> | null} */ (null);
    this._asking = /** @type {Set<AbortController>} */ (new Set()); // pending requests
    this._settings = settings;
    this._losses = losses;
    this._wish = wish;
    this._say = say;
    this._instance = randomHex(16);
  }

  /** Number of queued snapshots, in batches or not. */
  get waiting() { return this._formed.reduce((sum, batch) => sum + batch.count, this._queue.length); }

  add(/** @type {Row} */ row) {
    if (this._closed) return this._lose("refused");
    if (this.waiting >= QUEUE_LIMIT && this._queue.length) this._drop();
    this._queue.push(row);
    if (this._failures) return;
    this._wake(this._queue.length >= BATCH_LIMIT ? 0 : this._settings.sendSeconds);
  }

  /** Drop the least useful snapshot: a background reading, otherwise a phase end, otherwise the oldest. The snapshot's events are kept. */
  _drop() {
    const find = (/** @type {string} */ kind) => this._queue.findIndex((row) => row.kind === kind);
    const at = Math.max(0, [find("sample"), find("phase_end")].find((i) => i >= 0) ?? 0);
    const [gone] = this._queue.splice(at, 1);
    const heir = this._queue[at] ?? this._queue.at(-1);
    const room = heir ? Math.max(0, EVENT_LIMIT - heir.events.length) : 0;
    if (heir) heir.events.unshift(...gone.events.slice(0, room));
    this._lose("queue_full");
    if (gone.events.length > room) this._lose("events", gone.events.length - room);
  }

  _lose(/** @type {string} */ reason, many = 1) { this._losses[reason] = (this._losses[reason] ?? 0) + many; }

  /** Send in this many seconds, unless sending is already scheduled sooner. */
  _wake(/** @type {number} */ seconds) {
    const at = this._settings.monotonic() + seconds;
    if (this._sending || (this._timer && this._at <= at)) return;
    clearTimeout(this._timer);
    this._at = at;
    this._timer = setTimeout(() => { this._timer = null; void this._send(); }, 1000 * seconds);
    loosely(this._timer);
  }

  /** Send until the queue is empty or the server refuses. One call at a time. @returns {Promise<void>} never rejected */
  _send() {
    this._sending ??= this._sendAll().catch((error) => {
      this._lose("client_errors");
      this._say(`leakline: ${error}; the training goes on, and sending is tried again`);
      return RETRY_AT_MOST;
    }).then((pause) => {
      this._sending = null;
      if (this.waiting && !this._closed) this._wake(pause ?? this._settings.sendSeconds);
    });
    return this._sending;
  }

  /** Send what is queued now; newer snapshots wait for the next call. Returns the seconds to wait if the server refused. */
  async _sendAll() {
    const until = this._next + this._queue.length;
    while (!this._closed && (this._formed.length || (this._queue.length && this._next < until))) {
      const after = this._joined ? await this._sendBatch() : await this._join();
      if (after !== null) {
        const pause = Math.min(RETRY_AT_MOST, RETRY_SECONDS * 2 ** Math.min(10, this._failures)) * (0.75 + Math.random() / 2);
        this._failures += 1;
        this._notBefore = this._settings.monotonic() + after;
        return Math.max(after, pause);
      }
      this._failures = 0;
    }
    return null;
  }

  /** @returns {Promise<number | null>} minimum seconds to wait; null after success or a permanent failure */
  async _join() {
    const header = this._header();
    const { status, body, after } = await this._ask("POST", "/runs", wireText(header));
    if (status === 200 || status === 201) {
      this._joined = true;
      if (Number.isSafeInteger(body?.attempt)) this._attempt = body.attempt;
      return null;
    }
    return this._refused(status, body) ? null : after;
  }

  _header() {
    const { runId, project, name, unit, total, phases, tags, config, startedAt } = this._settings;
    // Lets the server distinguish a wrong clock from snapshots that were queued.
    const sent_at = this._settings.time();
    return { id: runId, project, name, unit, total, started_at: startedAt, sent_at, phases, tags, config, environment: environmentOf(this._settings.tf), process: this._identity() };
  }

  _identity() {
    const { host, pid } = whereAmI();
    return { instance: this._instance, rank: 0, pid, host, role: "main", attempt: this._attempt };
  }

  /** @returns {Promise<number | null>} as `_join` */
  async _sendBatch() {
    if (!this._formed.length) this._formOne();
    const batch = this._formed[0];
    const { status, body, after } = await this._ask("POST", this._path("/batches"), batch.text);
    if (status === 200) {
      this._formed.shift();
      this.sent += batch.count;
      this._wish(body?.requests);
      return null;
    }
    if (status === 404 && !batch.again) {
      // The server has lost the run, for example with a new database: join again, once.
      batch.again = true;
      this._joined = false;
      return null;
    }
    if (status === 413 && batch.count > 1) {
      this._halve(batch);
      return null;
    }
    if (this._refused(status, body)) {
      this._formed.shift();
      this._lose(status === 413 ? "too_large" : "refused", batch.count);
      return null;
    }
    return after;
  }

  _path(/** @type {string} */ rest) { return `/runs/${encodeURIComponent(this._settings.runId)}${rest}`; }

  /** Move the next snapshots into a batch. The batch stays unchanged until the server has it, which makes sending idempotent. */
  _formOne() {
    this._form(this._batch(this._queue.slice(0, BATCH_LIMIT), this._next));
  }

  /** Move the first snapshots of the queue into this batch. */
  _form(/** @type {Sent} */ batch) {
    this._queue.splice(0, batch.count);
    this._next += batch.count;
    this._formed.push(batch);
  }

  _batch(/** @type {Row[]} */ rows, /** @type {number} */ first) {
    return { rows, first, count: rows.length, again: false, carried: false, text: wireText(toWire(rows, first, this._identity(), this._losses)) };
  }

  _halve(/** @type {Sent} */ batch) {
    const half = batch.count >> 1;
    const parts = [batch.rows.slice(0, half), batch.rows.slice(half)];
    this._formed.splice(0, 1, this._batch(parts[0], batch.first), this._batch(parts[1], batch.first + half));
  }

  /** Return true if the answer is final for this request. Without authentication or permission, sending stops for good. */
  _refused(/** @type {number | null} */ status, /** @type {any} */ body) {
    if (status === null || RETRYABLE.has(status) || (status >= 500 && status !== 501 && status !== 505)) return false;
    const said = body?.error?.message ?? `the server answered with ${status}`;
    this._say(`leakline: ${said}`);
    if (!this._joined || status === 401 || status === 403) {
      this._closed = true;
      this._lose("refused", this.waiting);
      this._queue = [];
      this._formed = [];
    }
    return true;
  }

  /** Send one request. @returns {Promise<{status: number | null, body: any, after: number}>} never rejected; null: no answer */
  async _ask(/** @type {string} */ method, /** @type {string} */ path, /** @type {string} */ text) {
    const patience = new AbortController();
    const timer = setTimeout(() => patience.abort(), 1000 * TIMEOUT_SECONDS);
    loosely(timer);
    this._asking.add(patience);
    try {
      const answer = await this._settings.fetch(`${this._settings.server}/api/v1${path}`, {
        method, body: text, headers: this._headers(), credentials: "omit", cache: "no-store", signal: patience.signal,
      });
      const body = await answer.json().catch(() => null);
      return { status: answer.status, body, after: retryAfter(answer.headers.get("retry-after")) };
    } catch {
      const origin = globalThis.location?.origin;
      const allowed = origin && origin !== this._settings.server ? `, and does its LEAKLINE_ALLOWED_ORIGINS name ${origin}` : "";
      this._say(`leakline: no answer from ${this._settings.server}: is it running${allowed}? Up to ${QUEUE_LIMIT} snapshots wait for it`);
      return { status: null, body: null, after: 0 };
    } finally {
      clearTimeout(timer);
      this._asking.delete(patience);
    }
  }

  _headers() {
    const { token } = this._settings;
    return { "content-type": "application/json", ...(token ? { authorization: `Bearer ${token}` } : {}) };
  }

  /** Send what is queued, for this many seconds at most. */
  async drain(/** @type {number} */ seconds) {
    const left = () => deadline - this._settings.monotonic();
    const deadline = this._settings.monotonic() + seconds;
    let pause = this._notBefore - this._settings.monotonic();
    while (!this._closed && this.waiting && left() > Math.max(0, pause)) {
      // Unlike our other timers, this timer keeps Node alive until it fires.
      if (pause > 0) await new Promise((resolve) => { setTimeout(resolve, 1000 * pause); });
      clearTimeout(this._timer);
      this._timer = null;
      await within(left(), this._send());
      pause = this._failures ? Math.max(RETRY_SECONDS, this._notBefore - this._settings.monotonic()) : 0;
    }
  }

  async end(/** @type {string} */ state, /** @type {string} */ reason) {
    if (this._joined && !this._closed) await within(FINISH_SECONDS, this._ask("PATCH", this._path(""), this._ending(state, reason)));
    this._closed = true;
    clearTimeout(this._timer);
    // An unreachable server must not keep the program from exiting.
    for (const patience of this._asking) patience.abort();
  }

  _ending(/** @type {string} */ state, /** @type {string} */ reason) {
    return wireText({ state, reason, instance: this._instance, ended_at: this._settings.time() });
  }

  /**
   * Send as much as a closing page still can: the oldest snapshots first, with room for the end of the run. Batches sent as beacons are
   * kept, because their arrival is unknown: if the page lives on they are sent again, and the server drops duplicates.
   */
  leave(/** @type {boolean} */ forGood) {
    if (this._closed) return;
    const ending = forGood ? this._ending("finished", "the page was left") : "";
    let room = BEACON_BYTES - sizeOf(ending);
    const part = (/** @type {string} */ path, /** @type {string} */ text, /** @type {() => void} */ failed) => {
      const size = sizeOf(text);
      if (size > room) return false;
      room -= size;
      this._part("POST", path, text, failed);
      return true;
    };
    if (this._joined || part("/runs", wireText(this._header()), () => {})) {
      for (const batch of this._formed) if (!batch.carried) this._carry(batch, part);
      // A formed batch cannot be thinned out, so while no server answers, snapshots stay in the queue.
      if (forGood || !this._failures) this._carryQueue(part);
    }
    if (forGood) this._part("PATCH", this._path(""), ending, () => {});
  }

  /** Send a batch, or as many of its snapshots as fit. @param {Sent} batch @param {(path: string, text: string, failed: () => void) => boolean} part */
  _carry(batch, part) {
    const failed = () => { batch.carried = false; };
    const piece = (/** @type {Row[]} */ rows, /** @type {number} */ first, /** @type {string} */ text) => {
      if (part(this._path("/batches"), text, failed)) return true;
      const half = rows.length >> 1;
      if (!half) return false;
      const parts = [rows.slice(0, half), rows.slice(half)];
      return piece(parts[0], first, this._batch(parts[0], first).text) && piece(parts[1], first + half, this._batch(parts[1], first + half).text);
    };
    batch.carried = true;
    if (!piece(batch.rows, batch.first, batch.text)) batch.carried = false;
  }

  /** Send as many snapshots of the queue as fit. @param {(path: string, text: string, failed: () => void) => boolean} part */
  _carryQueue(part) {
    let many = BATCH_LIMIT;
    while (many && this._queue.length) {
      const batch = this._batch(this._queue.slice(0, many), this._next);
      batch.carried = true;
      if (part(this._path("/batches"), batch.text, () => { batch.carried = false; })) this._form(batch);
      else many = batch.count >> 1;
    }
  }

  _part(/** @type {string} */ method, /** @type {string} */ path, /** @type {string} */ text, /** @type {() => void} */ failed) {
    const url = `${this._settings.server}/api/v1${path}`;
    // Plain text needs no CORS preflight, for which there is no time; a beacon cannot carry a token.
    if (method === "POST" && !this._settings.token && navigator.sendBeacon(url, new Blob([text], { type: "text/plain" }))) return;
    this._settings.fetch(url, { method, body: text, headers: this._headers(), credentials: "omit", keepalive: true }).catch(failed);
  }
}

/** Return JSON in which lone surrogates, left over from truncated strings, are replaced. */
function wireText(/** @type {unknown} */ value) {
  return JSON.stringify(value).replace(/\\\\|\\ud[89a-f][0-9a-f]{2}/g, (found) => (found === "\\\\" ? found : "\ufffd"));
}

/** Return the size in bytes on the wire. */
function sizeOf(/** @type {string} */ text) { return new Blob([text]).size; }

/** Convert rows to the wire format: columns, and events by sequence number. @param {Row[]} rows @param {number} first @param {object} process @param {Record<string, number>} lost */
export function toWire(rows, first, process, lost) {
  const column = (/** @type {"time" | "monotonic" | "generation" | "phase" | "label" | "kind"} */ name) => rows.map((row) => row[name]);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.series)))];
  const series = Object.fromEntries(names.map((name) => [name, rows.map((row) => row.series[name] ?? null)]));
  return {
    version: 1, process, first_sequence: first, count: rows.length,
    columns: { time: column("time"), monotonic: column("monotonic"), generation: column("generation"), phase: column("phase"), label: column("label"), kind: column("kind"), series },
    events: rows.flatMap((row, i) => row.events.map((event) => ({ ...event, sequence: first + i }))),
    large_objects: [], census: [], holders: [], lost: { ...lost },
  };
}

/** @param {any} memory @returns {Record<string, number>} */
function tensorMemory(memory) {
  const named = { "tfjs.tensors": memory.numTensors, "tfjs.buffers": memory.numDataBuffers, "tfjs.bytes": memory.numBytes, "tfjs.gpu_bytes": memory.numBytesInGPU };
  return measured(named);
}

/** Read the memory of a Node process. @returns {Record<string, number>} */
function processMemory() {
  if (globalThis.document || typeof globalThis.process?.memoryUsage !== "function") return {};
  const { rss, heapUsed, external, arrayBuffers } = globalThis.process.memoryUsage();
  return measured({
    "process.rss_bytes": rss, "js.heap_bytes": heapUsed, "js.external_bytes": external, "js.array_buffer_bytes": arrayBuffers,
    "system.total_bytes": nodeOs()?.totalmem(), "system.available_bytes": nodeOs()?.freemem(),
  });
}

/** Read the heap size in Chromium: exact on isolated pages, coarse and delayed on others. @returns {Record<string, number>} */
function heapMemory() {
  const memory = /** @type {any} */ (globalThis.performance)?.memory;
  return memory ? measured({ "js.heap_bytes": memory.usedJSHeapSize }) : {};
}

/** Keep non-negative numbers, rounded; unknown values are left out, never zero. @param {Record<string, unknown>} named */
function measured(named) {
  const known = Object.entries(named).filter(([, value]) => typeof value === "number" && Number.isFinite(value) && value >= 0);
  return Object.fromEntries(known.map(([name, value]) => [name, Math.round(Number(value))]));
}

/** Return a reader of the frames per second since its last call; it reads nothing if the page was hidden meanwhile. @param {(() => void)[]} stops */
function frameCounter(stops) {
  if (!globalThis.document || typeof globalThis.requestAnimationFrame !== "function") return undefined;
  let frames = 0, since = performance.now(), hidden = document.visibilityState === "hidden", next = 0;
  const count = () => { frames += 1; next = requestAnimationFrame(count); };
  const seen = () => { hidden = true; };
  next = requestAnimationFrame(count);
  document.addEventListener("visibilitychange", seen);
  stops.push(() => { cancelAnimationFrame(next); document.removeEventListener("visibilitychange", seen); });
  return () => {
    const seconds = (performance.now() - since) / 1000;
    if (seconds < FRAMES_SECONDS) return {};
    const rate = frames / seconds, known = !hidden;
    frames = 0;
    since = performance.now();
    hidden = document.visibilityState === "hidden";
    return known ? { "js.frames_per_second": Math.round(10 * rate) / 10 } : {};
  };
}

/** Return a reader of the page's memory including frames and workers; only isolated pages can read it, and not often. */
function pageBytes() {
  const ask = /** @type {any} */ (globalThis.performance)?.measureUserAgentSpecificMemory;
  if (!globalThis.crossOriginIsolated || typeof ask !== "function") return undefined;
  let newest = /** @type {number | null} */ (null), asked = -Infinity;
  return () => {
    if (performance.now() - asked >= 1000 * PAGE_SECONDS) {
      asked = performance.now();
      ask.call(performance).then((/** @type {any} */ found) => { newest = found.bytes; }, () => {});
    }
    const bytes = newest;
    newest = null;
    return bytes === null ? {} : measured({ "js.page_bytes": bytes });
  };
}

/** Return the versions and the backend that this run uses. @param {any} tf */
function environmentOf(tf) {
  const known = (/** @type {() => any} */ read) => { try { return read() ?? null; } catch { return null; } };
  const version = known(() => tf.version.tfjs ?? tf.version_core);
  return {
    packages: version ? { "@tensorflow/tfjs": String(version) } : {},
    tfjs_backend: known(() => tf.getBackend()), tfjs_memory_unreliable: known(() => tf.memory().unreliable ?? false),
    runtime: globalThis.document ? known(() => navigator.userAgent) : `Node ${known(() => globalThis.process.version)}`,
  };
}

function whereAmI() {
  if (globalThis.document) return { host: String(globalThis.location?.host ?? "").slice(0, 256), pid: 0 };
  return { host: String(nodeOs()?.hostname() ?? "").slice(0, 256), pid: globalThis.process?.pid ?? 0 };
}

/** Return node:os (Node 20.16 and newer); a static import would break the module in a page. */
function nodeOs() { return globalThis.process?.getBuiltinModule?.("node:os"); }

/** Return the token from LEAKLINE_TOKEN or from the file in LEAKLINE_TOKEN_FILE. @param {Record<string, string | undefined>} env */
function tokenOf(env) {
  const path = env.LEAKLINE_TOKEN_FILE?.trim();
  if (!path) return env.LEAKLINE_TOKEN || undefined;
  const wrong = (/** @type {string} */ why) => new TypeError(`leakline.init: environment LEAKLINE_TOKEN_FILE=${show(path)}: ${why}`);
  if (env.LEAKLINE_TOKEN) throw wrong("LEAKLINE_TOKEN is also set; set only one of the two");
  const files = globalThis.process?.getBuiltinModule?.("node:fs");
  if (!files) throw wrong("cannot be read by this program; it needs Node 20.16 or newer");
  let content;
  try {
    // Check before opening: a pipe would block until somebody writes to it.
    content = files.statSync(path).isFile() && files.readFileSync(path, "latin1");
  } catch (error) {
    throw wrong(`cannot be read (${/** @type {any} */ (error).code})`);
  }
  if (content === false) throw wrong("is not a regular file");
  const token = content.trim();
  if (!token) throw wrong("is empty; write the token into it");
  if (!/^[ -~]{1,65536}$/.test(token)) throw wrong("must be one line of printable ASCII");
  return token;
}

/** Validate the options and add values from the environment and defaults. @param {any} given */
function settingsOf(given) {
  const options = given ?? {};
  const env = (globalThis.document ? undefined : globalThis.process?.env) ?? {};
  const wrong = (/** @type {string} */ name, /** @type {string} */ want) => new TypeError(`leakline.init: ${name} is ${show(options[name])}; it must be ${want}`);
  const text = (/** @type {string} */ name, /** @type {unknown} */ otherwise) => {
    const value = options[name] ?? otherwise;
    if (value !== undefined && (typeof value !== "string" || !value.trim())) throw wrong(name, "a text");
    return /** @type {string} */ (value);
  };
  const number = (/** @type {string} */ name, /** @type {number} */ otherwise) => {
    const value = options[name] ?? otherwise;
    if (!Number.isFinite(value) || value < 0) throw wrong(name, "a number of seconds, 0 or more");
    return value;
  };
  if (typeof options.tf?.memory !== "function") throw wrong("tf", "the TensorFlow.js that trains: import * as tf from \"@tensorflow/tfjs\"");
  const server = text("server", env.LEAKLINE_SERVER || servedFrom() || "http://127.0.0.1:8765").replace(/\/+$/, "");
  if (!/^https?:\/\/./.test(server)) throw wrong("server", "an address such as http://127.0.0.1:8765");
  const mode = text("mode", env.LEAKLINE_MODE || "online");
  if (mode !== "online" && mode !== "disabled") throw wrong("mode", "\"online\" or \"disabled\"");
  const runId = text("runId", env.LEAKLINE_RUN_ID || randomHex(8));
  if (!/^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$/.test(runId)) throw wrong("runId", "letters, digits and _.:- only, 128 at most");
  const total = options.total ?? null;
  if (total !== null && !(Number.isSafeInteger(total) && total >= 0)) throw wrong("total", "a whole number");
  for (const name of ["phases", "tags"]) {
    const list = options[name] ?? [];
    if (!Array.isArray(list) || !list.every((each) => typeof each === "string" && each)) throw wrong(name, "a list of texts");
  }
  const config = plainJson(options.config ?? {});
  if (!config) throw wrong("config", "an object that JSON can hold: no BigInt, and nothing that contains itself");
  if (new TextEncoder().encode(JSON.stringify(config)).length > CONFIG_BYTES) throw wrong("config", "at most 64 KiB as JSON");
  const bands = options.bands === false ? null : { ...BANDS, ...options.bands };
  if (bands && !(bands.elevated >= 0 && bands.elevated <= bands.high && bands.high <= bands.critical)) throw wrong("bands", "{ elevated, high, critical }, each at least the one before");
  const time = options.clock ?? (() => Date.now() / 1000);
  return {
    tf: options.tf, server, mode, runId, total, bands,
    token: text("token", options.token ?? tokenOf(env)), project: text("project", env.LEAKLINE_PROJECT || undefined),
    name: text("name", env.LEAKLINE_RUN_NAME || randomName()), unit: text("unit", "generation"),
    phases: [...(options.phases ?? [])], tags: [...(options.tags ?? [])], config,
    intervalSeconds: number("intervalSeconds", 10), sendSeconds: number("sendSeconds", 1),
    quiet: options.quiet ?? env.LEAKLINE_QUIET === "1", startedAt: time(), time,
    monotonic: options.clock ?? (() => performance.now() / 1000),
    fetch: options.fetch ?? ((/** @type {string} */ url, /** @type {RequestInit} */ request) => globalThis.fetch(url, request)),
  };
}

/** Return the server that a page loaded this module from, if any. */
function servedFrom() {
  const address = /^(https?:\/\/.*)\/static\/js\/leakline\.js/.exec(import.meta.url);
  return address?.[1];
}

/** Return a JSON copy, so that later changes have no effect; undefined if it is not an object that JSON can hold. */
function plainJson(/** @type {any} */ given) {
  if (typeof given !== "object" || Array.isArray(given)) return undefined;
  try {
    return /** @type {Record<string, unknown>} */ (JSON.parse(JSON.stringify({ ...given })));
  } catch {
    return undefined;
  }
}

function show(/** @type {unknown} */ value) {
  try {
    return typeof value === "function" ? "a function" : (JSON.stringify(value) ?? "not given").slice(0, 100);
  } catch {
    return typeof value;
  }
}

/** Parse a Retry-After header to seconds. @param {string | null} said */
function retryAfter(said) {
  if (!said) return 0;
  const seconds = /^\d+$/.test(said) ? Number(said) : (Date.parse(said) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.min(3_600, Math.max(0, seconds)) : 0;
}

/** Return random hex digits; `randomUUID` is missing on pages without TLS. */
function randomHex(/** @type {number} */ bytes) {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function randomName() {
  const [word, animal, high, low] = crypto.getRandomValues(new Uint8Array(4));
  return `${WORDS[word % WORDS.length]}-${ANIMALS[animal % ANIMALS.length]}-${(256 * high + low) % 1000}`;
}

function mebibytes(/** @type {number} */ bytes) { return `${(bytes / REPORT_MIB).toFixed(2)} MiB`; }

/** Wait for the work, but for at most this many seconds. @param {number} seconds @param {Promise<unknown>} work */
async function within(seconds, work) {
  let late;
  await Promise.race([work, new Promise((resolve) => { late = setTimeout(resolve, 1000 * seconds); })]);
  clearTimeout(late);
}

/** Keep a timer from keeping Node alive. */
function loosely(/** @type {any} */ timer) { timer?.unref?.(); }
