// Boxes over the query picture: the parts that look like something in the gallery. A press on one searches with it.

import {viewText} from './address.js';
import {part, plural, show} from './dom.js';
import * as pictures from './pictures.js';

const HELP = 'A press on a part of the picture searches with it.';

export class Objects {
  #root; #api; #choose; #view = null; #of = ''; #boxes = null; #finding = 0;

  /**
   * @param {Root} root Has the parts `frame`, `boxes`, `find` and `help`.
   * @param {import('./api.js').Api} api
   * @param {(region: number[]) => void} choose Receives the box of a part that was pressed.
   */
  constructor(root, api, choose) {
    this.#root = root;
    this.#api = api;
    this.#choose = choose;
    part(root, 'find').addEventListener('click', () => this.#press());
    const boxes = part(root, 'boxes');
    boxes.addEventListener('pointerdown', event => event.stopPropagation());  // no region is drawn
    boxes.addEventListener('click', ({target}) => this.#take(target.closest('button')));
    boxes.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      this.#draw(false);
      part(root, 'find').focus();
    });
  }

  /** Follow the picture that is shown; null for none that the server could be sent. */
  follow(view) {
    const of = view ? viewText({...view, region: null}) : '';
    this.#view = view;
    show(part(this.#root, 'find'), Boolean(view));
    if (of === this.#of) return;
    this.#of = of;
    this.#boxes = null;
    this.#finding++;
    this.#draw(false);
  }

  async #press() {
    if (part(this.#root, 'find').ariaPressed === 'true') return this.#draw(false);
    if (this.#boxes) return this.#draw(true);
    const finding = ++this.#finding, help = part(this.#root, 'help');
    help.textContent = 'Looking for objects …';
    try {
      const {boxes} = await this.#ask();
      if (finding !== this.#finding) return;  // another picture is shown now
      this.#boxes = boxes;
      this.#draw(true);
      help.textContent = boxes.length ? `${plural(boxes.length, 'part')} may be in the gallery. ${HELP}` : 'The gallery is empty.';
    } catch (error) {
      if (finding === this.#finding) help.textContent = error.message;
    }
  }

  async #ask() {
    const view = this.#view;
    if (view.item !== undefined) return this.#api.post('/objects', {id: view.item});
    const picture = await pictures.ofView(view, this.#api);
    if (!picture) throw new Error('The picture of this search is not in this browser. Search with it again.');
    return this.#api.post('/objects', await pictures.shrink(picture, null));
  }

  #take(button) {
    if (!button) return;
    const {box} = this.#boxes[button.value];
    this.#draw(false);
    this.#root.querySelector('.region').focus({preventScroll: true});
    this.#choose(box);
  }

  /** Draw the boxes, small ones above large ones, or hide them. */
  #draw(shown) {
    part(this.#root, 'find').ariaPressed = String(shown);
    part(this.#root, 'frame').classList.toggle('finding', shown);
    show(part(this.#root, 'boxes'), shown);
    if (shown) part(this.#root, 'boxes').replaceChildren(...this.#boxes.map(button));
  }
}

function button({box: [left, top, right, bottom], label}, number, all) {
  const made = document.createElement('button');
  made.type = 'button';
  made.value = String(number);
  made.ariaLabel = `Part ${number + 1} of ${all.length}${label ? `, like ${label}` : ''}`;
  made.title = label ?? '';
  Object.assign(made.style, {left: 100 * left + '%', top: 100 * top + '%', width: 100 * (right - left) + '%',
    height: 100 * (bottom - top) + '%', zIndex: String(Math.round(100 * (2 - (right - left) * (bottom - top))))});
  return made;
}
