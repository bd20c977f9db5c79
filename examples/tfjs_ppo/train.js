// In Node: npm install @tensorflow/tfjs@4.22.0, and there: node …/examples/tfjs_ppo/train.js [--leak] [--generations 25]
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

import * as leakline from "../../agent_client/js/leakline.js";
import { train } from "./ppo.js";

const { values } = parseArgs({ options: { leak: { type: "boolean" }, generations: { type: "string", default: "25" } } });
// From the folder where it is run, wherever this file lies.
const tf = createRequire(`${process.cwd()}/`)("@tensorflow/tfjs");
await tf.setBackend("cpu");
const generations = Number(values.generations);
const run = leakline.init({ tf, project: "tfjs-ppo", total: generations, phases: ["rollout", "train"] });
console.log(`${await train(tf, run, { leak: values.leak, generations })} tensors`);
await run.finish();
