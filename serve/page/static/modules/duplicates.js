// Near-duplicates: groups of images that look alike, of which one may stay.

import {address} from './address.js';
import {announce, presentItems, removeItems} from './changes.js';
import {breakable, clone, fileName, part, plural, show} from './dom.js';
import {Jobs} from './jobs.js';
import {Work} from './work.js';

const LISTED = 500;  // groups
const SHOWN = 50;

export class Duplicates {
  #root; #api; #work; #groups = []; #total = 0; #shown = SHOWN; #changes; #started = false; #busy = false;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#changes = gallery.changes;
    this.#work = new Work(root, new Jobs(api));
    root.addEventListener('submit', event => { event.preventDefault(); this.#find(); });
    part(root, 'groups').addEventListener('click', event => this.#press(event));
    part(root, 'all').addEventListener('click', () => this.#ask());
    part(root, 'sure').addEventListener('click', () => this.#removeAll());
    part(root, 'keep-all').addEventListener('click', () => show(part(root, 'asking'), false));
    part(root, 'more').addEventListener('click', () => { this.#shown += SHOWN; this.#draw(); });
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed && address.state.tab === 'gallery' && address.state.view === 'duplicates') this.#look(); });
  }

  /** Show the groups that were found last, by this visitor or another. */
  follow() {
    if (this.#groups.length) return this.#look();
    if (this.#started) return;
    this.#started = true;
    this.#resume();
  }

  async #resume() {
    const found = await this.#work.resume('duplicates');
    if (!found) return;
    const groups = found.groups.map(group => ({...group, surplus: new Set(group.surplus ?? [])}));
    this.#take({...found, groups: await this.#present(groups)});
  }

  /** Return groups without the images that are gone; if the one that was to stay is gone, all others stay. */
  async #present(groups) {
    const there = await presentItems(this.#api, groups.flatMap(group => group.images.map(image => image.id)));
    return groups.map(group => {
      const images = group.images.filter(image => there.has(image.id)), surplus = [...group.surplus].filter(id => there.has(id));
      return {...group, images, surplus: new Set(surplus.length < images.length ? surplus : [])};
    }).filter(group => group.images.length > 1);
  }

  /** Leave out what others have removed in the meantime. */
  async #look() {
    if (this.#busy) return;
    const before = this.#groups, groups = await this.#present(before).catch(() => null);
    if (!groups || this.#busy) return;
    if (before !== this.#groups) return this.#look();  // the visitor has removed some of what was read
    if (images(groups) === images(before)) return;
    this.#groups = groups;
    this.#draw();
    this.#work.add('Somebody else has removed some of them.');
  }

  async #find() {
    const min_score = Number(part(this.#root, 'score').value), keep = part(this.#root, 'rule').value;
    const found = await this.#work.run('duplicates', {min_score, keep, limit: LISTED});
    if (found) this.#take(found);
  }

  #take({groups, total}) {
    this.#total = total;
    this.#shown = SHOWN;
    this.#groups = groups.map(group => ({...group, surplus: new Set(group.surplus ?? [])}));
    this.#draw();
  }

  #draw() {
    const groups = this.#groups.slice(0, this.#shown);
    part(this.#root, 'groups').replaceChildren(...groups.map(group => this.#group(group)));
    const surplus = this.#surplus(this.#groups).length;
    show(part(this.#root, 'all'), this.#changes && surplus > 0);
    part(this.#root, 'all').textContent = `Remove ${plural(surplus, 'image')} …`;
    show(part(this.#root, 'asking'), false);
    show(part(this.#root, 'more'), this.#groups.length > this.#shown);
    const more = this.#total > this.#groups.length ? ` of ${this.#total.toLocaleString('en')}` : '';
    this.#work.say(this.#groups.length ? `${plural(this.#groups.length, 'group')}${more} of images that look alike.` : 'No two images are that similar.');
  }

  #group(group) {
    const row = clone('group');
    part(row, 'words').textContent = `${group.identical ? 'Same bytes' : `Similarity ${group.lowest.toFixed(3)}`}${group.surplus.size ? '' : ' · labels differ: choose the one that stays'}`;
    part(row, 'images').replaceChildren(...group.images.map(image => this.#image(group, image)));
    show(part(row, 'thin'), this.#changes && group.surplus.size > 0);
    row.dataset.group = this.#groups.indexOf(group);
    return row;
  }

  #image(group, image) {
    const entry = clone('member'), kept = group.surplus.size > 0 && !group.surplus.has(image.id);
    entry.dataset.item = image.id;
    entry.classList.toggle('surplus', group.surplus.has(image.id));
    const picture = part(entry, 'image');
    picture.src = image.thumbnail;
    picture.alt = `item ${image.id} · ${image.label ?? 'no label'}`;
    part(entry, 'label').replaceChildren(...breakable(image.label ?? 'no label'));
    part(entry, 'file').textContent = fileName(image.key);
    const choice = part(entry, 'choice');
    choice.ariaPressed = String(kept);
    choice.textContent = kept ? 'stays' : 'keep this one';
    choice.hidden = !this.#changes;
    return entry;
  }

  #press(event) {
    const row = event.target.closest('[data-group]'), act = event.target.closest('[data-act]')?.dataset.act;
    if (!row || !act) return;
    const group = this.#groups[Number(row.dataset.group)], item = Number(event.target.closest('[data-item]')?.dataset.item);
    if (act === 'open') address.update({open: item});
    else if (act === 'keep') { group.surplus = new Set(group.images.map(image => image.id).filter(id => id !== item)); this.#draw(); }
    else if (act === 'fine') { this.#groups = this.#groups.filter(one => one !== group); this.#draw(); }
    else if (act === 'thin') this.#remove([group]);
  }

  #surplus(groups) { return groups.flatMap(group => [...group.surplus]); }

  #ask() {
    part(this.#root, 'question').textContent = `Remove ${plural(this.#surplus(this.#groups).length, 'image')} from the gallery? Groups whose labels differ stay whole, unless you have chosen.`;
    show(part(this.#root, 'asking'), true);
    part(this.#root, 'sure').focus();
  }

  #removeAll() { return this.#remove(this.#groups.filter(group => group.surplus.size)); }

  async #remove(chosen) {
    this.#busy = true;
    try {
      // As they are now: somebody else may have removed the one that was to stay.
      const groups = (await this.#present(chosen)).filter(group => group.surplus.size), ids = this.#surplus(groups);
      let removed = 0;
      await removeItems(this.#api, ids, count => { removed += count; this.#work.say(`Removing: ${removed} of ${plural(ids.length, 'image')}`); });
      this.#groups = await this.#present(this.#groups);
      this.#draw();
      const missed = chosen.length - groups.length;
      this.#work.say(`${plural(ids.length, 'image')} removed. ${plural(this.#groups.length, 'group')} left.${missed ? ` Somebody else has changed ${plural(missed, 'group')} in the meantime.` : ''}`);
      announce(ids);
    } catch (error) {
      this.#work.say(error.message);
    }
    this.#busy = false;
  }
}

const images = groups => groups.map(group => group.images.length).join();
