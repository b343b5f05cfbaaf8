// Searches: what is sent for a state, and the newest answer; what the visitor does with its hits, if searches are recorded.

import {asks} from './address.js';
import {decoded} from './link.js';
import {chosen, GALLERY, OPTIONS} from './options.js';
import * as pictures from './pictures.js';
import {embedded, encoded, forget} from './vectors.js';
import {idsOf, VARIANTS} from './views.js';

export const FIRST = 48;  // results of a new search
export const MOST = 1000;  // of the API

export class Searcher {
  #api; #running; #model = null; #asked = ''; #id = null; #found = new Set(); #told = new Set();

  constructor(api) { this.#api = api; }

  /**
   * Search, and cancel the search before.
   * @param {import('./address.js').State} state
   * @param {string} condition Condition on the hits, in the expression language; empty for none.
   * @param {number} k Number of hits.
   * @param {(share: number, what?: string) => void} progress Receives the share of the pictures that has been sent, or of what is named.
   * @returns The answer of the API, with `complete`: whether there are no further hits, and
   *   `best`: the best hit, if none reaches the lowest score or probability; null without a query.
   */
  async run(state, condition, k, progress) {
    this.#running?.abort();
    if (!asks(state)) return null;
    this.#running = new AbortController();
    const {signal} = this.#running;
    if ([...state.like, ...state.unlike].some(view => view.vector)) this.#model ??= await this.#api.get('/gallery', {signal});
    const views = await Promise.all(['like', 'unlike'].map(
      name => Promise.all(state[name].map(view => this.#view(view, {signal, progress})))));
    const wanted = Math.min(k, MOST);
    const body = {k: wanted, like: views[0], unlike: views[1]};
    if (condition) body.where = condition;
    for (const name of ['text', 'without']) if (state[name]) body[name] = [state[name]];
    for (const name of chosen(state)) body[name] = state[name];
    if (state.sort) body.order = state.sort;
    if (GALLERY?.variant && !body.group_by) body.group_size = VARIANTS;
    if (this.#model) body.fingerprint = this.#model.fingerprint;
    const asked = JSON.stringify({...body, k: 0});
    if (this.#id && asked === this.#asked) body.query_id = this.#id;  // more of the same, not another search
    try {
      const answer = await this.#api.post('/search', body, {signal});
      this.#remember(asked, answer);
      if (answer.interleaved) for (const hit of answer.hits) Object.assign(hit, {score: null, probability: null});  // the images are judged, not the numbers
      const complete = answer.hits.length < wanted || wanted === MOST;
      const limits = OPTIONS.filter(one => one.isNumber && one.name in body);
      if (answer.hits.length || !limits.length) return {...answer, complete};
      const {order: _, ...open} = body;
      Object.assign(open, this.#id && {query_id: this.#id});
      for (const {name} of limits) delete open[name];
      const [best] = (await this.#api.post('/search', {...open, k: 1}, {signal})).hits;
      return {...answer, complete, best};
    } catch (error) {
      if (error.code !== 'model-mismatch' || !this.#model) throw error;
      forget();  // the gallery was rebuilt with another model
      this.#model = null;
      return this.run(state, condition, k, progress);
    }
  }

  /** Tell the server what is done with a hit: `opened`, `right` or `wrong`. */
  tell(item, outcome) {
    const told = `${item} ${outcome}`;
    if (!this.#id || !this.#found.has(item) || this.#told.has(told)) return;
    this.#told.add(told);
    this.#api.post('/outcomes', {query_id: this.#id, item, outcome}, {type: 'text'}).catch(() => { /* nothing depends on it */ });
  }

  #remember(asked, {query_id: id = null, hits}) {
    if (id !== this.#id) this.#told.clear();
    this.#asked = asked;
    this.#id = id;
    this.#found = new Set(hits.flatMap(idsOf));
  }

  /** Return a view as the API takes it. */
  async #view(view, {signal, progress}) {
    const region = view.region ? {region: view.region} : {};
    if (view.item !== undefined) return {id: view.item, ...region};
    const image = GALLERY?.interleaved ? await encoded(view, this.#api) : null;  // a vector is of one model
    if (image) return {image};
    if (view.vector && !await pictures.ofView(view, this.#api).catch(() => null)) {
      return {vector: decoded(view.vector, this.#model)};
    }
    const {vector, fingerprint} = await embedded(view, this.#api, {signal, progress});
    this.#model = {fingerprint, dim: vector.length};
    return {vector};
  }
}
