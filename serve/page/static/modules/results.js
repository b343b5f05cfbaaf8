// The hits as a grid that fills the screen; more of them come as it is scrolled.

import {bandName, withBands} from './bands.js';
import {clone, fileName, part, percent, show} from './dom.js';
import {Grid} from './grid.js';
import {DRAGGED} from './intake.js';
import {drawVariants, variantOf, viewsOf} from './views.js';

const AHEAD = 1200;  // pixels below the window in which further hits are searched for

export class Results {
  #list; #grid; #end; #hits = []; #labels = new Set();

  /**
   * @param {Element} root Has the parts `status`, `hits` (a list) and `end`.
   * @param {import('./api.js').Api} api
   * @param {(what: string, hit: object) => void} act Receives `open`, `alone`, `like` or `unlike` and the hit.
   * @param {() => void} more Called while the end of the grid is near.
   */
  constructor(root, api, act, more) {
    this.#list = part(root, 'hits');
    this.#end = part(root, 'end');
    this.#grid = new Grid(this.#list, part(root, 'status'), {
      api, more, ahead: AHEAD, words: title,
      act: (what, hit) => what === 'variant' ? this.#exchange(hit) : act(what, hit),
      draw: (hit, rank) => this.#card(hit, rank),
      alt: (hit, rank, words) => [
        rank, likeness(hit), `${hit.label === null ? 'no label' : words}${COMPARED[this.#compared(hit)]}`, variantOf(hit), viewsOf(hit),
      ].filter(Boolean).join(' · '),
    });
    this.#list.addEventListener('click', event => {
      const button = event.target.closest('button');
      const card = event.target.closest('li');
      if (button?.dataset.view) this.#exchange(this.#grid.of(card), Number(button.dataset.view));
      else if (button && card) act(button.dataset.act, this.#grid.of(card));
    });
    this.#list.addEventListener('dragstart', event => {
      const card = event.target.closest('li');
      event.dataTransfer.setData(DRAGGED, card.dataset.item);
      event.dataTransfer.effectAllowed = 'copy';
    });
  }

  get hits() { return this.#hits; }

  /**
   * Show hits, in place of those before or after them.
   * @param {object[]} hits All hits, in the order to show them in.
   * @param {Set<string>} labels Labels of the query's images, to compare with; empty for no comparison.
   * @param {object} [options]
   * @param {boolean} [options.grows] Whether `hits` begin with those that are shown.
   * @param {boolean} [options.complete] Whether there are no further hits.
   * @param {boolean} [options.again] Whether they are those of the query that is shown, of a gallery that has changed.
   */
  draw(hits, labels, {grows = false, complete = true, again = false} = {}) {
    const kept = grows ? this.#hits.length : 0;
    this.#hits = hits;
    this.#labels = labels;
    this.#grid.size = complete ? hits.length : -1;
    if (kept) this.#grid.append(withBands(hits, kept)); else this.#grid.replace(withBands(hits, 0), again);
    show(this.#end, !complete);
    this.dim(false);
  }

  /** Ask for more if the end is near. */
  look() { this.#grid.look(); }

  /** Grey the hits while they are not those of the query that is shown. */
  dim(dimmed) { this.#list.classList.toggle('stale', dimmed); }

  /** Keep the hits as they are, without any that may come: the query that is shown has none. */
  keep() {
    this.dim(false);
    show(this.#end, false);
  }

  /** Bring the labels of the hits up to date. */
  freshen() { return this.#grid.freshen(); }

  /** Let a hit show one of its variants: that with an id, or the next one. */
  #exchange(hit, id = 0) {
    const views = hit.variant_count > 1 ? hit.views ?? [] : [], at = views.findIndex(view => view.id === (id || hit.id));
    if (at < 0) return;
    const {id: shown, key, thumbnail} = views[id ? at : (at + 1) % views.length];
    drawVariants(this.#grid.exchange(hit, {id: shown, key, thumbnail}), hit);
  }

  #compared({label}) { return this.#labels.size && label !== null ? (this.#labels.has(label) ? 'same' : 'other') : ''; }

  #card(hit, rank) {
    const card = clone('hit'), mark = this.#compared(hit);
    card.dataset.rank = rank;
    if (mark) part(card, 'mark').className = mark;
    if (viewsOf(hit) && !(hit.variant_count > 1)) part(card, 'score').dataset.views = viewsOf(hit);  // variants are seen
    drawVariants(card, hit);
    if (hit.score !== null) part(card, 'score').textContent = hit.probability === null ? decimals(hit.score) : percent(hit.probability);
    part(card, 'open').title = [fileName(hit.key), likeness(hit), ...Object.entries(hit.metadata).map(([name, value]) => `${name}: ${value}`)].filter(Boolean).join('\n');
    return card;
  }
}

const COMPARED = {same: ' · same label', other: ' · other label', '': ''};

const title = item => item.label ?? fileName(item.key);

/** Return how alike a hit is, in words; nothing for one of two galleries. Only a calibrated gallery has probabilities: a cosine is none. */
export const likeness = ({score, probability}) => score === null ? '' : `similarity ${score.toFixed(4)}`
  + (probability === null ? '' : `, ${bandName(probability)}: shows the same with a probability of ${percent(probability)}`);

/** Return a similarity with two decimals; 1.00 is that of the same image only. */
export const decimals = value => (value < 0.9999 ? Math.min(Math.round(100 * value), 99) / 100 + 0 : 1).toFixed(2);

/** Return what to say of the numbers on the cards: from the lowest to the highest, as they are rounded there; nothing for a single card. */
export function range(hits) {
  if (hits.length < 2 || hits[0].score === null) return [];
  const calibrated = hits.every(hit => hit.probability !== null), values = hits.map(hit => calibrated ? hit.probability : hit.score);
  const [low, high] = [Math.min(...values), Math.max(...values)].map(value => calibrated ? percent(value) : decimals(value));
  const between = low === high ? low : `${calibrated ? low.replace(/\s%$/, '') : low} to ${high}`;
  return [calibrated ? `${between} likely the same` : `similarity ${between}`];
}
