// The hits as a grid that fills the screen; more of them come as it is scrolled.

import {bandName, withBands} from './bands.js';
import {caption, choice, nameCards, redraw, steer} from './cards.js';
import {clone, part, proportion, show} from './dom.js';
import {DRAGGED} from './intake.js';
import {freshen} from './news.js';
import {viewsOf} from './views.js';

const AHEAD = '1200px';  // how far below the screen further hits are asked for

export class Results {
  #list; #end; #ends; #hits = [];

  /**
   * @param {Element} root Has the parts `hits` (a list) and `end`.
   * @param {(what: string, hit: object) => void} act Receives `open`, `alone`, `like` or `unlike` and the hit.
   * @param {() => void} more Called when the end of the grid comes near.
   */
  constructor(root, act, more) {
    this.#list = part(root, 'hits');
    this.#end = part(root, 'end');
    this.#list.addEventListener('click', event => {
      const button = event.target.closest('button');
      const card = event.target.closest('li');
      if (button && card) act(button.dataset.act, this.#of(card));
    });
    this.#list.addEventListener('dragstart', event => {
      const card = event.target.closest('li');
      event.dataTransfer.setData(DRAGGED, card.dataset.item);
      event.dataTransfer.effectAllowed = 'copy';
    });
    steer(this.#list, (what, card) => act(what, this.#of(card)));
    choice.addEventListener('change', () => redraw(this.#list));
    this.#ends = new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) more(); }, {rootMargin: AHEAD});
  }

  get hits() { return this.#hits; }

  #of(card) { return this.#hits[Number(card.dataset.rank) - 1]; }

  /**
   * Show hits, in place of those before or after them.
   * @param {object[]} hits All hits, in the order to show them in.
   * @param {Set<string>} labels Labels of the query's images, to compare with; empty for no comparison.
   * @param {object} [options]
   * @param {boolean} [options.grows] Whether `hits` begin with those that are shown.
   * @param {boolean} [options.complete] Whether there are no further hits.
   */
  draw(hits, labels, {grows = false, complete = true} = {}) {
    const kept = grows ? this.#hits.length : 0;
    this.#hits = hits;
    const cards = hits.slice(kept).map((hit, index) => this.#card(hit, kept + index + 1, labels));
    const rows = withBands(hits, cards);
    if (kept) this.#list.append(...rows); else this.#list.replaceChildren(...rows);
    nameCards(this.#list);
    show(this.#end, !complete);
    this.#ends.unobserve(this.#end);
    this.#ends.observe(this.#end);  // it is told of the end again, also if that has stayed near
    this.dim(false);
  }

  /** Grey the hits while they are not those of the query that is shown. */
  dim(dimmed) { this.#list.classList.toggle('stale', dimmed); }

  /** Keep the hits as they are, without any that may come: the query that is shown has none. */
  keep() {
    this.dim(false);
    show(this.#end, false);
  }

  /** Bring the labels of the hits up to date. */
  freshen(api) { return freshen(api, this.#list, title); }

  #card(hit, rank, labels) {
    const card = clone('hit'), words = likeness(hit);
    proportion(card, hit);
    card.dataset.rank = rank;
    card.dataset.item = hit.id;
    card.dataset.likeness = words;
    const image = part(card, 'image');
    const mark = labels.size && hit.label !== null ? (labels.has(hit.label) ? 'same' : 'other') : '';
    const compared = {same: ' · same label', other: ' · other label', '': ''}[mark];
    const views = viewsOf(hit);
    image.alt = [rank, words, `${hit.label ?? 'no label'}${compared}`, ...views ? [views] : []].join(' · ');
    if (views) part(card, 'score').dataset.views = views;
    image.src = hit.thumbnail;
    if (mark) part(card, 'mark').className = mark;
    caption(card, hit, title(hit));
    part(card, 'score').textContent = hit.probability === null ? decimals(hit.score) : percent(hit.probability);
    part(card, 'open').title = [fileName(hit.key), words, ...Object.entries(hit.metadata).map(([name, value]) => `${name}: ${value}`)].join('\n');
    return card;
  }
}

const title = item => item.label ?? fileName(item.key);

/** Return how alike a hit is, in words. Only a calibrated gallery has probabilities: a cosine is none. */
const likeness = ({score, probability}) => `similarity ${score.toFixed(4)}`
  + (probability === null ? '' : `, ${bandName(probability)}: shows the same with a probability of ${percent(probability)}`);

/** Return a similarity with two decimals; 1.00 is that of the same image only. */
export const decimals = value => (value < 0.9999 ? Math.min(Math.round(100 * value), 99) / 100 + 0 : 1).toFixed(2);

/** Return a probability in percent. */
export const percent = value => `${(100 * value).toFixed(0)} %`;

/** Return the last part of a key, which is a path for most images. */
export const fileName = key => key.split('/').at(-1);
