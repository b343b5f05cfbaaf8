// A figure of the embeddings, which is drawn when it is opened; the address names it.

import {address} from './address.js';
import {part, plural} from './dom.js';
import {Work} from './work.js';

export class Figure {
  #root; #work; #shown = '';

  constructor(root, jobs) {
    this.#root = root;
    this.#work = new Work(root, jobs);
    root.addEventListener('click', event => {
      const figure = event.target.closest('[data-figure]')?.dataset.figure;
      if (figure) address.update({figure: figure === address.state.figure ? '' : figure});
    });
  }

  /** Show the figure of the address, of the gallery in a state. */
  async follow(state) {
    const {figure} = address.state, asked = figure && `${figure} ${state}`;
    const buttons = [...this.#root.querySelectorAll('[data-figure]')];
    for (const button of buttons) button.ariaPressed = String(button.dataset.figure === figure);
    if (asked === this.#shown) return;
    this.#shown = asked;
    part(this.#root, 'figure').replaceChildren();
    this.#work.say('');
    if (!buttons.some(button => button.dataset.figure === figure)) return;
    const before = await this.#work.resume(figure);
    const found = before?.state === state ? before : asked === this.#shown && await this.#work.run(figure, {});
    if (asked !== this.#shown) return;
    if (!found) { this.#shown = ''; return; }  // it has been said why
    this.#work.say(words(found));
    part(this.#root, 'figure').innerHTML = found.html;
  }
}

function words({images, total, left_out}) {
  const sample = images + left_out < total ? `, a random sample of ${total.toLocaleString('en')}, compared among themselves` : '';
  const alone = left_out ? ` ${plural(left_out, 'image')} of a class without another one ${left_out === 1 ? 'is' : 'are'} left out.` : '';
  return `${plural(images, 'labelled image')}${sample}: horizontally the similarity to the nearest of the same class, vertically to the nearest of another class. Above the diagonal, Recall@1 fails.${alone}`;
}
