// What was decided about images by hand: labels, removals, and images that are right as they are.

import {address} from './address.js';
import {announce, undoDecisions} from './changes.js';
import {clone, part, plural, show} from './dom.js';
import {News} from './news.js';

const AT_ONCE = 50, MOST = 1000;
const RETURNS = 'Undone. The image comes back when its folder is indexed again, for example by lookalike index sync.';

export class DecisionList {
  #root; #api; #changes; #news; #before = null;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#changes = gallery.changes;
    this.#news = new News(part(root, 'news'), () => this.#load(true));
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed && address.state.tab === 'gallery' && address.state.view === 'decisions') this.#look(); });
    part(root, 'more').addEventListener('click', () => this.#load(false));
    part(root, 'rows').addEventListener('click', event => this.#undo(event.target.closest('[data-n]')));
  }

  /** Show the newest decisions. */
  follow() { return this.#load(true); }

  async #load(anew) {
    const from = anew || this.#before === null ? '' : `&before=${this.#before}`;
    try {
      const {decisions} = await this.#api.get(`/decisions?limit=${AT_ONCE}${from}`);
      const rows = decisions.map(one => this.#row(one));
      if (anew) part(this.#root, 'rows').replaceChildren(...rows); else part(this.#root, 'rows').append(...rows);
      if (anew) this.#news.tell('');
      this.#before = decisions.at(-1)?.n ?? null;
      show(part(this.#root, 'more'), decisions.length === AT_ONCE);
      const count = part(this.#root, 'rows').childElementCount;
      show(part(this.#root, 'table'), count > 0);
      this.#say(count ? `${plural(count, 'decision')}, newest first. Indexing the folder again carries them out again.` : 'Nothing has been decided by hand yet.');
    } catch (error) {
      this.#say(error.message);
    }
  }

  /** Show which of the decisions others have undone, and say how many are newer. */
  async #look() {
    const rows = [...part(this.#root, 'rows').children];
    if (!rows.length) return this.#load(true);
    const shown = new Map(rows.map(row => [Number(part(row, 'undo').dataset.n), row])), newest = Math.max(...shown.keys());
    const {decisions} = await this.#api.get(`/decisions?limit=${Math.min(rows.length + AT_ONCE, MOST)}`).catch(() => ({decisions: []}));
    if (!rows[0].isConnected) return this.#look();  // others are listed by now
    for (const one of decisions) this.#mark(shown.get(one.n), one);
    const newer = decisions.filter(({n}) => n > newest).length;
    this.#news.tell(newer ? plural(newer, 'newer decision') : '');
  }

  #mark(row, {action, undone, has_source}) {
    if (!row) return;
    show(part(row, 'undo'), this.#changes && !undone && (action !== 'remove' || has_source));  // an upload has gone with its file
    show(part(row, 'undone'), undone);
  }

  #row(decision) {
    const {n, time, action, key, old, new: now, has_source} = decision;
    const row = clone('decision');
    const words = {label: `${old ?? 'no label'} → ${now ?? 'no label'}`, remove: has_source ? 'removed' : 'removed for good', keep: 'right as it is'}[action];
    part(row, 'time').textContent = time.slice(0, 16).replace('T', ' ');
    part(row, 'key').textContent = key;
    part(row, 'action').textContent = words;
    Object.assign(part(row, 'undo').dataset, {n, action});
    this.#mark(row, decision);
    return row;
  }

  async #undo(button) {
    if (!button) return;
    const {n, action} = button.dataset;
    try {
      const [first] = (await undoDecisions(this.#api, [Number(n)])).values();
      announce();
      await this.#load(true);
      if (first || action === 'remove') this.#say(first ?? RETURNS);
    } catch (error) {
      await this.#load(true);
      this.#say(error.message);
    }
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
