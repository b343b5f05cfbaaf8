// The classes of an evaluation, and what the queries of one of them found.

import {address} from './address.js';
import {breakable, clone, part, percent, show} from './dom.js';

const PAGE = 20;  // classes
const PAUSE = 200;  // milliseconds after the last key

export class Classes {
  #root; #api; #report = ''; #opened = ''; #rows = []; #total = 0; #asked = 0; #timer;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    part(root, 'form').addEventListener('submit', event => event.preventDefault());
    part(root, 'find').addEventListener('input', () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#list(), PAUSE);
    });
    part(root, 'more').addEventListener('click', () => this.#list(this.#rows.length));
    part(root, 'rows').addEventListener('click', event => {
      const button = event.target.closest('[data-class]');
      if (button) address.update({class: button.dataset.class});
    });
    part(root, 'close').addEventListener('click', () => address.update({class: ''}));
    part(root, 'queries').addEventListener('click', event => {
      const item = event.target.closest('[data-item]')?.dataset.item;
      if (item) address.update({open: Number(item)});
    });
  }

  /** Show the classes of a report that is shown alone, and the class of the address. */
  async follow(report, against) {
    show(this.#root, Boolean(report) && !against);
    if (!report || against) return;
    if (report !== this.#report) {
      this.#report = report;
      this.#opened = '';
      await this.#list();
    }
    if (address.state.class !== this.#opened) await this.#open(address.state.class);
  }

  async #list(offset = 0) {
    const asked = ++this.#asked, find = part(this.#root, 'find').value.trim();
    try {
      const {classes, total} = await this.#get('classes', {find, limit: PAGE, offset});
      if (asked !== this.#asked) return;  // another list was asked for meanwhile
      this.#rows = [...(offset ? this.#rows : []), ...classes];
      this.#total = total;
      this.#draw(find);
    } catch (error) {
      this.#say(error.message);
    }
  }

  #draw(find) {
    const shown = this.#rows.length, all = this.#total.toLocaleString('en');
    part(this.#root, 'rows').replaceChildren(...this.#rows.map(row));
    show(part(this.#root, 'table'), shown > 0);
    show(part(this.#root, 'more'), shown < this.#total);
    if (!shown) this.#say(find ? 'No class has this in its name.' : 'No query has another image of its class to find.');
    else this.#say(shown < this.#total ? `The worst ${shown} of ${all} classes` : `${all} ${shown === 1 ? 'class' : 'classes'}, the worst first`);
  }

  async #open(name) {
    this.#opened = name;
    show(part(this.#root, 'opened'), Boolean(name));
    if (!name) return;
    part(this.#root, 'title').replaceChildren(...breakable(name));
    part(this.#root, 'numbers').textContent = '';
    part(this.#root, 'queries').replaceChildren();
    try {
      const {queries, total} = await this.#get('queries', {label: name});
      if (name !== this.#opened) return;
      const shown = queries.length < total ? `${queries.length} of ${total.toLocaleString('en')} queries` : 'Its queries';
      part(this.#root, 'queries').replaceChildren(...queries.map(answer));
      part(this.#root, 'numbers').textContent = `${shown}, each with the image that it finds first; the wrong ones come first.`;
    } catch (error) {
      part(this.#root, 'numbers').textContent = error.message;
    }
    part(this.#root, 'opened').scrollIntoView({block: 'nearest'});
  }

  #get(what, parameters) {
    return this.#api.get(`/evaluation/${what}?${new URLSearchParams({report: this.#report, ...parameters})}`);
  }

  #say(text) { part(this.#root, 'status').textContent = text; }
}

function row({name, queries, recall_at_1, interval, mistaken_for}) {
  const entry = clone('class');
  for (const [field, value] of [['name', name], ['taken', mistaken_for]]) {
    const button = part(entry, field);
    if (value === null) { button.remove(); continue; }
    button.replaceChildren(...breakable(value));
    button.dataset.class = value;
  }
  part(entry, 'queries').textContent = queries.toLocaleString('en');
  part(entry, 'bar').value = recall_at_1;
  part(entry, 'recall').textContent = percent(recall_at_1, 1);
  part(entry, 'interval').textContent = `${percent(interval[0], 1)} to ${percent(interval[1], 1)}`;
  return entry;
}

function answer({query, answer: found, score, right, first_right}) {
  const entry = clone('answer');
  entry.classList.toggle('right', right);
  for (const [field, image] of [['query', query], ['found', found]]) {
    const button = part(entry, field), picture = button.querySelector('img');
    picture.alt = `${image.file}, ${image.label ?? 'no label'}`;
    button.disabled = image.id === null;
    if (image.id === null) continue;
    picture.src = image.thumbnail;
    button.dataset.item = image.id;
  }
  const place = first_right ? `its own class is at rank ${first_right}` : 'its own class is far behind';
  part(entry, 'words').textContent = right ? `right · ${score.toFixed(3)}` : `${found.label ?? 'no label'} · ${score.toFixed(3)} · ${place}`;
  return entry;
}
