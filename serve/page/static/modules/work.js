// A job in a view: its progress, a button that cancels it, and what became of it.

import {part, show} from './dom.js';

export class Work {
  #root; #jobs; #running = null;

  /**
   * @param {Element} root Has the parts `job`, `doing`, `progress`, `cancel` and `status`.
   * @param {import('./jobs.js').Jobs} jobs
   */
  constructor(root, jobs) {
    this.#root = root;
    this.#jobs = jobs;
    part(root, 'cancel').addEventListener('click', () => this.#cancel());
  }

  /** Start a job and return its result; null if it failed or was cancelled, which is said. */
  run(kind, options) { return this.#follow(() => this.#jobs.start(kind, options)); }

  /** Return the result of the newest job of a kind, also if it is still running; null if there is none. */
  resume(kind) { return this.#follow(() => this.#jobs.newest(kind)); }

  say(text) { part(this.#root, 'status').textContent = text; }

  /** Say something after what was said. */
  add(text) { part(this.#root, 'status').textContent += ` ${text}`; }

  async #follow(begin) {
    const bar = part(this.#root, 'progress');
    try {
      const job = await begin();
      if (!job) return null;
      this.#running = job;
      this.say('');
      return await this.#jobs.follow(job, (text, share) => {
        show(part(this.#root, 'job'), this.#running === job);
        part(this.#root, 'doing').textContent = text;
        if (share === null) bar.removeAttribute('value'); else bar.value = share;
      });
    } catch (error) {
      if (this.#running || !(error.code === 'no-such-job')) this.say(error.message);
      return null;
    } finally {
      this.#running = null;
      show(part(this.#root, 'job'), false);
    }
  }

  async #cancel() {
    const job = this.#running;
    this.#running = null;
    Object.assign(part(this.#root, 'status'), {tabIndex: -1}).focus();  // the button that had it is hidden now
    show(part(this.#root, 'job'), false);
    if (job) await this.#jobs.cancel(job).catch(() => {});
    this.say('Cancelled.');
  }
}
