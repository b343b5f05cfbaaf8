// Adding images to the gallery: one request for each file, with what became of it.

import {address} from './address.js';
import {announce} from './changes.js';
import {connection} from './connection.js';
import {clone, part, plural, show} from './dom.js';

export class Adding {
  #root; #api; #busy = false;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    root.addEventListener('submit', event => { event.preventDefault(); this.#add(); });
    addEventListener('beforeunload', event => { if (this.#busy) event.preventDefault(); });  // the files still to come would be lost
    part(root, 'outcomes').addEventListener('click', event => {
      const known = event.target.closest('[data-item]');
      if (known) address.update({open: Number(known.dataset.item)});
    });
  }

  follow() {}

  async #add() {
    const files = [...part(this.#root, 'files').files], label = part(this.#root, 'label').value.trim();
    if (!files.length) return this.#say('Choose images first.');
    const button = part(this.#root, 'go'), bar = part(this.#root, 'progress');
    part(this.#root, 'outcomes').replaceChildren();
    button.disabled = this.#busy = true;
    show(bar, true);
    let added = 0;
    for (const [index, file] of files.entries()) {
      this.#say(`Adding ${index + 1} of ${plural(files.length, 'file')}`);
      const [text, trouble, known] = await this.#send(file, label, share => { bar.value = (index + share) / files.length; });
      if (!trouble && text.startsWith('added')) added++;
      if (trouble || !text.startsWith('added')) this.#note(file.name, text, trouble, known);
    }
    show(bar, false);
    button.disabled = this.#busy = false;
    part(this.#root, 'files').value = '';
    this.#say(`${plural(added, 'image')} added.`);
    if (added) announce();
  }

  /**
   * Add a file; return what became of it, whether it, or its label, was refused, and the image that is there in its place.
   * @returns {Promise<[string, boolean, {id: number, key: string, thumbnail: string}?]>}
   */
  async #send(file, label, progress) {
    const form = new FormData();
    form.append('images', file, file.name);
    if (label) form.append('label', label);
    if (part(this.#root, 'refuse').checked) form.append('duplicates', 'refuse');
    try {
      const [result] = (await this.#api.send('POST', '/items', form, {progress})).results;
      if (result.added) return [`added as item ${result.image.id}`, false];
      const kept = result.conflict ? `, with the label ${result.image.label ?? 'none'}, which stays` : '';
      const why = result.similarity ? `left out: looks like item ${result.image.id} (similarity ${result.similarity.toFixed(3)})` : `is in the gallery already, as item ${result.image.id}`;
      return [why + kept, Boolean(result.conflict), result.image];
    } catch (error) {
      if (error.code === 'unreachable' && connection.away) {
        await connection.here;
        return this.#send(file, label, progress);  // a file is added once, however often it is sent
      }
      return [`not added: ${error.message}`, true];
    }
  }

  #note(name, text, trouble, known) {
    const row = clone('outcome'), there = part(row, 'there');
    part(row, 'words').textContent = `${name}: ${text}`;
    row.classList.toggle('trouble', trouble);
    show(there, Boolean(known));
    if (known) {
      there.dataset.item = String(known.id);
      part(row, 'image').src = known.thumbnail;
      part(row, 'image').alt = `Show ${known.key}`;
    }
    part(this.#root, 'outcomes').append(row);
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}
