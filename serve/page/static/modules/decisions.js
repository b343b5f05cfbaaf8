// What was decided about images by hand: labels, removals, and images that are right as they are.

import {announce} from './changes.js';
import {clone, part, plural, show} from './dom.js';

const AT_ONCE = 50;

export class DecisionList {
  #root; #api; #changes; #before = null;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#changes = gallery.changes;
    part(root, 'more').addEventListener('click', () => this.#load(false));
    part(root, 'rows').addEventListener('click', event => this.#undo(event.target.closest('[data-n]')?.dataset.n));
  }

  /** Show the newest decisions. */
  follow() { return this.#load(true); }

  async #load(anew) {
    const from = anew || this.#before === null ? '' : `&before=${this.#before}`;
    try {
      const {decisions} = await this.#api.get(`/decisions?limit=${AT_ONCE}${from}`);
      const rows = decisions.map(one => this.#row(one));
      if (anew) part(this.#root, 'rows').replaceChildren(...rows); else part(this.#root, 'rows').append(...rows);
      this.#before = decisions.at(-1)?.n ?? null;
      show(part(this.#root, 'more'), decisions.length === AT_ONCE);
      const count = part(this.#root, 'rows').childElementCount;
      show(part(this.#root, 'table'), count > 0);
      this.#say(count ? `${plural(count, 'decision')}, newest first. Indexing the folder again carries them out again.` : 'Nothing has been decided by hand yet.');
    } catch (error) {
      this.#say(error.message);
    }
  }

  #row({n, time, action, key, old, new: now, undone}) {
    const row = clone('decision');
    const words = {label: `${old ?? 'no label'} → ${now ?? 'no label'}`, remove: 'removed', keep: 'right as it is'}[action];
    part(row, 'time').textContent = time.slice(0, 16).replace('T', ' ');
    part(row, 'key').textContent = key;
    part(row, 'action').textContent = words;
    const button = part(row, 'undo');
    button.dataset.n = n;
    show(button, this.#changes && !undone);
    show(part(row, 'undone'), undone);
    return row;
  }

  async #undo(n) {
    if (!n) return;
    try {
      await this.#api.send('DELETE', `/decisions/${n}`);
      announce();
      await this.#load(true);
    } catch (error) {
      this.#say(error.message);
    }
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
