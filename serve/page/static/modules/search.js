// The search tab, see start.js for what is before a search: it follows the address, and everything a visitor does changes the address.

import {address, asks, EMPTY} from './address.js';
import {choosing} from './cards.js';
import {connection} from './connection.js';
import {isOn, offered, turn} from './device.js';
import {orders, part, percent, plural} from './dom.js';
import {faulty, Filters} from './filters.js';
import {toContent} from './focus.js';
import {takeHits, takeSlash} from './intake.js';
import {News} from './news.js';
import {chosen, UNCHOSEN} from './options.js';
import * as pictures from './pictures.js';
import {Query} from './query.js';
import {range, Results} from './results.js';
import {FIRST, MOST, Searcher} from './searcher.js';
import {Sharing} from './sharing.js';
import {csv, save} from './table.js';
import {idsOf} from './views.js';

const SEARCHED = ['like', 'unlike', 'text', 'without', 'where', 'picked', ...Object.keys(UNCHOSEN), 'sort'];
const question = state => JSON.stringify(SEARCHED.map(name => state[name]));

export class SearchTab {
  #root; #api; #start; #say; #query; #results; #news; #searcher; #filters; #sharing; #asked = ''; #answered = EMPTY; #told = ''; #matching = {where: '', images: null}; #complete = true; #busy = false; #halted = false; #taken = 0;

  /**
   * @param {Root} root
   * @param {import('./api.js').Api} api
   * @param {import('./start.js').Start} start
   * @param {ReturnType<typeof import('./dom.js').statusLine>} say
   */
  constructor(root, api, start, say) {
    const {gallery} = start;
    this.#root = root;
    this.#api = api;
    this.#start = start;
    this.#say = say;
    this.#searcher = new Searcher(api);
    this.#query = new Query(part(root, 'query'), api, gallery);
    this.#filters = new Filters(part(root, 'filters'), api, gallery);
    this.#sharing = new Sharing(root, api, gallery, say);
    this.#results = new Results(part(root, 'results'), api, (act, hit) => this.#act(act, hit), () => this.#more());
    this.#news = new News(part(root, 'news'), () => this.#again());
    this.#ask();
    address.onChange(() => this.follow());
    document.addEventListener('lookalike:search', ({detail: {item, side = 'like', alone = true}}) =>
      this.#add(side, [{item, region: null}], alone));
    document.addEventListener('lookalike:live', ({detail}) => this.#live(detail));
    document.addEventListener('lookalike:changed', () => this.#again());
  }

  /** Show the state of the address: the query, and its results if another query is asked. */
  async follow() {
    const {state} = address;
    const asked = question(state);
    if (state.open !== null && !state.tab) this.#searcher.tell(state.open, 'opened');
    this.#query.draw();
    this.#filters.draw();
    part(this.#root, 'sort').value = state.sort;
    part(this.#root, 'text').value = state.text;
    part(this.#root, 'without').value = state.without;
    this.#root.classList.toggle('active', asks(state));
    if (!asks(state)) this.#start.begin();
    this.#sharing.follow();
    if (asked === this.#asked) {
      this.#halted = false;  // asked again for what has failed
      return this.#results.look();
    }
    this.#asked = asked;
    await this.#search(FIRST, {grows: false});
  }

  async #search(k, {grows}) {
    const {state} = address, asked = this.#asked;
    this.#busy = true;
    this.#halted = false;
    this.#results.dim(!grows);
    if (asks(state) && !grows) this.#say('Searching …');
    try {
      const started = performance.now();
      const answer = await this.#searcher.run(state, this.#filters.condition(), k, (share, what) => this.#sending(share, what));
      if (asked !== this.#asked) return;
      if (answer === null) {
        this.#answered = state;
        this.#complete = true;
        this.#results.draw([], new Set());
        return this.#say(this.#start.hint());
      }
      const again = question(this.#answered) === asked;
      this.#complete = answer.complete;
      this.#answered = state;
      this.#filters.calibrated([...answer.hits, ...answer.best ? [answer.best] : []]);
      const [labels] = await Promise.all([this.#labels(), this.#countMatching()]);
      this.#results.draw(answer.hits, labels, {grows, complete: answer.complete, again});
      document.dispatchEvent(new CustomEvent('lookalike:results'));
      this.#filters.fault(null);
      if (!grows) this.#news.tell('');
      this.#told = this.#summary(answer, performance.now() - started);
      this.#say(this.#told);
      if (!grows) scrollTo({top: 0});
    } catch (error) {
      const explained = await this.#filters.explained(error);
      if (error.name === 'AbortError' || asked !== this.#asked) return;
      if (error.ofPicture || error.code === 'cancelled') this.#undo();
      else if (grows) this.#halted = true;
      else this.#asked = '';  // the results before stay; the next change searches again
      if (!this.#filters.fault(explained)) return this.#say(error.message, error.code !== 'cancelled', !connection.away && (this.#halted || !this.#asked));
      this.#results.keep();
      this.#say(faulty(this.#results.hits.length), true);
    } finally {
      if (asked === this.#asked) {
        this.#busy = false;
        this.#results.look();  // their end may still be near
      }
    }
  }

  #again() {
    this.#asked = '';
    return this.follow();
  }

  /** Take what the gallery holds now: count, or bring the hits up to date and offer others that it has. */
  async #live({images, indexing, changed}) {
    const {gallery} = this.#start, same = images === gallery.images && !indexing === !gallery.indexing;
    this.#start.gallery = {...gallery, images, indexing};
    const {state} = address, {hits} = this.#results, asked = this.#asked;
    if (!asks(state) && !same) {
      this.#start.begin();
      this.#say(this.#start.hint());
    }
    if (!changed || !hits.length || this.#busy) return;
    if (state.tab) return void (this.#asked = '');  // searched again when the tab is opened
    try {
      await this.#results.freshen();
      if (asked !== this.#asked || this.#busy) return;
      const answer = await this.#searcher.run(state, this.#filters.condition(), Math.max(hits.length, FIRST), () => {});
      if (asked !== this.#asked || !answer) return;
      const known = new Set(hits.flatMap(idsOf)), others = answer.hits.filter(hit => !known.has(hit.id)).length;
      this.#news.tell(others ? `${plural(others, 'other result')} would be found now` : '');
    } catch { /* what is shown stays */ }
  }

  #sending(share, what = 'Sending the picture') { this.#say(share < 1 ? `${what}: ${percent(share)}` : 'Searching …'); }

  /** Return to the last search that was answered, whose results are still shown. */
  #undo() {
    this.#asked = question(this.#answered);
    this.#busy = false;
    this.#results.dim(false);
    address.update(this.#answered, {replace: true});
  }

  #more() {
    if (!this.#busy && !this.#complete && !this.#halted) this.#search(2 * this.#results.hits.length, {grows: true});
  }

  #summary(answer, duration) {
    const {hits, best, complete} = answer;
    if (best) return nothing(best);
    if (!hits.length) return this.#filters.condition() ? 'No image passes the filters.' : 'There is no other image.';
    const {sort} = address.state;
    const order = sort ? [part(this.#root, 'sort').selectedOptions[0]?.textContent ?? sort] : [];
    return [this.#count(hits.length, complete), ...order, ...range(hits), `${(duration / 1000).toFixed(2)} s`].join(' · ');
  }

  /** Count the images that pass the filters. */
  async #countMatching() {
    const where = this.#filters.condition();
    if (where === this.#matching.where) return;
    const found = where && await this.#api.get(`/facets?columns=label&limit=1&where=${encodeURIComponent(where)}`);
    this.#matching = {where, images: found ? found.images : null};
  }

  /** Return how many results are shown, and of what. */
  #count(shown, complete) {
    const {sort} = address.state, {images} = this.#start.gallery, matching = this.#matching.images;
    const some = shown.toLocaleString('en'), most = MOST.toLocaleString('en'), all = plural(images, 'image');
    const limited = chosen(address.state).length > 0;  // by options that only a search knows
    const passing = limited ? 'those that pass the filters' : matching === null ? all : `${matching.toLocaleString('en')} that match, of ${all}`;
    if (complete && shown < MOST) return limited || matching === null ? plural(shown, 'result') : `${some} of ${all} match`;
    if (!sort || complete) return `The ${some} most similar of ${passing}`;
    return `The first ${some} of ` + (limited || (matching ?? images) > MOST ? `the ${most} most similar of ${passing}` : passing);
  }

  /** Return the labels of the query's images if hits are to be compared with them. */
  async #labels() {
    const {marks, like} = address.state;
    const items = like.map(view => view.item).filter(item => item !== undefined);
    if (!marks || items.length !== like.length) return new Set();
    const found = await Promise.all(items.map(item => this.#api.get(`/items/${item}`)));
    return new Set(found.map(item => item.label).filter(label => label !== null));
  }

  // ---- what the visitor does

  #ask() {
    const root = this.#root, {gallery} = this.#start;
    part(root, 'again').addEventListener('click', () => { this.follow(); toContent(); });
    takeSlash(() => {
      if (address.state.tab) address.update({tab: ''});
      part(root, gallery.texts ? 'text' : 'choose').focus();
    });
    choosing(part(root, 'looks'), gallery.columns);
    if (offered) this.#offerDevice(part(root, 'device'));
    takeHits(part(root, 'query'), item => this.#add('like', [{item, region: null}], false));
    part(root, 'csv').addEventListener('click', () => save(csv(this.#results.hits), 'results.csv', 'text/csv'));
    part(root, 'sort').append(...orders(['label', ...gallery.columns]));
    part(root, 'sort').addEventListener('change', event => address.update({sort: event.target.value}));
    part(root, 'marks').addEventListener('change', event => {
      this.#asked = '';
      address.update({marks: event.target.checked}, {replace: true});
    });
  }

  #offerDevice(box) {
    box.checked = isOn();
    box.addEventListener('change', () => {
      turn(box.checked);
      this.#query.draw();
    });
  }

  /** Search with an image of the gallery, `{item}`, or elsewhere, `{url}`. */
  searchWith(image) { this.#add('like', [{...image, region: null}], true); }

  /** Search with pictures of the visitor. */
  async take(files) {
    const taken = ++this.#taken;
    this.#say('Reading the picture …');
    const kept = await Promise.all(files.map(file => this.#keep(file, files.length > 1))).catch(error => error);
    if (taken !== this.#taken) return;  // others were given meanwhile
    if (kept instanceof Error) return this.#say(kept.message, true);
    const adding = part(this.#root, 'adding').checked && address.state.like.length > 0;
    const refused = this.#add('like', kept.map(picture => ({picture: picture.id, region: null})), !adding);
    if (!refused && !this.#busy) this.#say(this.#told);  // they are the query already
  }

  /** Keep a file; `named` says whether an error has its name: that of one of many. */
  #keep(file, named) {
    return pictures.keep(file, this.#api, share => this.#sending(share)).catch(error => {
      if (named) error.message = `${file.name}: ${error.message} Nothing was searched for.`;
      throw error;
    });
  }

  #act(act, hit) {
    if (act === 'open') address.update({open: hit.id});
    else if (act !== 'select') this.#add(act === 'alone' ? 'like' : act, [{item: hit.id, region: null}], act === 'alone');
  }

  #add(side, views, alone) {
    for (const {item} of views) this.#searcher.tell(item, alone ? 'opened' : side === 'like' ? 'right' : 'wrong');
    const refused = this.#query.add(side, views, {alone});
    if (refused) this.#say(refused, true);
    return refused;
  }
}

/** Return what to say if no hit is similar enough; `best` is the best one. */
function nothing(best) {
  return best.probability === null
    ? `No result is that similar: the best similarity is ${best.score.toFixed(4)}.`
    : `Nothing like it here: the best result has a probability of ${percent(best.probability)}.`;
}
