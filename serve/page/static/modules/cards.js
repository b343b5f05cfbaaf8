// Cards of images: what is below the picture, how large they are, and how the keyboard moves among them.

import {GALLERY} from './options.js';
import {breakable, part} from './dom.js';

/**
 * A card, whose element is there while it is near the window, or a heading, which has no item. `place` counts the cards from 1;
 * `seen` says how new what is known of the item is.
 * @typedef {{item?: any, heading?: () => HTMLElement, place: number, label: string, gone: boolean, seen: number, element: ?Root}} Entry
 */

const KEPT = `lookalike:cards:${GALLERY?.uuid}`;
/** The number before the name of a class, as in 001.Black_footed_Albatross. */
export const NUMBERED = /^(\d+[._]|0\d*[\s-])\s*(?=\S)/;
const SMALLEST = 5, LARGEST = 20;  // rem, of the height of a row
const KEYS = {s: 'alone', '+': 'like', '-': 'unlike', x: 'select', v: 'variant'};
const STEPS = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [1, 1], ArrowUp: [-1, -1]};  // cards, rows

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

/** The grids of the page by their lists. @type {WeakMap<Element, import('./grid.js').Grid>} */
export const grids = new WeakMap();

/** Return the grid that is shown in a part of the page, if there is one. */
export function gridIn(root) {
  const lists = [...root?.querySelectorAll('[data-part=hits], [data-part=grid]') ?? []];
  return lists.filter(list => list.getClientRects().length).map(list => grids.get(list)).find(Boolean);
}

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
 * Show on a card its item, and what is known of it: its label and the columns that are chosen, or that it is gone.
 * @param {Entry} entry
 * @param {string} alt Alternative text of the picture.
 * @param {boolean} numbered Whether the label begins with a number that is left out.
 */
export function dress({element, item, label, gone}, alt, numbered) {
  const facts = gone ? [] : choice.shown().map(column => item.metadata[column]).filter(value => value !== undefined && value !== null);
  if (element.dataset.item !== String(item.id)) part(element, 'image').src = item.thumbnail;
  element.dataset.item = item.id;
  element.classList.toggle('gone', gone);
  part(element, 'image').alt = alt;
  drawLabel(element, label, numbered);
  part(element, 'facts').textContent = facts.join(' · ');
}

/** Write the label of a card, without the number before it if that is left out. */
export function drawLabel(card, text, numbered) {
  part(card, 'label').replaceChildren(...breakable(numbered ? text.replace(NUMBERED, '') : text));
}

/**
 * Let arrow keys move among the cards of a list, and letters act on the one with the focus.
 * @param {Root} list
 * @param {(what: string, card: HTMLElement) => void} act Receives `alone`, `like`, `unlike`, `select` or `variant` and the card.
 * @param {(card: HTMLElement, by: number, rows: number) => void} step Receives by how many cards or rows to move, from which card.
 */
export function steer(list, act, step) {
  list.addEventListener('keydown', event => {
    const card = event.target.closest('[data-item]');
    if (!card || event.altKey || event.ctrlKey || event.metaKey || event.target.matches('input')) return;
    if (KEYS[event.key]) act(KEYS[event.key], card);
    else if (STEPS[event.key]) step(card, STEPS[event.key][0], STEPS[event.key][1]);
    else return;
    event.preventDefault();
  });
}
