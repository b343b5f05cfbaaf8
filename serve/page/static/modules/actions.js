// What can be done with the items that are selected: search with them, label, export or remove them.

import {address, EMPTY} from './address.js';
import {clone, part, plural, show} from './dom.js';
import {csv, save} from './table.js';

const TOGETHER = 16;  // images in a query
const AT_ONCE = 200;  // items in a condition

export class Actions {
  #bar; #selection; #api; #busy = false;

  /**
   * @param {Element} root Receives the bar, which is hidden while nothing is selected.
   * @param {Selection} selection
   * @param {Api} api
   * @param {boolean} changes Whether the server lets visitors change the gallery.
   */
  constructor(root, selection, api, changes) {
    this.#bar = clone('actions');
    this.#selection = selection;
    this.#api = api;
    root.append(this.#bar);
    for (const name of ['label', 'remove']) show(part(this.#bar, name), changes);
    selection.addEventListener('change', () => this.#draw());
    this.#bar.addEventListener('click', event => this.#press(event.target.closest('[data-act]')?.dataset.act));
    part(this.#bar, 'naming').addEventListener('submit', event => { event.preventDefault(); this.#label(); });
  }

  #draw() {
    const {size} = this.#selection, search = part(this.#bar, 'search');
    if (this.#busy) return;
    part(this.#bar, 'count').textContent = `${plural(size, 'image')} selected`;
    search.disabled = size > TOGETHER;
    search.title = search.disabled ? `At most ${TOGETHER} images are searched with together` : '';
    show(part(this.#bar, 'naming'), false);
    show(part(this.#bar, 'removing'), false);
    this.#say('');
  }

  #press(act) {
    if (this.#busy || !act) return;
    if (act === 'search') {
      address.update({...EMPTY, like: this.#selection.ids.map(item => ({item, region: null}))});
    } else if (act === 'label') {
      show(part(this.#bar, 'removing'), false);
      show(part(this.#bar, 'naming'), true);
      part(this.#bar, 'name').focus();
    } else if (act === 'ask') {
      show(part(this.#bar, 'naming'), false);
      show(part(this.#bar, 'removing'), true);
      part(this.#bar, 'question').textContent = `Remove ${plural(this.#selection.size, 'image')} from the gallery?`;
      part(this.#bar, 'sure').focus();
    } else if (act === 'keep') this.#draw();
    else if (act === 'remove') this.#remove();
    else if (act === 'export') this.#export();
    else if (act === 'clear') this.#selection.clear();
  }

  #export() {
    return this.#work('Reading', async progress => {
      const items = [];
      for (const {where, ids} of conditions(this.#selection.ids)) {
        const found = await this.#api.get(`/items?limit=${AT_ONCE}&where=${encodeURIComponent(where)}`);
        items.push(...found.items);
        progress(ids.length);
      }
      save(csv(items), 'selection.csv', 'text/csv');
      return `Saved ${plural(items.length, 'image')}.`;
    });
  }

  #label() {
    const label = part(this.#bar, 'name').value.trim() || null;
    return this.#work('Labelling', async progress => {
      const {ids} = this.#selection;
      for (const id of ids) {
        await this.#api.send('PATCH', `/items/${id}`, {label});
        progress(1);
      }
      return `${plural(ids.length, 'image')} labelled ${label ?? 'with nothing'}. Undo it under Decisions.`;
    }, true);
  }

  #remove() {
    return this.#work('Removing', async progress => {
      const {ids} = this.#selection;
      for (const {where, ids: some} of conditions(ids)) {
        const {selected} = await this.#api.post('/items:remove', {where});
        await this.#api.post('/items:remove', {where, dry_run: false, expected: selected});
        progress(some.length);
      }
      this.#selection.clear();
      return `${plural(ids.length, 'image')} removed.`;
    }, true);
  }

  /** Do something with the selection, say how far it is, and in the end what was done or why it failed. */
  async #work(what, task, changes = false) {
    const total = this.#selection.size;
    let done = 0, words;
    this.#busy = true;
    this.#bar.ariaBusy = 'true';
    this.#say(`${what} …`);
    try {
      words = await task(count => { done += count; this.#say(`${what}: ${done.toLocaleString('en')} of ${plural(total, 'image')}`); });
    } catch (error) {
      words = done ? `${error.message} ${done.toLocaleString('en')} of ${plural(total, 'image')} were done.` : error.message;
    }
    this.#busy = false;
    this.#bar.ariaBusy = null;
    this.#draw();
    this.#say(words);
    if (changes) document.dispatchEvent(new CustomEvent('lookalike:changed'));
  }

  #say(text) {
    const {size} = this.#selection;
    part(this.#bar, 'message').textContent = text;
    show(this.#bar, size > 0 || Boolean(text));
    show(part(this.#bar, 'what'), size > 0);
  }
}

/** Return conditions that select these items, some of them each. */
const conditions = ids => Array.from({length: Math.ceil(ids.length / AT_ONCE)}, (_, index) => {
  const some = ids.slice(index * AT_ONCE, (index + 1) * AT_ONCE);
  return {ids: some, where: `id in (${some.join(', ')})`};
});
