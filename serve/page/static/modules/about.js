// What the gallery contains: its facts, and the statistics of its images, which the server draws.

import {address} from './address.js';
import {parts} from './api.js';
import {part} from './dom.js';

export class About {
  #root; #parts = parts();

  constructor(root) {
    this.#root = root;
    part(root, 'statistics').addEventListener('toggle', () => this.#count());
    part(root, 'counts').addEventListener('click', event => {
      const where = event.target.closest('[data-filter]')?.dataset.filter;
      if (where) address.update({view: '', where, picked: []});
    });
  }

  /** Show the present facts. */
  follow() {
    this.#draw('facts', '/about');
    this.#count();
  }

  #count() {
    if (!part(this.#root, 'statistics').open) return;
    if (!part(this.#root, 'counts').firstChild) part(this.#root, 'counts').textContent = 'Counting …';
    this.#draw('counts', '/statistics');
  }

  async #draw(name, path) {
    try {
      part(this.#root, name).innerHTML = await this.#parts.get(path, {type: 'text'});
      part(this.#root, 'status').textContent = '';
    } catch (error) {
      part(this.#root, 'status').textContent = error.message;
    }
  }
}
