// Whether the server answers. A request that fails asks /healthz; while that fails too, it is asked again and again.

const HEALTH = '/healthz';
const PAUSES = [1000, 2000, 4000, 8000, 15_000, 30_000];  // milliseconds until it is asked again
const PATIENCE = 10_000;  // milliseconds that it has for an answer
const SLOW = 5000;  // milliseconds without progress after which a request is slow

/** Dispatches `change` when there is something else to say, and `back` when the server answers again. */
class Connection extends EventTarget {
  /** Whether the server does not answer, as far as is known. */
  away = false;
  /** @type {Promise<boolean> | null} */
  #asking = null;
  #timer = 0; #asked = 0;
  /** @type {Set<() => void>} */
  #slow = new Set();

  constructor() {
    super();
    addEventListener('online', () => this.check());
    addEventListener('offline', () => {
      this.check();  // a server on this machine still answers
      setTimeout(() => this.check(), PAUSES[0]);  // the line may last a moment longer
    });
    document.addEventListener('visibilitychange', () => { if (this.away && !document.hidden) this.check(); });
  }

  /** Whether a request has been waiting for long. */
  get slow() { return this.#slow.size > 0; }

  /** A promise that is kept as soon as the server answers: at once if it is not away. */
  get here() {
    return this.away ? new Promise(resolve => this.addEventListener('back', () => resolve(undefined), {once: true})) : Promise.resolve();
  }

  /** Ask the server now. Returns whether it answers. */
  check() { return this.#asking ??= this.#ask().finally(() => { this.#asking = null; }); }

  async #ask() {
    clearTimeout(this.#timer);
    const here = await fetch(HEALTH, {cache: 'no-store', signal: AbortSignal.timeout(PATIENCE)}).then(answer => answer.ok, () => false);
    const before = this.away;
    this.away = !here;
    if (here) this.#asked = 0;
    else this.#timer = setTimeout(() => { this.#asked++; this.check(); }, PAUSES[Math.min(this.#asked, PAUSES.length - 1)]);
    if (before || !here) this.#tell('change');
    if (before && here) this.#tell('back');
    return here;
  }

  /**
   * Watch a request. Returns what to call whenever it moves, and when it has ended.
   * @param {() => void} cancel Ends the request.
   */
  watch(cancel) {
    let timer = 0;
    const ended = () => { clearTimeout(timer); if (this.#slow.delete(cancel)) this.#tell('change'); };
    const moved = () => {
      ended();
      timer = setTimeout(() => { this.#slow.add(cancel); this.#tell('change'); }, SLOW);
    };
    moved();
    return {moved, ended};
  }

  /** Cancel the requests that are slow. */
  cancel() { for (const cancel of [...this.#slow]) cancel(); }

  /** @param {string} name */
  #tell(name) { this.dispatchEvent(new Event(name)); }
}

export const connection = new Connection();
