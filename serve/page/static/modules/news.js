// What has come to a list that is being looked at: it is offered, so that nothing moves.

import {show} from './dom.js';

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
