// The hits as a grid that fills the screen; more of them come as it is scrolled.

import {clone, part, proportion, show} from './dom.js';

const AHEAD = '1200px';  // how far below the screen further hits are asked for

export class Results {
  #list; #end; #hits = []; #marks = false;

  /**
   * @param {Element} root Has the parts `hits` (a list) and `end`.
   * @param {(what: string, hit: object) => void} act Receives `open`, `like` or `unlike` and the hit.
   * @param {() => void} more Called when the end of the grid comes near.
   */
  constructor(root, act, more) {
    this.#list = part(root, 'hits');
    this.#end = part(root, 'end');
    this.#list.addEventListener('click', event => {
      const button = event.target.closest('button');
      const card = event.target.closest('li');
      if (button && card) act(button.dataset.act, this.#hits[[...this.#list.children].indexOf(card)]);
    });
    new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) more(); },
      {rootMargin: AHEAD}).observe(this.#end);
  }

  get hits() { return this.#hits; }

  /**
   * Show hits, in place of those before or after them.
   * @param {object[]} hits All hits with their `rank`, in the order to show them in.
   * @param {Set<string>} labels Labels of the query's images, to compare with; empty for no comparison.
   * @param {boolean} options.grows Whether `hits` begin with those that are shown.
   * @param {boolean} options.complete Whether there are no further hits.
   */
  draw(hits, labels, {grows = false, complete = true} = {}) {
    const kept = grows ? this.#hits.length : 0;
    this.#hits = hits;
    const cards = hits.slice(kept).map(hit => this.#card(hit, labels));
    if (kept) this.#list.append(...cards); else this.#list.replaceChildren(...cards);
    show(this.#end, !complete);
    this.dim(false);
  }

  /** Grey the hits while they are not those of the query that is shown. */
  dim(dimmed) { this.#list.classList.toggle('stale', dimmed); }

  #card(hit, labels) {
    const card = clone('hit'), {rank} = hit;
    proportion(card, hit);
    card.dataset.rank = rank;
    card.dataset.item = hit.id;
    card.dataset.score = hit.score.toFixed(4);
    const percent = 100 * (hit.probability ?? hit.score);
    const image = part(card, 'image');
    const mark = labels.size && hit.label !== null ? (labels.has(hit.label) ? 'same' : 'other') : '';
    const words = {same: ' · same label', other: ' · other label', '': ''}[mark];
    image.alt = `${rank} · ${hit.score.toFixed(4)} · ${hit.label ?? 'no label'}${words}`;
    image.src = hit.thumbnail;
    if (mark) part(card, 'mark').className = mark;
    part(card, 'label').textContent = hit.label ?? fileName(hit.key);
    part(card, 'score').textContent = `${Math.max(0, percent).toFixed(0)} %`;
    part(card, 'bar').style.width = `${Math.max(0, percent)}%`;
    part(card, 'open').title = [fileName(hit.key), ...Object.entries(hit.metadata).map(([name, value]) => `${name}: ${value}`)].join('\n');
    return card;
  }
}

/** Return hits with their rank, best first or by the values of a column; those without a value are last. */
export function ordered(hits, column) {
  const ranked = hits.map((hit, index) => ({...hit, rank: index + 1}));
  if (!column) return ranked;
  const value = hit => column === 'label' ? hit.label : hit.metadata[column];
  return ranked.sort((a, b) => compare(value(a), value(b)) || a.rank - b.rank);
}

function compare(a, b) {
  if ((a ?? null) === null || (b ?? null) === null) return Number((a ?? null) === null) - Number((b ?? null) === null);
  return typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', {numeric: true});
}

/** Return the last part of a key, which is a path for most images. */
export const fileName = key => key.split('/').at(-1);
