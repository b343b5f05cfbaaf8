// The state of the page, which is in its address: a reload, Back and a copied link restore it.

import {OPTIONS, UNCHOSEN} from './options.js';

const named = isNumber => OPTIONS.filter(one => one.isNumber === isNumber).map(one => one.name);
const TEXTS = ['text', 'without', 'where', ...named(false), 'tab', 'colour', 'view', 'order', 'sort', 'report', 'against', 'class', 'figure'];
const NUMBERS = [...named(true), 'open'];

/**
 * An image of the query, with its region: left, top, right, bottom as fractions; null for all of it.
 * `picture` is one in this browser, `shared` one on the server; `vector` is that of the picture, see `link.js`.
 * @typedef {{item?: number, picture?: string, shared?: string, url?: string, region: number[] | null, vector?: string}} View
 */

/**
 * The state of the page. Views are in `like` and `unlike`, filters in `picked`; `open` is the item in the dialog.
 * @typedef {{like: View[], unlike: View[], text: string, without: string, where: string, tab: string, view: string, picked: string[],
 *   highlight: string[], open: number | null, marks: boolean, [name: string]: any}} State
 */

/** @type {Readonly<State>} The state without a query. */
export const EMPTY = Object.freeze({
  like: [], unlike: [], text: '', without: '', where: '', ...UNCHOSEN, tab: '', picked: [],
  open: null, marks: false, colour: '', highlight: [], view: '', order: '', sort: '', report: '', against: '', class: '', figure: '',
});

const KINDS = ['picture', 'shared', 'url'];
const REGION = /@([\d.]+,[\d.]+,[\d.]+,[\d.]+)$/;

/** Return a view as text: `17`, `17@0.1,0.2,0.8,0.9`, `picture:HASH`, `shared:ID` or `url:ADDRESS`. */
export function viewText(view) {
  const name = view.item ?? KINDS.filter(kind => view[kind]).map(kind => `${kind}:${view[kind]}`)[0];
  return name + (view.region ? '@' + view.region.map(value => Math.round(1e4 * value) / 1e4).join(',') : '');
}

function parseView(text) {
  const region = text.match(REGION)?.[1].split(',').map(Number) ?? null;
  const name = text.replace(REGION, '');
  if (/^\d+$/.test(name)) return {item: Number(name), region};
  const kind = KINDS.find(kind => name.startsWith(`${kind}:`));
  return kind ? {[kind]: name.slice(kind.length + 1), region} : null;
}

/** Return the state of an address, from its `?` on; parts that are not understood are ignored. */
export function parse(text) {
  const [search, fragment = ''] = text.split('#');
  const given = new URLSearchParams(search), vectors = new URLSearchParams(fragment);
  const state = {...EMPTY};
  let place = 0;  // of an image among those of both sides
  for (const name of ['like', 'unlike']) {
    const views = given.getAll(name).map(parseView).map(view => withVector(view, vectors.get(String(place++))));
    state[name] = views.filter(Boolean);
  }
  for (const name of TEXTS) state[name] = given.get(name) ?? '';
  for (const name of NUMBERS) {
    const number = parseFloat(given.get(name));
    state[name] = Number.isFinite(number) ? number : null;
  }
  state.picked = given.getAll('filter');
  state.highlight = given.getAll('highlight');
  state.marks = given.has('marks');
  return state;
}

const withVector = (view, vector) => view && vector ? {...view, vector} : view;

/** Return the query string of a state, with its `?`, and the fragment, with its `#`; empty for the first page. */
export function format(state) {
  const params = new URLSearchParams(), vectors = new URLSearchParams();
  for (const name of ['like', 'unlike']) for (const view of state[name]) params.append(name, viewText(view));
  for (const [place, {vector}] of [...state.like, ...state.unlike].entries()) if (vector) vectors.set(String(place), vector);
  for (const name of TEXTS) if (state[name]) params.set(name, state[name]);
  for (const name of NUMBERS) if (state[name] !== null) params.set(name, state[name]);
  for (const one of state.picked) params.append('filter', one);
  for (const one of state.highlight) params.append('highlight', one);
  if (state.marks) params.set('marks', '');
  const fragment = vectors.size ? `#${vectors}` : '';
  return params.size ? '?' + String(params).replaceAll('%2C', ',').replaceAll('%40', '@').replaceAll('%3A', ':') + fragment : '';
}

/** The images of the query that are only in this browser. */
export const ownViews = state => [...state.like, ...state.unlike].filter(view => view.picture);

/** Whether there is something to search for. */
export const asks = state => Boolean(state.like.length || state.text);

/** The state of this page: read it, change it, and be called after every change. */
class Address {
  #listeners = [];

  constructor() {
    this.state = parse(location.search + location.hash);
    addEventListener('popstate', () => {
      const before = this.state;
      this.state = parse(location.search + location.hash);
      this.#notify(before);
    });
  }

  /**
   * Change the state, and the address with it.
   * @param {Partial<State>} change The fields that change.
   * @param {object} [options]
   * @param {boolean} [options.replace] Whether Back skips the state before.
   */
  update(change, {replace = false} = {}) {
    const before = this.state;
    this.state = {...before, ...change};
    const address = location.pathname + format(this.state);
    if (address !== location.pathname + location.search + location.hash) {
      if (replace) history.replaceState(history.state, '', address);
      else history.pushState({opened: before.open === null && this.state.open !== null}, '', address);
    }
    this.#notify(before);
  }

  /** Call the listeners again with the same state, so that they ask again for what failed. */
  repeat() { this.#notify(this.state); }

  /** Close the dialog: go back to the entry that it was opened from, if there is one. */
  close() {
    if (history.state?.opened) history.back();
    else this.update({open: null}, {replace: true});
  }

  /** Call a function with the state before, after every change. */
  onChange(listener) { this.#listeners.push(listener); }

  #notify(before) { for (const listener of this.#listeners) listener(before); }
}

export const address = new Address();
