// Filters of the hits: values with their counts, ranges, and the expression language for everything else.

import {address} from './address.js';
import {condition, filterWords, parseFilter, rangeFilter, valueFilter, wordsFilter, writtenCondition} from './conditions.js';
import {breakable, clone, part, show} from './dom.js';
import {drawHistogram} from './histogram.js';
import {OPTIONS, UNCHOSEN} from './options.js';

const LISTED = 1000;  // values of a column, which a search field narrows down
const SHOWN = 60;
// Of a gallery that divides pictures: those that are no part of another one. Imported vectors have no path.
const WHOLE = "(path is null or not path like '%#xywh=%')";
const EDGE = 8, ROOM = 240;  // pixels: beside a panel, and below a button that are enough

export class Filters {
  #root; #api; #options; #always; #faulty = null; #redraws = [];

  /**
   * @param {Root} root Has the parts `facets`, `chips`, `where` and `fault`; where hits are filtered also those
   *   of the options of a search.
   * @param {import('./api.js').Api} api
   * @param {Gallery} gallery
   * @param {boolean} [whole] Whether the parts of pictures never pass.
   */
  constructor(root, api, gallery, whole = false) {
    this.#root = root;
    this.#always = whole && gallery.objects ? WHOLE : '';
    this.#api = api;
    const sheet = open => {
      part(root, 'controls').classList.toggle('shown', open);
      part(root, 'sheet').ariaExpanded = String(open);
      part(root, open ? 'close' : 'sheet').focus();
    };
    part(root, 'sheet').addEventListener('click', () => sheet(true));
    part(root, 'close').addEventListener('click', () => sheet(false));
    part(root, 'controls').addEventListener('keydown', event => { if (event.key === 'Escape' && event.currentTarget.matches('.shown') && !event.target.closest('.facet[open]')) sheet(false); });
    part(root, 'facets').append(...['label', ...gallery.columns].map(column => this.#facet(column)));
    this.#options = OPTIONS.filter(({name}) => part(root, name));
    for (const {name, isNumber} of this.#options) {
      if (!isNumber) part(root, name).append(...['label', ...gallery.columns].map(column => new Option(column, column)));
      if (name === 'min_probability') show(part(root, `${name}_field`), gallery.calibrated);
    }
    for (const name of ['where', ...this.#options.map(one => one.name)]) {
      part(root, name).addEventListener('change', event => this.#change(name, event.target.value.trim()));
    }
    part(root, 'chips').addEventListener('click', event => {
      const chip = event.target.closest('button');
      if (chip) this.#remove(chip.dataset);
    });
    const opened = () => root.querySelectorAll('.facet[open]');
    root.addEventListener('click', event => {
      const facet = event.target.closest('.facet > summary')?.parentElement;
      if (!facet) return;
      event.preventDefault();  // the browser would open it before there is an event to place its panel
      facet.open = !facet.open;
      if (facet.open) place(facet);
    });
    root.addEventListener('toggle', event => { if (event.target.open) place(event.target); }, true);
    root.addEventListener('keydown', event => {
      const facet = event.target.closest('.facet[open]');
      if (event.key !== 'Escape' || !facet) return;
      facet.open = false;
      facet.querySelector('summary').focus();
    });
    addEventListener('resize', () => opened().forEach(place));
    addEventListener('click', event => {
      for (const facet of opened()) if (!facet.contains(event.target)) facet.open = false;
    });
  }

  /** Show the filters of the address. */
  draw() {
    const {state} = address;
    for (const name of ['where', ...this.#options.map(one => one.name)]) part(this.#root, name).value = state[name] ?? '';
    const chips = state.picked.filter(parseFilter).map(text => chip(filterWords(text), {filter: text}));
    for (const {name, label} of this.#options) {
      if (state[name] !== UNCHOSEN[name]) chips.push(chip(`${label.toLowerCase()}: ${state[name]}`, {field: name}));
    }
    if (state.where && state.where !== this.#faulty) chips.push(chip(state.where, {field: 'where'}));
    part(this.#root, 'chips').replaceChildren(...chips);
    part(this.#root, 'sheet').textContent = chips.length ? `Filters (${chips.length})` : 'Filters';
    for (const box of this.#root.querySelectorAll('input[data-filter]')) box.checked = state.picked.includes(box.dataset.filter);
    for (const redraw of this.#redraws) redraw();
  }

  /** Return the filters of the address as one condition; empty for none. */
  condition() {
    const chosen = condition(address.state.picked, address.state.where);
    return this.#always && chosen ? `${this.#always} and (${chosen})` : this.#always || chosen;
  }

  /** Whether the visitor has chosen any. */
  get narrow() { return condition(address.state.picked, address.state.where) !== ''; }

  /** Offer a lowest probability if hits have probabilities: a gallery may be calibrated while the page is open. */
  calibrated(hits) {
    if (hits.length) show(part(this.#root, 'min_probability_field'), hits.every(hit => hit.probability !== null));
  }

  /**
   * Show an error at the field that it is of; null clears it.
   * @returns {boolean} Whether it is an error of the filters.
   */
  fault(error) {
    const mine = ofCondition(error);
    part(this.#root, 'fault').textContent = mine ? error.message.replace(/^where: (.)/i, (_, first) => first.toUpperCase()) : '';
    part(this.#root, 'where').ariaInvalid = String(mine);
    if (mine) part(this.#root, 'advanced').open = true;
    const faulty = mine ? address.state.where : null;
    if (faulty !== this.#faulty) {
      this.#faulty = faulty;
      this.draw();
    }
    return mine;
  }

  /** Return an error of all filters as that of what the visitor wrote: its positions are those of the field. */
  async explained(error) {
    const {where, picked} = address.state;
    if (!ofCondition(error) || !where || !picked.length && !this.#always) return error;
    return this.#api.get(`/items?limit=1&where=${encodeURIComponent(writtenCondition(where))}`).then(() => error, own => own);
  }

  #change(name, value) {
    const isNumber = UNCHOSEN[name] === null;
    address.update({[name]: isNumber ? (value === '' ? null : Number(value)) : value});
  }

  #remove({filter, field}) {
    if (field) return address.update({[field]: field in UNCHOSEN ? UNCHOSEN[field] : ''});
    address.update({picked: address.state.picked.filter(one => one !== filter)});
  }

  #facet(column) {
    const facet = clone('facet');
    part(facet, 'name').textContent = column;
    facet.addEventListener('toggle', () => { if (facet.open && !facet.dataset.filled) this.#fill(facet, column); });
    return facet;
  }

  async #fill(facet, column) {
    facet.dataset.filled = 'yes';
    let found, counted;
    try {
      ({facets: [found], counted} = await this.#api.get(`/facets?limit=${LISTED}&columns=${encodeURIComponent(column)}${this.#always && `&where=${encodeURIComponent(this.#always)}`}`));
    } catch (error) {
      delete facet.dataset.filled;
      part(facet, 'values').textContent = error.message;
      return;
    }
    const range = found.numbers ?? found.dates;
    // Text that hardly repeats, and more values than are listed, are looked for, not chosen from.
    const isText = !range && found.distinct > SHOWN && (found.distinct > LISTED || 2 * found.distinct > counted - found.missing);
    show(part(facet, 'range'), Boolean(range));
    show(part(facet, 'written'), isText);
    show(part(facet, 'find'), !range && !isText && found.values.length > 12);
    if (range) return this.#fillRange(facet, column, range, found.dates ? 'date' : 'number', found.histogram);
    if (isText) return this.#fillWords(facet, column, found.distinct);
    const list = part(facet, 'values');
    const draw = word => list.replaceChildren(...found.values.filter(one => String(one.value).toLowerCase().includes(word)).slice(0, SHOWN)
      .map(one => this.#value(column, one)));
    part(facet, 'find').addEventListener('input', event => draw(event.target.value.trim().toLowerCase()));
    draw('');
  }

  #value(column, {value, count}) {
    const row = clone('value'), box = part(row, 'box'), filter = valueFilter(column, value);
    box.dataset.filter = filter;
    box.checked = address.state.picked.includes(filter);
    part(row, 'text').replaceChildren(...breakable(String(value ?? '')));
    part(row, 'count').textContent = count.toLocaleString('en');
    box.addEventListener('change', () => {
      const others = address.state.picked.filter(one => one !== filter);
      address.update({picked: box.checked ? [...others, filter] : others});
    });
    return row;
  }

  /** Let the panel of a facet show what is chosen whenever it changes. */
  #keep(redraw) {
    this.#redraws.push(redraw);
    redraw();
  }

  /** Choose a filter of a kind for a column, in place of another one; nothing if it is empty. */
  #replace(column, kind, filter) {
    const others = address.state.picked.filter(one => { const parsed = parseFilter(one); return parsed?.column !== column || parsed[kind] === undefined; });
    address.update({picked: filter ? [...others, filter] : others});
  }

  #chosen(column, kind) { return address.state.picked.map(parseFilter).find(one => one?.column === column && one[kind] !== undefined); }

  #fillWords(facet, column, distinct) {
    const field = part(facet, 'words');
    part(facet, 'many').textContent = `${distinct.toLocaleString('en')} different texts`;
    this.#keep(() => { field.value = this.#chosen(column, 'words')?.words ?? ''; });
    field.addEventListener('change', () => {
      const words = field.value.trim();
      this.#replace(column, 'words', words && wordsFilter(column, words));
    });
  }

  #fillRange(facet, column, {min, max}, type, histogram) {
    const [low, high] = ['low', 'high'].map(end => part(facet, end)), bars = part(facet, 'histogram');
    const day = value => type === 'date' ? value.slice(0, 10) : value;
    const number = value => type === 'date' ? Date.parse(value) : Number(value);
    const share = value => (number(value) - number(min)) / (number(max) - number(min));
    show(bars, Boolean(histogram));
    this.#keep(() => {
      const chosen = this.#chosen(column, 'low');
      [low.value, high.value] = [chosen?.low ?? '', chosen?.high ?? ''];
      if (histogram) drawHistogram(bars, histogram, [chosen?.low ? share(chosen.low) : 0, chosen?.high ? share(chosen.high) : 1]);
    });
    for (const [input, end] of [[low, min], [high, max]]) {
      Object.assign(input, {type, placeholder: day(end), min: day(min), max: day(max), step: 'any'});
      input.addEventListener('change', () =>
        this.#replace(column, 'low', low.value || high.value ? rangeFilter(column, low.value, high.value) : ''));
    }
  }
}

const ofCondition = error => error?.faults?.some(one => one.pointer.endsWith('/where')) ?? false;

/** Return what a status line says of a condition that is not understood. */
export const faulty = shown => 'The condition under "Advanced" is not understood.' + (shown ? ' These are still the images from before.' : '');

/** Keep the panel of a facet inside the window: beside the edge, and above the button if there is more room. */
function place(facet) {
  const panel = facet.querySelector('div'), button = facet.getBoundingClientRect();
  const end = Math.min(document.documentElement.clientWidth, document.body.getBoundingClientRect().right);  // it clips what is beside it
  const left = Math.max(EDGE, Math.min(button.left, end - EDGE - panel.offsetWidth));
  const [above, below] = [button.top, innerHeight - button.bottom].map(room => room - 2 * EDGE);
  const up = below < ROOM && above > below;
  panel.dataset.title = facet.querySelector('summary').textContent;  // of a sheet, which hides the button
  panel.classList.toggle('up', up);
  panel.style.setProperty('--left', `${left - button.left}px`);
  panel.style.setProperty('--room', `${up ? above : below}px`);
  if (facet.closest('.shown')) panel.scrollIntoView({block: 'nearest'});  // in the sheet
}

function chip(words, data) {
  const made = clone('chip');
  part(made, 'text').textContent = words;
  const button = part(made, 'remove');
  Object.assign(button.dataset, data);
  button.ariaLabel = `Remove the filter ${words}`;
  return made;
}
