// The images of the gallery as a grid that goes on as it is scrolled, with filters, order and selection.

import {address} from './address.js';
import {Actions} from './actions.js';
import {caption, choice, choosing, nameCards, redraw, steer} from './cards.js';
import {clone, orders, part, plural, proportion, show} from './dom.js';
import {faulty, Filters} from './filters.js';
import {freshen, News} from './news.js';
import {fileName} from './results.js';
import {Selection} from './selection.js';

const AT_ONCE = 60;
const AHEAD = '1200px';  // how far below the screen further images are asked for
const BUSY = 300;  // milliseconds until another look while images are loaded

const title = item => item.label ?? 'no label';

export class Pictures {
  #root; #api; #filters; #list; #end; #news; #selection = new Selection(); #cursor = null; #asked; #last = null; #busy = false; #total = null;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#list = part(root, 'grid');
    this.#end = part(root, 'end');
    this.#filters = new Filters(part(root, 'filters'), api, gallery);
    part(root, 'order').append(...orders(['label', ...gallery.columns]));
    part(root, 'order').addEventListener('change', event => address.update({order: event.target.value}));
    new Actions(part(root, 'selection'), this.#selection, api, gallery.changes);
    this.#selection.addEventListener('change', () => this.#mark());
    this.#list.addEventListener('click', event => this.#press(event));
    this.#list.addEventListener('keydown', event => this.#key(event));
    steer(this.#list, (what, card) => this.#act(what, Number(card.dataset.item)));
    choosing(part(root, 'looks'), gallery.columns);
    choice.addEventListener('change', () => redraw(this.#list));
    this.#news = new News(part(root, 'news'), () => this.#again());
    document.addEventListener('lookalike:changed', () => this.#again());
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed) this.#live(); });
    new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) this.#more(); }, {rootMargin: AHEAD}).observe(this.#end);
  }

  /** Show the images of the address's filters and order. */
  follow() {
    this.#filters.draw();
    part(this.#root, 'order').value = address.state.order;
    const asked = JSON.stringify([this.#filters.condition(), address.state.order]);
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#cursor = null;
    this.#total = null;
    this.#load(true);
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
    if (!this.#open || !this.#list.childElementCount) return this.#again();
    const asked = this.#asked, where = this.#filters.condition();
    try {
      const gone = await freshen(this.#api, this.#list, title), total = await this.#count(where);
      if (asked !== this.#asked || this.#total === null) return;
      const more = total - this.#total + gone;
      this.#say(plural(total, 'image'));
      this.#news.tell(more > 0 ? where ? `${plural(more, 'more image')} passed the filters by now` : `${plural(more, 'image')} ${more === 1 ? 'was' : 'were'} added` : '');
    } catch { /* what is listed stays */ }
  }

  #more() { if (!this.#busy && this.#cursor) this.#load(false); }

  async #load(anew) {
    const asked = this.#asked, where = this.#filters.condition();
    const query = new URLSearchParams({limit: String(AT_ONCE), ...(where && {where}), ...(address.state.order && {order: address.state.order}), ...(this.#cursor && {cursor: this.#cursor})});
    this.#busy = true;
    this.#list.classList.toggle('stale', anew);
    try {
      const page = await this.#api.get(`/items?${query}`);
      if (asked !== this.#asked) return;
      this.#cursor = page.next_cursor;
      const cards = page.items.map(item => this.#card(item));
      if (anew) this.#list.replaceChildren(...cards); else this.#list.append(...cards);
      nameCards(this.#list);
      this.#list.classList.remove('stale');
      this.#filters.fault(null);
      this.#mark();
      if (!anew) return;
      this.#news.tell('');
      const total = await this.#count(where);
      if (asked !== this.#asked) return;
      this.#total = total;
      this.#say(total ? plural(total, 'image') : where ? 'No image passes the filters.' : 'There are no images yet.');
    } catch (error) {
      const explained = await this.#filters.explained(error);
      if (asked !== this.#asked) return;
      this.#asked = undefined;
      this.#cursor = null;
      if (!this.#filters.fault(explained)) return this.#say(error.message);
      this.#list.classList.remove('stale');
      this.#say(faulty(this.#list.childElementCount));
    } finally {
      this.#busy = false;
      show(this.#end, this.#cursor !== null);
    }
  }

  /** Return how many images pass a condition; all if it is empty. */
  async #count(where) {
    const {images} = await this.#api.get(where ? `/facets?columns=label&limit=1&where=${encodeURIComponent(where)}` : '/gallery');
    return images;
  }

  #card(item) {
    const card = clone('picture');
    card.dataset.item = item.id;
    proportion(card, item);
    const image = part(card, 'image');
    image.src = item.thumbnail;
    image.alt = `item ${item.id} · ${item.label ?? 'no label'}`;
    caption(card, item, title(item));
    part(card, 'open').title = fileName(item.key);
    part(card, 'box').ariaLabel = `Select item ${item.id}`;
    return card;
  }

  #press(event) {
    const card = event.target.closest('li');
    if (!card) return;
    const item = Number(card.dataset.item);
    if (event.target.closest('[data-part=open]')) address.update({open: item});
    else if (event.target.matches('input')) {
      if (event.shiftKey && this.#last !== null) this.#selection.add(...this.#between(this.#last, item));
      else this.#selection.toggle(item);
      this.#last = item;
    }
  }

  #act(what, item) {
    if (what === 'select') this.#selection.toggle(item);
    else document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item, side: what === 'unlike' ? what : 'like', alone: what === 'alone'}}));
  }

  #between(first, last) {
    const ids = [...this.#list.children].map(card => Number(card.dataset.item));
    const [from, to] = [ids.indexOf(first), ids.indexOf(last)].sort((a, b) => a - b);
    return from < 0 ? [last] : ids.slice(from, to + 1);
  }

  #key(event) {
    if (event.key === 'Escape') this.#selection.clear();
    if (event.key !== 'a' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.#selection.add(...[...this.#list.children].map(card => Number(card.dataset.item)));
  }

  #mark() {
    this.#list.classList.toggle('selecting', this.#selection.size > 0);
    for (const card of this.#list.children) part(card, 'box').checked = this.#selection.has(Number(card.dataset.item));
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
