// Long work of the server: the job of a kind, its progress and its result.

import {connection} from './connection.js';
import {plural} from './dom.js';

const PAUSES = [100, 200, 400, 800, 1000];  // milliseconds between two requests

export class Jobs {
  #api;

  /** @param {import('./api.js').Api} api The API of the gallery. */
  constructor(api) { this.#api = api; }

  /** Return the newest job of a kind that runs or is done, without its result; undefined if there is none. */
  async newest(kind) {
    const {jobs} = await this.#api.get('/jobs');
    return jobs.find(job => job.kind === kind && job.state !== 'failed');
  }

  /** Start a job; further options are those of its kind. */
  start(kind, options = {}) { return this.#api.post('/jobs', {kind, ...options}); }

  /** Stop a job and forget it. */
  cancel(job) { return this.#api.send('DELETE', `/jobs/${job.id}`); }

  /**
   * Wait until a job has ended, and return its result; an error if it has failed. It goes on when the server was away.
   * @param {(text: string, share: number | null) => void} progress Called after every request, with the share that is
   *   done, if that is known.
   */
  async follow(job, progress, signal) {
    for (let asked = 0; ; asked++) {
      const now = await this.#api.get(`/jobs/${job.id}`, {signal}).catch(error => { if (error.code !== 'unreachable' || !connection.away) throw error; });
      if (!now) {
        progress('waiting for the server', null);
        await connection.here;
        continue;
      }
      if (now.state === 'done') return now.result;
      if (now.state === 'failed') throw new Error(sentence(now.problem.detail));
      const at = now.progress;
      progress(at ? `${at.what}: ${at.done.toLocaleString('en')}${at.total ? ` of ${plural(at.total, at.unit.replace(/s$/, ''))}` : ''}` : 'starting',
        at?.total ? at.done / at.total : null);
      await new Promise(resolve => setTimeout(resolve, PAUSES[Math.min(asked, PAUSES.length - 1)]));
    }
  }
}

const sentence = text => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
