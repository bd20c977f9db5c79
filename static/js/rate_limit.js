// Runs a job on request, one at a time, with a pause that depends on its duration. Does not access the page.

const FIRST_MS = 150;
const LEAST_REST_MS = 1500;
const MOST_REST_MS = 30_000;
// Limits the job to a tenth of the server's time: it reads the entire history of a run.
const REST_FACTOR = 10;

export class Paced {
  constructor(work, { wait = (action, ms) => setTimeout(action, ms), now = () => performance.now() } = {}) {
    this.work = work;
    this.wait = wait;
    this.now = now;
    this.busy = false;
    this.again = false;
  }

  want() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    this.wait(() => this.#run(), FIRST_MS);
  }

  async #run() {
    this.again = false;
    const began = this.now();
    try {
      await this.work();
    } finally {
      const rest = Math.min(MOST_REST_MS, Math.max(LEAST_REST_MS, REST_FACTOR * (this.now() - began)));
      this.wait(() => this.#rested(), rest);
    }
  }

  #rested() {
    this.busy = false;
    if (this.again) this.want();
  }
}
