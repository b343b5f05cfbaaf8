// What can be done with the items that are selected: search with them, label, export or remove them.

import {address, EMPTY} from './address.js';
import {announce, labelItems, presentItems, removeItems} from './changes.js';
import {clone, part, plural, show} from './dom.js';
import {csv, save} from './table.js';

const TOGETHER = 16;  // images in a query

export class Actions {
  #bar; #selection; #api; #busy = false;

  /**
   * @param {Root} root Receives the bar, which is hidden while nothing is selected.
   * @param {import('./selection.js').Selection} selection
   * @param {import('./api.js').Api} api
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
      const items = [...(await presentItems(this.#api, this.#selection.ids, progress)).values()];
      save(csv(items), 'selection.csv', 'text/csv');
      return `Saved ${plural(items.length, 'image')}.`;
    });
  }

  #label() {
    const label = part(this.#bar, 'name').value.trim() || null;
    return this.#work('Labelling', async progress => {
      const {ids} = this.#selection;
      await labelItems(this.#api, ids, label, progress);
      return `${plural(ids.length, 'image')} labelled ${label ?? 'with nothing'}. Undo it under Decisions.`;
    }, true);
  }

  #remove() {
    return this.#work('Removing', async progress => {
      const {ids} = this.#selection;
      await removeItems(this.#api, ids, progress);
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
    if (changes) announce();
  }

  #say(text) {
    const {size} = this.#selection;
    part(this.#bar, 'message').textContent = text;
    show(this.#bar, size > 0 || Boolean(text));
    show(part(this.#bar, 'what'), size > 0);
  }
}
