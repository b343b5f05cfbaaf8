// Labels that are probably wrong, one after the other: accept the suggested label, keep the present one, or undo.

import {address} from './address.js';
import {announce, labelItems, presentItems} from './changes.js';
import {part, plural, show} from './dom.js';
import {Jobs} from './jobs.js';
import {fileName} from './results.js';
import {Work} from './work.js';

const LISTED = 500;  // images, of those that are not likely wrong
const KEYS = {a: 'accept', k: 'keep', s: 'skip', z: 'undo'};

export class Suspects {
  #root; #api; #work; #changes; #queue = []; #at = 0; #done = []; #started = false; #busy = false;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#changes = gallery.changes;
    this.#work = new Work(root, new Jobs(api));
    part(root, 'find').addEventListener('click', () => this.#find({}));
    part(root, 'more').addEventListener('click', () => this.#find({limit: LISTED}));
    part(root, 'case').addEventListener('click', event => this.#press(event));
    part(root, 'other').addEventListener('submit', event => {
      event.preventDefault();
      const label = part(root, 'label').value.trim();
      if (label) this.#decide(() => this.#relabel(label));
    });
    document.addEventListener('keydown', event => this.#key(event));
  }

  /** Show the queue that was found last, by this visitor or another. */
  follow() {
    if (this.#started) return;
    this.#started = true;
    this.#resume();
  }

  async #resume() {
    const found = await this.#work.resume('suspects');
    if (!found) return;
    const now = await presentItems(this.#api, found.suspects.map(({image}) => image.id));
    this.#take({...found, suspects: found.suspects.filter(({image}) => now.get(image.id)?.label === image.label)});
  }

  async #find(request) {
    const found = await this.#work.run('suspects', request);
    if (found) this.#take(found);
  }

  #take(found) {
    this.#queue = found.suspects;
    this.#at = 0;
    this.#done = [];
    const expected = Math.round(100 * (found.suspects.at(-1)?.precision ?? 0));
    part(this.#root, 'what').textContent = `The nearest images give ${plural(found.total, 'image')} of ${found.labelled.toLocaleString('en')} another label. ` + (found.suspects.length ? `About ${expected} % of the ${found.suspects.length} listed are expected to be wrong; the model confuses the others.` : 'No label stands out from those that the model confuses.');
    show(part(this.#root, 'more'), found.suspects.length < Math.min(found.total, LISTED));
    this.#draw();
  }

  #draw() {
    const one = this.#queue[this.#at];
    show(part(this.#root, 'case'), Boolean(one));
    this.#work.say(one ? `${this.#at + 1} of ${this.#queue.length}` : this.#queue.length ? `All ${this.#queue.length} are done.` : 'No label is likely wrong.');
    show(part(this.#root, 'undo'), this.#done.length > 0);
    for (const name of ['accept', 'keep', 'other']) show(part(this.#root, name), this.#changes);
    show(part(this.#root, 'read-only'), !this.#changes);
    if (!one) return;
    const {image, suggested, votes, neighbours} = one;
    const picture = part(this.#root, 'image');
    picture.src = `${this.#api.root}/items/${image.id}/picture`;
    picture.alt = `item ${image.id}, ${image.label}`;
    part(this.#root, 'file').textContent = fileName(image.key);
    part(this.#root, 'present').textContent = image.label;
    part(this.#root, 'suggested').textContent = suggested;
    part(this.#root, 'votes').textContent = `${Math.round(100 * votes)} % of its nearest images have it`;
    part(this.#root, 'label').value = '';
    part(this.#root, 'neighbours').replaceChildren(...neighbours.map(near => {
      const entry = document.createElement('li'), button = document.createElement('button'), small = new Image();
      small.src = near.image.thumbnail;
      small.alt = `Open item ${near.image.id}, ${near.image.label}`;
      button.type = 'button';
      button.dataset.item = near.image.id;
      button.append(small);
      entry.append(button);
      return entry;
    }));
  }

  #press(event) {
    const item = event.target.closest('[data-item]')?.dataset.item;
    if (item) return address.update({open: Number(item)});
    const act = event.target.closest('[data-act]')?.dataset.act;
    if (act) this.#act(act);
  }

  #key(event) {
    const {tab, view, open} = address.state;
    if (tab !== 'gallery' || view !== 'suspects' || open !== null || event.target.matches('input, select') || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = KEYS[event.key.toLowerCase()];
    if (act && this.#queue.length) this.#act(act);
  }

  #act(act) {
    if (act === 'skip' && this.#at < this.#queue.length) { this.#done.push(null); this.#step(1); }
    else if (act === 'undo') this.#undo();
    else if (!this.#changes || this.#at >= this.#queue.length) return;
    else if (act === 'accept') this.#decide(() => this.#relabel(this.#queue[this.#at].suggested));
    else if (act === 'keep') this.#decide(() => this.#api.post('/decisions', {action: 'keep', id: this.#queue[this.#at].image.id}));
  }

  #relabel(label) { return labelItems(this.#api, [this.#queue[this.#at].image.id], label); }

  /** Make a decision, which the server logs, and go on to the next image. */
  #decide(make) {
    return this.#alone(async () => {
      await make();
      const {decisions: [newest]} = await this.#api.get('/decisions?limit=1');
      this.#done.push(newest.n);
      this.#step(1);
      announce();
    });
  }

  #undo() {
    if (!this.#done.length) return;
    return this.#alone(async () => {
      const n = this.#done.at(-1);
      if (n !== null) await this.#api.send('DELETE', `/decisions/${n}`);
      this.#done.pop();
      this.#step(-1);
      if (n !== null) announce();
    });
  }

  async #alone(task) {
    if (this.#busy) return;
    this.#busy = true;
    try {
      await task();
    } catch (error) {
      this.#work.say(error.message);
    }
    this.#busy = false;
  }

  #step(by) { this.#at += by; this.#draw(); }
}
