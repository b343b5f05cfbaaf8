// Adding images to the gallery: one request for each file, with what became of it.

import {announce} from './changes.js';
import {connection} from './connection.js';
import {part, plural, show} from './dom.js';

export class Adding {
  #root; #api;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    root.addEventListener('submit', event => { event.preventDefault(); this.#add(); });
  }

  follow() {}

  async #add() {
    const files = [...part(this.#root, 'files').files], label = part(this.#root, 'label').value.trim();
    if (!files.length) return this.#say('Choose images first.');
    const button = part(this.#root, 'go'), bar = part(this.#root, 'progress');
    part(this.#root, 'outcomes').replaceChildren();
    button.disabled = true;
    show(bar, true);
    let added = 0;
    for (const [index, file] of files.entries()) {
      this.#say(`Adding ${index + 1} of ${plural(files.length, 'file')}`);
      const [text, trouble] = await this.#send(file, label, share => { bar.value = (index + share) / files.length; });
      if (!trouble && text.startsWith('added')) added++;
      if (trouble || !text.startsWith('added')) this.#note(file.name, text, trouble);
    }
    show(bar, false);
    button.disabled = false;
    part(this.#root, 'files').value = '';
    this.#say(`${plural(added, 'image')} added.`);
    if (added) announce();
  }

  /**
   * Add a file; return what became of it, and whether it, or its label, was refused.
   * @returns {Promise<[string, boolean]>}
   */
  async #send(file, label, progress) {
    const form = new FormData();
    form.append('images', file, file.name);
    if (label) form.append('label', label);
    try {
      const [result] = (await this.#api.send('POST', '/items', form, {progress})).results;
      if (result.added) return [`added as item ${result.image.id}`, false];
      const kept = result.conflict ? `, with the label ${result.image.label ?? 'none'}, which stays` : '';
      return [`is in the gallery already, as item ${result.image.id}${kept}`, Boolean(result.conflict)];
    } catch (error) {
      if (error.code === 'unreachable' && connection.away) {
        await connection.here;
        return this.#send(file, label, progress);  // a file is added once, however often it is sent
      }
      return [`not added: ${error.message}`, true];
    }
  }

  #note(name, text, trouble) {
    const row = document.createElement('li');
    row.textContent = `${name}: ${text}`;
    row.classList.toggle('trouble', trouble);
    part(this.#root, 'outcomes').append(row);
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
