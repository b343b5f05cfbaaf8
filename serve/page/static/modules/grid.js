// A list of cards of which only those near the window are in the document, so that it may be as long as one likes. In place of the
// others the list has padding, as high as their rows were when they were last seen, or will be, as far as is known.

import {choice, drawLabel, dress, grids, NUMBERED, steer} from './cards.js';
import {presentItems} from './changes.js';
import {part, proportion, ratioOf} from './dom.js';
import {Rows} from './rows.js';

const WHOLE = 200;  // entries of a list that is in the document as a whole
const CHECKED = 1000;  // items that are brought up to date at once; of more, those whose cards are in the document
const PAUSE = 200;  // milliseconds of rest before others are
const TRIES = 4;  // times that the heights of new rows may change which rows are near
const PAPER = matchMedia('print');

/** @typedef {import('./cards.js').Entry} Entry */

export class Grid {
  #list; #how; #rows = new Rows(); #numbered = false; #plain = 0; #size = -1; #epoch = 0; #timer = 0; #busy = false;
  /** @type {Entry[]} */
  #entries = [];
  #from = 0; #to = 0;  // the entries whose elements are in the document
  #kept = -1;  // one that is not among them, but has the focus
  /** @type {?{entry: number, top: number}} */
  #anchor = null;  // what is at the top of the window, and how far below it

  /**
   * @param {Root} list
   * @param {Element} ruler An element that is as wide as the list, but does not change with its height.
   * @param {object} how
   * @param {import('./api.js').Api} how.api
   * @param {(item: any, place: number) => Root} how.draw Returns a new card, with the parts `image`, `open`, `label` and `facts`.
   * @param {(item: any) => string} how.words Returns the label of an item.
   * @param {(item: any, place: number, words: string) => string} how.alt Returns the alternative text of its picture.
   * @param {(what: string, item: any) => void} how.act Receives `alone`, `like`, `unlike`, `select` or `variant`, and the item whose card a key was pressed on.
   * @param {() => void} how.more Called while the end is less than so many pixels below the window: `how.ahead`.
   * @param {number} how.ahead
   */
  constructor(list, ruler, how) {
    this.#list = list;
    this.#how = how;
    grids.set(list, this);
    steer(list, (what, card) => how.act(what, this.of(card)), (card, by, rows) => this.#step(card, by, rows));
    choice.addEventListener('change', () => this.#redraw());
    new ResizeObserver(() => this.look()).observe(ruler);
    addEventListener('scroll', () => this.look(), {passive: true});
    addEventListener('beforeprint', () => this.#put(0, this.#entries.length));
    PAPER.addEventListener('change', () => this.look());
  }

  /** All items, in order. */
  get items() { return this.#entries.filter(one => one.item).map(one => one.item); }

  /** How many there are. */
  get count() { return this.#entries.findLast(one => one.item)?.place ?? 0; }

  /** How many of them are known to be gone. */
  get gone() { return this.#entries.filter(one => one.gone).length; }

  /** The cards in the document, with their items. */
  get cards() { return this.#present.filter(one => one.item).map(({item, element}) => ({item, card: element})); }

  get #present() { return this.#entries.slice(this.#from, this.#to); }

  /** Return the item of a card. */
  of(card) { return this.#entries.find(one => one.element === card)?.item; }

  /** Return the place of an item, from 1; 0 if it is not here. */
  placeOf(id) { return this.#entries.find(one => one.item?.id === id)?.place ?? 0; }

  /** Say how many items there are, those that are still to come among them; -1 if nobody knows. */
  set size(size) {
    this.#size = size;
    for (const {card} of this.cards) card.ariaSetSize = String(size);
  }

  /**
   * Add items at the end.
   * @param {any[]} items Items, and between them functions that return headings.
   */
  append(items) {
    let place = this.count;
    for (const item of items) {
      const isCard = typeof item !== 'function', label = isCard ? this.#how.words(item) : '';
      this.#entries.push({...isCard ? {item} : {heading: item}, place: isCard ? ++place : place, label, gone: false, seen: this.#epoch, element: null});
      if (isCard && !NUMBERED.test(item.label ?? '')) this.#plain++;
    }
    this.#rows.add(items.map(item => typeof item === 'function' ? 0 : ratioOf(item)));
    this.#name();
    this.look(true);
  }

  /**
   * Show other items.
   * @param {any[]} items As for `append`.
   * @param {boolean} [similar] Whether most are the same, so that what is at the top of the window stays there.
   */
  replace(items, similar = false) {
    const focused = similar ? this.#entries.find(one => one.element?.contains(document.activeElement)) : null;
    const before = similar ? this.#anchor : null, at = before ? items.findIndex(item => item.id === this.#entries[before.entry].item?.id) : -1;
    this.#list.replaceChildren();
    this.#rows.clear();
    [this.#entries, this.#from, this.#to, this.#kept, this.#plain] = [[], 0, 0, -1, 0];
    this.#anchor = before && items.length ? {...before, entry: at < 0 ? Math.min(before.entry, items.length - 1) : at} : null;
    this.append(items);
    const next = focused && (this.#entries.find(one => one.item?.id === focused.item?.id) ?? this.#entries.findLast(one => one.place <= focused.place && one.item));
    if (next?.element) part(next.element, 'open').focus({preventScroll: true});
  }

  /**
   * Bring into the document what is near the window, and take out what is not.
   * @param {boolean} [moved] Whether there are other rows than at the last time.
   */
  look(moved = false) {
    if (this.#busy) return;
    if (PAPER.matches) return this.#put(0, this.#entries.length);
    const box = this.#list.getBoundingClientRect();
    if (!box.width) return;
    this.#busy = true;
    if (box.width !== this.#rows.width) {
      this.#measure(box.width);
      moved = true;
    }
    const held = moved ? this.#anchor : null;
    let top = held ? this.#rows.top(held.entry) - held.top : -box.top;
    for (let round = 0; round < TRIES; round++) {
      const [from, to] = this.#near(top);
      if (from === this.#from && to === this.#to && !(moved && !round)) break;
      const fixed = held ?? (top > 0 ? this.#first() : null);
      this.#put(from, to);
      this.#pad();
      this.#hold(fixed);
      top = -this.#list.getBoundingClientRect().top;
    }
    this.#anchor = top > 0 ? this.#first() : null;
    this.#busy = false;
    if (this.#list.getBoundingClientRect().bottom - innerHeight < this.#how.ahead) this.#how.more();
    clearTimeout(this.#timer);
    if (this.#late.length) this.#timer = setTimeout(() => this.#check(this.#late).catch(() => {}), PAUSE);
  }

  /** Return the entries within a window above and below the present one: `[from, to]`. */
  #near(top) {
    return this.#entries.length <= WHOLE ? [0, this.#entries.length] : this.#rows.between(top - innerHeight, top + 2 * innerHeight);
  }

  /** Return the first entry of the first row that begins in the window, or else reaches into it, and how far below its top that is. */
  #first() {
    const rows = this.#rows.of(this.#from, this.#to).map(({first}) => ({first, box: this.#entries[first].element?.getBoundingClientRect()}));
    const found = rows.find(({box}) => box?.top >= 0 && box.top < innerHeight) ?? rows.find(({box}) => box?.bottom > 0);
    return found ? {entry: found.first, top: found.box.top} : null;
  }

  /** Scroll so that an entry is as far from the top of the window as it was. */
  #hold(anchor) {
    const now = anchor && this.#entries[anchor.entry]?.element?.getBoundingClientRect().top;
    if (typeof now === 'number' && Math.abs(now - anchor.top) > 0.5) scrollBy({top: now - anchor.top, behavior: 'instant'});
  }

  // ---- elements

  /** Let exactly these entries be in the document, and the one that has the focus. */
  #put(from, to) {
    const leaves = at => at < from || at >= to;
    if (this.#kept >= 0 && leaves(this.#kept)) this.#drop(this.#kept);
    for (let at = this.#from; at < this.#to; at++) if (leaves(at)) this.#drop(at);
    let [first, last] = [Math.max(this.#from, from), Math.min(this.#to, to)];
    if (first >= last) first = last = from;  // nothing stays
    let next = first < last ? this.#entries[first].element : this.#kept >= first ? this.#entries[this.#kept].element : null;
    for (let at = first - 1; at >= from; at--) next = this.#bring(at, next);
    for (let at = last; at < to; at++) this.#bring(at, this.#kept > at ? this.#entries[this.#kept].element : null);
    [this.#from, this.#to] = [from, to];
  }

  /** Bring an entry into the document, before an element of the list. Returns its element. */
  #bring(at, next) {
    const entry = this.#entries[at];
    if (at === this.#kept) {  // it is there, in its order
      this.#kept = -1;
      entry.element.classList.remove('away');
      return entry.element;
    }
    if (entry.item) this.#draw(entry); else entry.element = entry.heading();
    return this.#list.insertBefore(entry.element, next);
  }

  /** Take an entry out of the document, but not while it has the focus: then it stays where it was on the page. */
  #drop(at) {
    const {element} = this.#entries[at], focused = element.contains(document.activeElement);
    if (focused) this.#kept = at; else if (at === this.#kept) this.#kept = -1;
    element.classList.toggle('away', focused);
    if (focused) return;
    if (this.#entries[at].item) part(element, 'image').removeAttribute('src');  // what is still loading would keep the element
    element.remove();
    this.#entries[at].element = null;
  }

  #draw(entry) {
    const {item, place} = entry, card = this.#how.draw(item, place);
    entry.element = card;
    proportion(card, item);
    card.ariaPosInSet = String(place);
    card.ariaSetSize = String(this.#size);
    this.#dress(entry);
  }

  /** Let the card of an item show another one, of which this is known; the rest is read soon. Returns the card. */
  exchange(item, known) {
    const entry = this.#entries.find(one => one.item === item);
    Object.assign(item, known);
    entry.seen = -1;
    this.#dress(entry);
    this.look();
    return entry.element;
  }

  /** @param {Entry} entry */
  #dress(entry) { dress(entry, this.#how.alt(entry.item, entry.place, entry.label), this.#numbered); }

  /** Leave out the numbers that all labels begin with. */
  #name() {
    const numbered = this.#plain === 0 && this.count > 1;
    if (numbered === this.#numbered) return;
    this.#numbered = numbered;
    for (const {item, element, label} of this.#present) if (item) drawLabel(element, label, numbered);
  }

  #redraw() {
    for (const entry of this.#present) if (entry.item) this.#dress(entry);
    if (this.#rows.width) this.#measure(this.#rows.width);
    this.look(true);
  }

  // ---- rows

  #measure(width) {
    const style = getComputedStyle(this.#list), rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const side = parseFloat(style.getPropertyValue('--row')) * rem;
    this.#rows.fit({width, side, gap: parseFloat(style.columnGap), between: parseFloat(style.rowGap)});
  }

  /** Give the cards their widths, and the list the height of those that are not in the document. */
  #pad() {
    const rows = this.#rows.of(this.#from, this.#to);
    for (const {first, end, side, full} of rows) {
      for (const {item, element} of side ? this.#entries.slice(first, end) : []) {
        const ratio = ratioOf(item), flex = `${full ? ratio : 0} 1 ${(0.999 * ratio * side).toFixed(2)}px`;  // no rounding lets the last one wrap
        if (element.dataset.flex !== flex) element.style.flex = element.dataset.flex = flex;
      }
    }
    this.#rows.measured(rows, rows.map(({first}) => this.#entries[first].element.getBoundingClientRect().height));
    this.#list.style.paddingTop = `${this.#rows.top(this.#from)}px`;
    this.#list.style.paddingBottom = `${this.#rows.height - this.#rows.top(this.#to)}px`;
    if (this.#kept < 0) return;
    const {item, element} = this.#entries[this.#kept], [{side}] = this.#rows.of(this.#kept, this.#kept + 1);
    Object.assign(element.style, {top: `${this.#rows.top(this.#kept)}px`, left: `${this.#rows.left(this.#kept)}px`, width: `${ratioOf(item) * side}px`});
  }

  // ---- changes

  /** Bring labels and columns up to date, and see which items are gone. */
  async freshen() {
    this.#epoch++;
    await this.#check(this.#entries.length > CHECKED ? this.#late : this.#entries.filter(one => one.item));
  }

  /** The entries in the document of which there may be news. */
  get #late() { return this.#present.filter(one => one.item && one.seen < this.#epoch); }

  async #check(entries) {
    const epoch = this.#epoch, present = await presentItems(this.#how.api, entries.map(one => one.item.id));
    for (const entry of entries) {
      const now = present.get(entry.item.id);
      if (now) Object.assign(entry.item, {label: now.label, metadata: now.metadata});
      Object.assign(entry, {seen: epoch, gone: !now, label: now ? this.#how.words(now) : 'removed'});
      if (entry.element) this.#dress(entry);
    }
    this.#plain = this.#entries.filter(one => one.item && !one.gone && !NUMBERED.test(one.item.label ?? '')).length;
    this.#name();
    this.look(true);
  }

  // ---- the keyboard

  /** Move the focus from a card by so many cards, or so many rows. */
  #step(card, by, rows) {
    const at = this.#entries.findIndex(one => one.element === card);
    let next = rows ? this.#rows.beside(at, rows) : at + by;
    while (this.#entries[next]?.heading) next += by;
    if (!this.#entries[next]) return;
    if (next < this.#from || next >= this.#to) {
      scrollBy({top: this.#list.getBoundingClientRect().top + this.#rows.top(next) - innerHeight / 3, behavior: 'instant'});
      this.look();
    }
    if (this.#entries[next].element) part(this.#entries[next].element, 'open').focus();
  }
}
