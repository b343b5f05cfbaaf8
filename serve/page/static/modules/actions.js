// What can be done with the items that are selected: search with them, label, export or remove them.

import {address, EMPTY, format} from './address.js';
import {announce, labelItems, leftAlone, presentItems, removeItems} from './changes.js';
import {collectionFilter, condition, itemsFilter} from './conditions.js';
import {clone, part, plural, show} from './dom.js';
import {csv, save} from './table.js';

const TOGETHER = 16;  // images in a query
const LONGEST = 4096;  // characters of a condition
const MOST = 10_000;  // images of a collection

export class Actions {
  #bar; #selection; #api; #changes; #seen = null; #busy = false; #replacing = '';

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
    this.#changes = changes;
    root.append(this.#bar);
    for (const name of ['label', 'remove', 'collect']) show(part(this.#bar, name), changes);
    selection.addEventListener('change', () => this.#draw());
    this.#bar.addEventListener('click', event => this.#press(event.target.closest('[data-act]')?.dataset.act));
    part(this.#bar, 'naming').addEventListener('submit', event => { event.preventDefault(); this.#label(); });
    part(this.#bar, 'collecting').addEventListener('submit', event => { event.preventDefault(); this.#collect(); });
  }

  #draw() {
    const {size} = this.#selection, search = part(this.#bar, 'search');
    if (this.#busy) return;
    part(this.#bar, 'count').textContent = `${plural(size, 'image')} selected`;
    search.disabled = size > TOGETHER;
    show(part(this.#bar, 'limit'), search.disabled);
    part(this.#bar, 'limit').textContent = `A search takes at most ${TOGETHER} images: select fewer to search with them.`;
    this.#ask('');
    this.#say('');
  }

  /** Show what is asked before something is done, and nothing else that is asked. */
  #ask(name) { for (const one of ['naming', 'removing', 'collecting']) show(part(this.#bar, one), one === name); }

  #press(act) {
    if (this.#busy || !act) return;
    if (act === 'search') {
      address.update({...EMPTY, like: this.#selection.ids.map(item => ({item, region: null}))});
    } else if (act === 'alone') {
      const chosen = itemsFilter(this.#selection.ids);
      if (condition([chosen], '').length > LONGEST) this.#say(`These are too many to show alone${this.#changes ? ': save them as a collection' : ''}.`);
      else address.update({...EMPTY, tab: 'gallery', picked: [chosen]});
    } else if (act === 'label') {
      this.#look();
      this.#ask('naming');
      part(this.#bar, 'name').focus();
    } else if (act === 'collect') {
      this.#ask('collecting');
      part(this.#bar, 'collection').focus();
    } else if (act === 'ask') {
      this.#look();
      this.#ask('removing');
      part(this.#bar, 'question').textContent = `Remove ${plural(this.#selection.size, 'image')} from the gallery?`;
      part(this.#bar, 'sure').focus();
    } else if (act === 'keep') this.#draw();
    else if (act === 'remove') this.#remove();
    else if (act === 'export') this.#export();
    else if (act === 'clear') this.#selection.clear();
  }

  /** Read what is about to be changed: what somebody else changes from now on is left alone. */
  #look() {
    this.#seen = presentItems(this.#api, this.#selection.ids);
    this.#seen.catch(() => {});  // said when it is needed
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
      const {ids} = this.#selection, seen = await this.#seen;
      const found = await labelItems(this.#api, [...seen.values()].map(item => ({id: item.id, old: item.label, label})), progress);
      found.missing.push(...ids.filter(id => !seen.has(id)));
      return `${plural(found.labelled.length, 'image')} labelled ${label ?? 'with nothing'}. Undo it under Decisions.${leftAlone(found)}`;
    }, true);
  }

  /** Keep the selected images under a name, for everybody, and show them alone. */
  async #collect() {
    const name = part(this.#bar, 'collection').value.trim(), items = this.#selection.ids;
    if (!name) return part(this.#bar, 'collection').focus();
    if (items.length > MOST) return this.#say(`A collection has at most ${MOST.toLocaleString('en')} images.`);
    try {
      const {views} = await this.#api.get('/views'), before = views.find(view => view.name === name);
      if (before && this.#replacing !== name) {
        this.#replacing = name;
        return this.#say(`There is a view ${name} already. Save again to replace it.`);
      }
      const shown = {...EMPTY, tab: 'gallery', picked: [collectionFilter(name)]};
      await this.#api.post('/views', {name, address: format(shown), old: before?.address ?? null, items});
      this.#replacing = part(this.#bar, 'collection').value = '';
      this.#selection.clear();
      address.update(shown);
      announce();  // it may be another one of the same name
      this.#say(`Saved ${plural(items.length, 'image')} as ${name}, under Views.`);
    } catch (error) {
      this.#say(error.code === 'changed' ? `Somebody else has changed the view ${name} in the meantime: nothing was changed.` : error.message);
    }
  }

  #remove() {
    return this.#work('Removing', async progress => {
      const {ids} = this.#selection, seen = await this.#seen, now = await presentItems(this.#api, ids);
      const changed = [...now.values()].filter(item => item.label !== seen.get(item.id)?.label).map(item => item.id);
      const doomed = [...now.keys()].filter(id => !changed.includes(id)), missing = ids.filter(id => !now.has(id));
      await removeItems(this.#api, doomed, progress);
      this.#selection.replace(changed);
      return `${plural(doomed.length, 'image')} removed.${leftAlone({changed, missing})}`;
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
