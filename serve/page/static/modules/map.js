// The map: all images on a plane, neighbours beside each other, as a client of the API.

import {address} from './address.js';
import {Actions} from './actions.js';
import {colouring} from './colouring.js';
import {part, plural, show} from './dom.js';
import {Jobs} from './jobs.js';
import {Legend} from './legend.js';
import {classColours, VERDICTS} from './palette.js';
import {Selection} from './selection.js';
import {csv, save} from './table.js';
import {Work} from './work.js';

const AT_ONCE = 5000;  // images whose map is drawn without being asked for: seconds
const USUAL = 20_000, MOST = 100_000;  // images on a map
const LISTED = 1000;
const NO_LABEL = '';
const COLUMN = 'column:';  // before the name of a column that gives the colours
const RIGHT = ['wrong', 'right', 'unlabelled'];

/** Start the tab. */
export const mount = (root, api) => new GalleryMap(root, api);

class GalleryMap {
  #root; #api; #work; #scatter; #legend; #selection = new Selection(); #gallery; #found; #positions; #items = null; #category = []; #names = []; #value = _ => null; #failed = false;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    this.#work = new Work(root, new Jobs(api));
    this.#legend = new Legend(root, chosen => address.update({highlight: chosen}, {replace: true}));
    part(root, 'start').addEventListener('click', () => this.#compute());
    part(root, 'again').addEventListener('click', () => this.#compute());
    part(root, 'colour').addEventListener('change', event => address.update({colour: event.target.value, highlight: []}));
    part(root, 'fit').addEventListener('click', () => this.#scatter?.fit());
    part(root, 'lasso').addEventListener('click', event => this.#lasso(event.currentTarget));
    part(root, 'csv').addEventListener('click', event => this.#export(event.currentTarget));
    address.onChange(before => {
      const now = address.state;
      if (this.#failed && now.tab === 'map') this.#begin();
      if (this.#found && (before.colour !== now.colour || before.highlight.join('\n') !== now.highlight.join('\n'))) this.#draw();
    });
    const stale = () => {
      this.#items = null;
      if (this.#found) this.#say('The gallery has changed since the map was drawn.');
    };
    document.addEventListener('lookalike:changed', stale);
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed) stale(); });
    new MutationObserver(() => { if (this.#found) this.#draw(); }).observe(document.documentElement, {attributeFilter: ['class']});
    this.#selection.addEventListener('change', () => {
      const {ids} = this.#selection;
      this.#scatter?.outline(ids.map(id => this.#positions.get(id)).filter(point => point !== undefined));
    });
    this.#begin();
  }

  async #begin() {
    this.#failed = false;
    try {
      this.#gallery = await this.#api.get('/gallery');
      part(this.#root, 'colour').append(...this.#gallery.columns.map(column => new Option(`by ${column}`, COLUMN + column)));
      new Actions(part(this.#root, 'selection'), this.#selection, this.#api, this.#gallery.changes);
      const found = await this.#work.resume('map');
      if (found) await this.#open(found);
      else if (this.#gallery.images <= AT_ONCE) await this.#compute();
      else this.#offer();
    } catch (error) {
      this.#failed = true;
      this.#say(error.message);
    }
  }

  #offer() {
    const {images} = this.#gallery, of = Math.min(images, USUAL);
    part(this.#root, 'start').textContent = of < images ? `Draw a map of ${plural(of, 'image')}` : 'Draw the map';
    part(this.#root, 'most').max = Math.min(images, MOST);
    part(this.#root, 'most').value = of;
    show(part(this.#root, 'offer'), images > 0);
  }

  async #compute() {
    const limit = Math.max(4, Math.min(Number(part(this.#root, 'most').value) || USUAL, MOST));
    show(part(this.#root, 'offer'), false);
    const found = await this.#work.run('map', {limit});
    if (found) await this.#open(found);
    else if (!this.#found) this.#offer();
  }

  async #open(found) {
    const {ids, total} = this.#found = found;
    this.#positions = new Map(ids.map((id, point) => [id, point]));
    this.#items = null;
    this.#selection.clear();
    show(part(this.#root, 'drawn'), true);
    part(this.#root, 'what').textContent = `${plural(ids.length, 'image')}${ids.length < total ? ` of ${total.toLocaleString('en')}, drawn at random` : ''}`;
    try {
      this.#scatter ??= await this.#plot();
      await this.#draw();
    } catch (error) {
      this.#say(`The map cannot be drawn here: ${error.message}`);
    }
  }

  /** Return the plot, or null in a browser without WebGL: the legend and the file still have everything. */
  async #plot() {
    const {Scatter, supported} = await import('./scatter.js');
    if (!supported()) {
      show(part(this.#root, 'stage'), false);
      this.#say('This browser does not draw with WebGL, so the map cannot be shown. Download it as a table, or turn WebGL on in the settings.');
      return null;
    }
    await visible(part(this.#root, 'stage'));  // the visitor may be in another tab by now
    return new Scatter(part(this.#root, 'stage'), {
      point: point => this.#card(point),
      open: point => document.dispatchEvent(new CustomEvent('lookalike:open', {detail: {item: this.#found.ids[point]}})),
      enclose: points => this.#enclose(points),
      thumbnail: point => this.#thumbnail(point),
    });
  }

  async #draw() {
    const {colour} = address.state;
    const theme = document.documentElement.classList.contains('dark') ? 'dark' : 'light';
    part(this.#root, 'colour').value = colour;
    const {category, names, titles, colours} = await this.#categories(colour, theme);
    const {highlight} = address.state;
    if (colour !== address.state.colour) return;  // another colour was chosen meanwhile
    [this.#category, this.#names] = [category, names];
    const counts = new Array(names.length).fill(0);
    for (const one of category) counts[one]++;
    const lit = highlight.length ? category.map(one => highlight.includes(names[one])) : category.map(() => true);
    const entries = names.map((name, at) => ({name, title: titles[at], colour: colours[at], count: counts[at]})).filter(entry => entry.count);
    this.#legend.draw(entries, highlight);
    return this.#scatter?.draw({x: this.#found.x, y: this.#found.y, category, lit}, colours, theme);
  }

  /** Return what the points are coloured by: the place of each one's category in `names`, `titles` and `colours`. */
  async #categories(colour, theme) {
    const {ids, label, labels, right} = this.#found, grey = VERDICTS[theme][2];
    this.#value = _ => null;
    if (colour === 'right') return {category: right.map(one => one === null ? 2 : Number(one)), names: RIGHT, titles: RIGHT.map(name => TITLES[name]), colours: VERDICTS[theme]};
    const column = colour.startsWith(COLUMN) ? colour.slice(COLUMN.length) : '';
    if (column && this.#gallery.columns.includes(column)) {
      try {
        const items = await this.#read();
        this.#value = point => items.get(ids[point])?.metadata[column] ?? null;
        const found = colouring(ids.map((_, point) => this.#value(point)), theme);
        return {...found, titles: found.names};
      } catch (error) {
        this.#say(error.message);
      }
    }
    const names = [...labels, NO_LABEL];
    return {category: label.map(one => one ?? labels.length), names, titles: names.map(name => name || 'no label'), colours: [...classColours(labels.length, theme), grey]};
  }

  /** Return the items of the map by id: those that are not gone. They are kept until the gallery changes. */
  async #read() {
    if (this.#items) return this.#items;
    const {ids} = this.#found, items = new Map();
    let cursor = null;
    do {
      const page = await this.#api.get(`/items?limit=${LISTED}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`);
      for (const item of page.items) if (this.#positions.has(item.id)) items.set(item.id, item);
      cursor = page.next_cursor;
      if (cursor) this.#say(`Reading: ${plural(items.size, 'image')} of ${ids.length.toLocaleString('en')}`);
    } while (cursor && items.size < ids.length);
    if (ids.length > LISTED) this.#say('');
    return this.#items = items;
  }

  #lasso(button) {
    const on = button.ariaPressed !== 'true';
    button.ariaPressed = String(on);
    if (this.#scatter) this.#scatter.lasso = on;
  }

  #enclose(points) {
    const {highlight} = address.state;
    const lit = points.filter(point => !highlight.length || highlight.includes(this.#names[this.#category[point]]));
    this.#selection.replace(lit.map(point => this.#found.ids[point]));
  }

  #card(point) {
    const card = part(this.#root, 'card');
    show(card, point !== null);
    if (point === null) return;
    const {ids, labels, label, right} = this.#found, [x, y] = this.#scatter.place(point);
    part(card, 'image').src = this.#thumbnail(point);
    part(card, 'label').textContent = labels[label[point]] ?? 'no label';
    part(card, 'fact').textContent = right[point] === false ? 'its nearest neighbour has another label' : '';
    const value = this.#value(point);
    part(card, 'value').textContent = value === null ? '' : `${address.state.colour.slice(COLUMN.length)}: ${value}`;
    part(this.#root, 'spoken').textContent = `${labels[label[point]] ?? 'no label'}, item ${ids[point]}`;
    const {width, height} = part(this.#root, 'stage').getBoundingClientRect();
    card.style.translate = `${x > width / 2 ? x - card.offsetWidth - 12 : x + 12}px ${Math.min(y + 12, height - card.offsetHeight)}px`;
  }

  #thumbnail(point) { return `${this.#api.root}/items/${this.#found.ids[point]}/thumbnail`; }

  /** Save the map as a table, which other tools open: places, labels and all metadata. */
  async #export(button) {
    const {x, y, right} = this.#found;
    button.ariaBusy = 'true';
    try {
      const rows = [...await this.#read()].map(([id, item]) => {
        const point = this.#positions.get(id);
        return {...item, metadata: {map_x: x[point], map_y: y[point], map_right: right[point], ...item.metadata}};
      });
      save(csv(rows), 'map.csv', 'text/csv');
      this.#say(`Saved ${plural(rows.length, 'image')} in map.csv.`);
    } catch (error) {
      this.#say(error.message);
    }
    button.ariaBusy = null;
  }

  #say(text) { this.#work.say(text); }
}

/** @returns {Promise<void>} */
const visible = element => new Promise(resolve => {
  new ResizeObserver(([entry], observer) => {
    if (!entry.contentRect.width) return;
    observer.disconnect();
    resolve();
  }).observe(element);
});

// Of the nearest neighbour's label.
const TITLES = {right: 'right', wrong: 'wrong', unlabelled: 'no label'};
