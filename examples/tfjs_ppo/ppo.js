/**
 * A small PPO-like training with TensorFlow.js: an actor, a critic, and gradients clipped by their norm.
 * The leaks are those found in real agents: with "norms" the norms of gradients, and with "clipped" the clipped gradients
 * are never disposed of, and the step that makes them has no `tf.tidy`.
 */

export const LEAKS = ["norms", "clipped"];

const OBSERVATIONS = 32, ACTIONS = 4, HIDDEN = 128, STEPS = 32, CLIP_NORM = 0.01, CLIP_RATIO = 0.2;

/** A seeded random number generator. */
function dice(seed) {
  let state = seed;
  return () => { state = (1664525 * state + 1013904223) % 2 ** 32; return state / 2 ** 32; };
}

function network(tf, outputs, activation, seed) {
  const layer = (units, more, i) => tf.layers.dense({ units, kernelInitializer: tf.initializers.glorotUniform({ seed: seed + i }), ...more });
  return tf.sequential({ layers: [
    layer(HIDDEN, { activation: "tanh", inputShape: [OBSERVATIONS] }, 0), layer(HIDDEN, { activation: "tanh" }, 1), layer(outputs, { activation }, 2),
  ] });
}

export class PpoAgent {
  constructor(tf, { leaks = [] } = {}) {
    this.tf = tf;
    this.leaks = new Set(leaks);
    this.actor = network(tf, ACTIONS, "softmax", 1);
    this.critic = network(tf, 1, "linear", 11);
    this.optimizers = [tf.train.adam(3e-4), tf.train.adam(1e-3)];
    this.random = dice(7);
  }

  /** Play some steps of a game in which the first observations determine the best action. */
  rollout() {
    const observations = Array.from({ length: STEPS * OBSERVATIONS }, () => this.random() - 0.5);
    const chances = this.tf.tidy(() => this.actor.predict(this.tf.tensor2d(observations, [STEPS, OBSERVATIONS])).arraySync());
    const actions = chances.map((chance) => this.draw(chance));
    const rewards = actions.map((action, i) => {
      const seen = observations.slice(i * OBSERVATIONS, i * OBSERVATIONS + ACTIONS);
      return seen[action] === Math.max(...seen) ? 1 : 0;
    });
    return { observations, actions, rewards, before: actions.map((action, i) => chances[i][action]) };
  }

  draw(chances) {
    let rest = this.random();
    const found = chances.findIndex((chance) => (rest -= chance) < 0);
    return found < 0 ? ACTIONS - 1 : found;
  }

  train(played) {
    if (this.leaks.size) this.update(played);
    else this.tf.tidy(() => { this.update(played); });
  }

  update({ observations, actions, rewards, before }) {
    const { tf } = this;
    const seen = tf.tensor2d(observations, [STEPS, OBSERVATIONS]);
    const taken = tf.tensor1d(actions, "int32"), gained = tf.tensor1d(rewards), old = tf.tensor1d(before);
    const advantage = tf.tidy(() => gained.sub(this.critic.predict(seen).flatten()));
    const actorLoss = () => tf.tidy(() => {
      const ratio = this.actor.apply(seen, { training: true }).mul(tf.oneHot(taken, ACTIONS)).sum(1).div(old);
      const clipped = ratio.clipByValue(1 - CLIP_RATIO, 1 + CLIP_RATIO);
      return tf.minimum(ratio.mul(advantage), clipped.mul(advantage)).mean().neg();
    });
    const criticLoss = () => tf.tidy(() => tf.losses.meanSquaredError(gained, this.critic.apply(seen, { training: true }).flatten()));
    this.descend(this.optimizers[0], actorLoss, this.actor);
    this.descend(this.optimizers[1], criticLoss, this.critic);
    tf.dispose([seen, taken, gained, old, advantage]);
  }

  descend(optimizer, loss, network) {
    const { tf } = this;
    const { value, grads } = tf.variableGrads(loss, network.trainableWeights.map((weight) => weight.val));
    const clipped = {};
    for (const [name, grad] of Object.entries(grads)) {
      const norm = tf.norm(grad), size = norm.dataSync()[0];
      clipped[name] = size > CLIP_NORM ? tf.mul(grad, CLIP_NORM / size) : grad;
      if (!this.leaks.has("norms")) norm.dispose();
    }
    optimizer.applyGradients(clipped);
    if (!this.leaks.has("clipped")) tf.dispose(clipped);
    tf.dispose([value, ...Object.values(grads)]);
  }
}

/** Train with Leakline and return the number of tensors at the end. */
export async function train(tf, run, { leaks = [], generations = 25, updates = 7 } = {}) {
  const agent = new PpoAgent(tf, { leaks });
  for (let generation = 0; generation < generations; generation += 1) {
    run.generation(generation);
    const played = run.phase("rollout", () => Array.from({ length: updates }, () => agent.rollout()));
    await run.phase("train", async () => {
      for (const each of played) {
        agent.train(each);
        run.check();
        // Yield, so that the page stays responsive.
        await new Promise((resolve) => { setTimeout(resolve, 0); });
      }
    });
  }
  return tf.memory().numTensors;
}
