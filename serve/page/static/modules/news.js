// What others changed about a list that is being looked at: its cards are brought up to date where they are, and what has
// come is offered, so that nothing moves.

import {caption, nameCards} from './cards.js';
import {presentItems} from './changes.js';
import {part, show} from './dom.js';

/** A button that says what is new, and shows it. */
export class News {
  #button;

  /**
   * @param {Element} button
   * @param {() => void} open Called to show what is new.
   */
  constructor(button, open) {
    this.#button = button;
    button.addEventListener('click', () => {
      const list = button.closest('section');
      list.tabIndex = -1;
      list.focus({preventScroll: true});  // the button is gone
      this.tell('');
      open();
    });
  }

  /** Say what is new; nothing if the text is empty. */
  tell(text) {
    this.#button.textContent = text && `${text}: show ${/^1 /.test(text) ? 'it' : 'them'}`;
    show(this.#button, Boolean(text));
  }
}

/**
 * Bring the cards of a list up to date: their labels, and which of them are gone.
 * @param {Element} list Has elements with `data-item`, each with the parts `label` and `image`.
 * @param {(item: object) => string} words Returns the label of a card.
 * @returns {Promise<number>} How many images are gone.
 */
export async function freshen(api, list, words) {
  const cards = /** @type {HTMLElement[]} */ ([...list.querySelectorAll('[data-item]')]);
  const present = await presentItems(api, cards.map(card => Number(card.dataset.item)));
  for (const card of cards) {
    const item = present.get(Number(card.dataset.item)), image = part(card, 'image'), before = card.dataset.label;
    const now = item ? words(item) : 'removed';
    card.classList.toggle('gone', !item);
    caption(card, item ?? {label: now, metadata: {}}, now);
    if (now !== before) image.alt = image.alt.replace(before, now);
  }
  nameCards(list);
  return cards.filter(card => card.classList.contains('gone')).length;
}
