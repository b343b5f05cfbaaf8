// What a visitor can begin with: images of the gallery.

import {clone, fileName, part, proportion} from './dom.js';

const SHOWN = 36;

export class Welcome {
  #list; #api; #pick; #asking = false;

  /**
   * @param {HTMLElement} list
   * @param {import('./api.js').Api} api
   * @param {(item: number) => void} pick Receives the id of an image that is chosen.
   */
  constructor(list, api, pick) {
    this.#list = list;
    this.#api = api;
    this.#pick = pick;
  }

  /**
   * Show some images, unless there are some already. Returns whether it did.
   * @param {number} images How many the gallery has.
   */
  async draw(images) {
    if (this.#list.childElementCount || this.#asking || !images) return false;
    this.#asking = true;
    const {items} = await this.#api.get(`/examples?limit=${SHOWN}`).finally(() => { this.#asking = false; });
    this.#list.replaceChildren(...items.map(item => this.#example(item)));
    return true;
  }

  #example(item) {
    const entry = clone('example');
    proportion(entry, item);
    const image = part(entry, 'image');
    image.src = item.thumbnail;
    image.alt = `Search with ${item.label ?? fileName(item.key)}`;
    part(entry, 'pick').addEventListener('click', () => this.#pick(item.id));
    return entry;
  }
}
