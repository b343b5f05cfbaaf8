// The images of the gallery as a grid that goes on as it is scrolled, with filters, order and selection.

import {address} from './address.js';
import {Actions} from './actions.js';
import {choosing} from './cards.js';
import {clone, fileName, orders, part, plural, show} from './dom.js';
import {faulty, Filters} from './filters.js';
import {Grid} from './grid.js';
import {News} from './news.js';
import {Selection} from './selection.js';

const FIRST = 60;  // images of the first page
const FURTHER = 240;  // of those after it
const MOST = 1000;  // of a page, of the API
const AHEAD = 3000;  // pixels below the window in which they are asked for
const BUSY = 300;  // milliseconds until another look while images are loaded

const title = item => item.label ?? 'no label';

export class Pictures {
  #root; #api; #filters; #list; #grid; #news; #selection = new Selection(); #cursor = null; #asked; #listed; #last = null; #busy = false; #total = null;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#list = part(root, 'grid');
    this.#grid = new Grid(this.#list, part(root, 'status'), {
      api, words: title, ahead: AHEAD,
      draw: item => this.#card(item),
      alt: (item, _, words) => `item ${item.id} · ${words}`,
      act: (what, item) => this.#act(what, item.id),
      more: () => this.#more(),
    });
    this.#filters = new Filters(part(root, 'filters'), api, gallery, true);
    part(root, 'order').append(...orders(['label', ...gallery.columns]));
    part(root, 'order').addEventListener('change', event => address.update({order: event.target.value}));
    new Actions(part(root, 'selection'), this.#selection, api, gallery.changes);
    this.#selection.addEventListener('change', () => this.#mark());
    this.#list.addEventListener('click', event => this.#press(event));
    this.#list.addEventListener('keydown', event => this.#key(event));
    choosing(part(root, 'looks'), gallery.columns);
    this.#news = new News(part(root, 'news'), () => { this.#listed = undefined; this.#again(); });
    document.addEventListener('lookalike:changed', () => this.#again());
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed) this.#live(); });
  }

  /** Show the images of the address's filters and order. */
  follow() {
    this.#filters.draw();
    part(this.#root, 'order').value = address.state.order;
    const asked = JSON.stringify([this.#filters.condition(), address.state.order]);
    if (asked === this.#asked) return this.#grid.look();
    this.#asked = asked;
    this.#cursor = null;
    this.#total = null;
    this.#load(true, asked === this.#listed ? this.#grid.count : 0);
  }

  /** List the images again, when they are looked at. */
  #again() {
    this.#asked = undefined;
    if (this.#open) this.follow();
  }

  get #open() { return address.state.tab === 'gallery' && !address.state.view; }

  /** Bring what is listed up to date where it is, and offer what others have added. */
  async #live() {
    if (this.#busy) return void setTimeout(() => this.#live(), BUSY);
    if (!this.#open || !this.#grid.count) return this.#again();
    const asked = this.#asked, where = this.#filters.condition();
    try {
      await this.#grid.freshen();
      const total = await this.#count(where);
      if (asked !== this.#asked || this.#total === null) return;
      const more = total - this.#total + this.#grid.gone;
      this.#say(plural(total, 'image'));
      this.#news.tell(more > 0 ? this.#filters.narrow ? `${plural(more, 'more image')} passed the filters by now` : `${plural(more, 'image')} ${more === 1 ? 'was' : 'were'} added` : '');
    } catch { /* what is listed stays */ }
  }

  #more() { if (!this.#busy && this.#cursor) this.#load(false); }

  /**
   * Load further images, or the first ones.
   * @param {boolean} anew Whether they come in place of those that are listed.
   * @param {number} [least] How many there were of the same question, so that the place among them is kept.
   */
  async #load(anew, least = 0) {
    const asked = this.#asked, where = this.#filters.condition();
    const found = [];
    this.#busy = true;
    this.#list.classList.toggle('stale', anew);
    try {
      do {
        const limit = anew ? Math.min(Math.max(FIRST, least - found.length), MOST) : FURTHER;
        const query = new URLSearchParams({limit: String(limit), ...(where && {where}), ...(address.state.order && {order: address.state.order}), ...(this.#cursor && {cursor: this.#cursor})});
        const page = await this.#api.get(`/items?${query}`);
        if (asked !== this.#asked) return;
        this.#cursor = page.next_cursor;
        for (const item of page.items) found.push(item);
      } while (this.#cursor && found.length < least);
      if (anew) this.#grid.replace(found, least > 0); else this.#grid.append(found);
      if (anew && !least && this.#root.getBoundingClientRect().top < 0) this.#root.scrollIntoView({behavior: 'instant'});
      this.#listed = asked;
      this.#size();
      this.#list.classList.remove('stale');
      this.#filters.fault(null);
      if (!anew) return;
      this.#news.tell('');
      const total = await this.#count(where);
      if (asked !== this.#asked) return;
      this.#total = total;
      this.#size();
      this.#say(total ? plural(total, 'image') : this.#filters.narrow ? 'No image passes the filters.' : 'There are no images yet.');
    } catch (error) {
      const explained = await this.#filters.explained(error);
      if (asked !== this.#asked) return;
      this.#asked = undefined;
      this.#cursor = null;
      if (!this.#filters.fault(explained)) return this.#say(error.message);
      this.#list.classList.remove('stale');
      this.#say(faulty(this.#grid.count));
    } finally {
      this.#busy = false;
      show(part(this.#root, 'end'), this.#cursor !== null);
      this.#grid.look();  // its end may still be near
    }
  }

  #size() { this.#grid.size = this.#cursor ? this.#total ?? -1 : this.#grid.count; }

  /** Return how many images pass a condition; all if it is empty. */
  async #count(where) {
    const {images} = await this.#api.get(where ? `/facets?columns=label&limit=1&where=${encodeURIComponent(where)}` : '/gallery');
    return images;
  }

  #card(item) {
    const card = clone('picture'), box = part(card, 'box');
    part(card, 'open').title = fileName(item.key);
    box.ariaLabel = `Select item ${item.id}`;
    box.checked = this.#selection.has(item.id);
    return card;
  }

  #press(event) {
    const card = event.target.closest('li');
    if (!card) return;
    const item = Number(card.dataset.item);
    if (event.target.closest('[data-part=open]')) address.update({open: item});
    else if (event.target.matches('input')) {
      if (event.shiftKey && this.#last !== null) this.#selection.add(this.#between(this.#last, item));
      else this.#selection.toggle(item);
      this.#last = item;
    }
  }

  #act(what, item) {
    if (what === 'select') this.#selection.toggle(item);
    else document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item, side: what === 'unlike' ? what : 'like', alone: what === 'alone'}}));
  }

  #between(first, last) {
    const ids = this.#grid.items.map(item => item.id);
    const [from, to] = [ids.indexOf(first), ids.indexOf(last)].sort((a, b) => a - b);
    return from < 0 ? [last] : ids.slice(from, to + 1);
  }

  #key(event) {
    if (event.key === 'Escape') this.#selection.clear();
    if (event.key !== 'a' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.#selection.add(this.#grid.items.map(item => item.id));
  }

  #mark() {
    this.#list.classList.toggle('selecting', this.#selection.size > 0);
    for (const {item, card} of this.#grid.cards) part(card, 'box').checked = this.#selection.has(item.id);
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
