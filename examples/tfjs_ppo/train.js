// In Node: npm install @tensorflow/tfjs@4.22.0, and there: node …/examples/tfjs_ppo/train.js [--leak | --leak-norms | --leak-clipped] [--generations 25]
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

import * as leakline from "../../agent_client/js/leakline.js";
import { LEAKS, train } from "./ppo.js";

const switches = Object.fromEntries(["leak", ...LEAKS.map((leak) => `leak-${leak}`)].map((name) => [name, { type: "boolean" }]));
const { values } = parseArgs({ options: { ...switches, generations: { type: "string", default: "25" } } });
// Resolved from the current folder, not from the folder of this file.
const tf = createRequire(`${process.cwd()}/`)("@tensorflow/tfjs");
await tf.setBackend("cpu");
const generations = Number(values.generations);
const leaks = LEAKS.filter((leak) => values.leak || values[`leak-${leak}`]);
const run = leakline.init({ tf, project: "tfjs-ppo", total: generations, phases: ["rollout", "train"] });
console.log(`${await train(tf, run, { leaks, generations })} tensors`);
await run.finish();
