// Cards of images: what is below the picture, how large they are, and how the keyboard moves among them.

import {GALLERY} from './options.js';
import {breakable, part} from './dom.js';

const KEPT = `lookalike:cards:${GALLERY?.uuid}`;
const NUMBERED = /^(\d+[._]|0\d*[\s-])\s*(?=\S)/;  // of a class, as in 001.Black_footed_Albatross
const SMALLEST = 5, LARGEST = 20;  // rem, of the height of a row
const KEYS = {s: 'alone', '+': 'like', '-': 'unlike', x: 'select'};

/** What the visitor has chosen: `columns` to show, null for those of the gallery's owner; `size` of a row in rem, null for the usual one. */
class Choice extends EventTarget {
  constructor() {
    super();
    this.columns = null;
    this.size = null;
    try {
      Object.assign(this, JSON.parse(localStorage.getItem(KEPT)));
    } catch { /* kept by an earlier page, or not allowed */ }
    this.#apply();
  }

  /** Return the names of the columns to show. */
  shown() { return this.columns ?? GALLERY?.show ?? []; }

  change(what) {
    Object.assign(this, what);
    this.#apply();
    try {
      localStorage.setItem(KEPT, JSON.stringify({columns: this.columns, size: this.size}));
    } catch { /* it holds until the page is closed */ }
    this.dispatchEvent(new Event('change'));
  }

  #apply() {
    if (this.size) document.documentElement.style.setProperty('--card', `${this.size}rem`);
  }
}

export const choice = new Choice();

/**
 * Let a visitor choose in a panel.
 * @param {Element} panel Has the parts `size` and `columns`.
 * @param {string[]} columns All columns.
 */
export function choosing(panel, columns) {
  const size = part(panel, 'size');
  Object.assign(size, {min: SMALLEST, max: LARGEST, step: 0.5, value: choice.size ?? usualSize(panel)});
  size.addEventListener('input', () => choice.change({size: Number(size.value)}));
  const boxes = columns.map(column => {
    const row = document.createElement('li'), label = document.createElement('label'), box = document.createElement('input');
    Object.assign(box, {type: 'checkbox', value: column});
    label.append(box, column);
    row.append(label);
    return row;
  });
  part(panel, 'columns').append(...boxes);
  part(panel, 'columns').addEventListener('change', () =>
    choice.change({columns: [.../** @type {NodeListOf<HTMLInputElement>} */ (panel.querySelectorAll(':checked'))].map(box => box.value)}));
  const draw = () => { for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (panel.querySelectorAll('input[type=checkbox]'))) box.checked = choice.shown().includes(box.value); };
  choice.addEventListener('change', draw);
  draw();
}

const usualSize = element => parseFloat(getComputedStyle(element).getPropertyValue('--usual')) || 10;

/**
 * Write below the picture of a card.
 * @param {Root} card Has the parts `label` and `facts`.
 * @param {any} item An item or a hit.
 * @param {string} name What it is called without a label.
 */
export function caption(card, item, name) {
  card.dataset.label = item.label ?? name;
  card.facts = item.metadata;
  drawFacts(card);
}

function drawFacts(card) {
  const facts = choice.shown().map(column => card.facts[column]).filter(value => value !== undefined && value !== null);
  part(card, 'facts').textContent = facts.join(' · ');
}

/** Return the cards of a list, which may have other rows between them. */
const cardsOf = list => [...list.children].filter(isCard);
const isCard = row => row.dataset.item !== undefined;

/** Draw the columns of all cards of a list again. */
export function redraw(list) { for (const card of cardsOf(list)) drawFacts(card); }

/** Write the labels of all cards of a list: without the numbers that all of them begin with. */
export function nameCards(list) {
  const cards = cardsOf(list);
  const numbered = cards.length > 1 && cards.every(card => NUMBERED.test(card.dataset.label) || card.matches('.gone'));
  for (const card of cards) {
    const text = numbered ? card.dataset.label.replace(NUMBERED, '') : card.dataset.label;
    const label = part(card, 'label');
    if (label.textContent !== text) label.replaceChildren(...breakable(text));
  }
}

/**
 * Let arrow keys move among the cards of a list, and letters act on the one with the focus.
 * @param {Root} list
 * @param {(what: string, card: HTMLElement) => void} act Receives `alone`, `like`, `unlike` or `select` and the card.
 */
export function steer(list, act) {
  list.addEventListener('keydown', event => {
    const card = event.target.closest('li');
    if (!card || event.altKey || event.ctrlKey || event.metaKey || event.target.matches('input')) return;
    if (KEYS[event.key]) {
      event.preventDefault();
      return act(KEYS[event.key], card);
    }
    const next = beside(card, event.key);
    if (next) {
      event.preventDefault();
      part(next, 'open').focus();
    }
  });
}

/** Return the card that an arrow key leads to: in the rows above and below the one that is nearest. */
function beside(card, key) {
  const step = key === 'ArrowDown' || key === 'ArrowRight' ? 'nextElementSibling' : 'previousElementSibling';
  if (key === 'ArrowRight' || key === 'ArrowLeft') {
    let other = card[step];
    while (other && !isCard(other)) other = other[step];
    return other;
  }
  if (key !== 'ArrowDown' && key !== 'ArrowUp') return null;
  const middle = centre(card), top = card.offsetTop;
  let row = null, found = null;
  for (let other = card[step]; other; other = other[step]) {
    if (other.offsetTop === top || !isCard(other)) continue;
    row ??= other.offsetTop;
    if (other.offsetTop !== row) break;
    if (!found || Math.abs(centre(other) - middle) < Math.abs(centre(found) - middle)) found = other;
  }
  return found;
}

const centre = card => card.offsetLeft + card.offsetWidth / 2;
