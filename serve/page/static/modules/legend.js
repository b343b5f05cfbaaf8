// The legend of the map: classes with their colours and numbers, as a list to search and to choose from.

import {clone, part} from './dom.js';

const SHOWN = 300;  // entries; a longer list is not read, but searched

export class Legend {
  #find; #list; #entries = []; #chosen = new Set();

  /**
   * @param {Element} root Has the parts `find` (a search field) and `legend` (a list).
   * @param {(chosen: string[]) => void} change Called with the names that are chosen.
   */
  constructor(root, change) {
    this.#find = part(root, 'find');
    this.#list = part(root, 'legend');
    this.#find.addEventListener('input', () => this.#draw());
    this.#list.addEventListener('change', ({target}) => {
      this.#chosen[target.checked ? 'add' : 'delete'](target.value);
      change([...this.#chosen]);
    });
  }

  /**
   * Show entries.
   * @param {{name: string, title: string, colour: string, count: number}[]} entries In order.
   * @param {string[]} chosen The names that are chosen.
   */
  draw(entries, chosen) {
    this.#entries = entries;
    this.#chosen = new Set(chosen);
    this.#draw();
  }

  #draw() {
    const words = this.#find.value.trim().toLowerCase();
    const found = this.#entries.filter(entry => entry.title.toLowerCase().includes(words));
    const [first, rest] = [found.filter(entry => this.#chosen.has(entry.name)), found.filter(entry => !this.#chosen.has(entry.name))];
    const shown = [...first, ...rest].slice(0, SHOWN);
    const more = found.length - shown.length;
    this.#list.replaceChildren(...shown.map(entry => this.#row(entry)),
      ...(more || !found.length ? [note(more ? `and ${more.toLocaleString('en')} more` : 'nothing found')] : []));
  }

  #row({name, title, colour, count}) {
    const row = clone('entry');
    const box = part(row, 'box');
    box.value = name;
    box.checked = this.#chosen.has(name);
    part(row, 'colour').style.background = colour;
    part(row, 'text').textContent = title;
    part(row, 'text').title = title;
    part(row, 'count').textContent = count.toLocaleString('en');
    return row;
  }
}

function note(text) {
  const row = document.createElement('li');
  row.className = 'quiet';
  row.textContent = text;
  return row;
}
