// What visitors have searched for and not found, by the log of their searches.

import {address} from './address.js';
import {breakable, clone, fileName, part, percent, plural, show} from './dom.js';
import {GALLERY} from './options.js';
import {Work} from './work.js';

const LISTED = 24;  // images of each list
const NEAREST = 4;

export class Coverage {
  #root; #work; #begun = false;

  constructor(root, jobs) {
    this.#root = root;
    this.#work = new Work(root, jobs);
    part(root, 'start').addEventListener('click', () => this.#look());
    root.addEventListener('click', event => {
      const item = event.target.closest('[data-item]')?.dataset.item;
      if (item) address.update({open: Number(item)});
    });
  }

  /** Show what was found last, where searches are recorded, to those who may change the gallery. */
  async follow() {
    const offered = Boolean(GALLERY?.recorded && GALLERY.changes);
    show(this.#root, offered);
    if (!offered || this.#begun) return;
    this.#begun = true;
    const before = await this.#work.resume('coverage');
    if (before) this.#draw(before);
  }

  async #look() {
    show(part(this.#root, 'start'), false);
    part(this.#root, 'status').focus();  // the button that had it is hidden now
    const found = await this.#work.run('coverage', {limit: LISTED});
    show(part(this.#root, 'start'), true);
    if (found) this.#draw(found);
  }

  #draw(found) {
    const certain = found.groups.filter(group => group.certain), count = certain.reduce((sum, group) => sum + group.searches, 0);
    this.#work.say(`${searches(found.searches)}. ` + (certain.length
      ? `Certain to be missing: ${plural(certain.length, 'group')} of ${searches(count)} together.` : 'Nothing is certain to be missing.'));
    part(this.#root, 'facts').replaceChildren(...facts(found).map(text => line(text)));
    part(this.#root, 'groups').replaceChildren(...found.groups.map(group => list(
      `${searches(group.searches)} ${group.certain ? '' : '(perhaps by chance) '}from ${group.first.slice(0, 10)} to ${group.last.slice(0, 10)}; nearest to them:`,
      group.nearest.slice(0, NEAREST).map(({image, score}) => [image, score.toFixed(2)]))),
    ...found.unseen.length ? [list('Nobody finds these:', found.unseen.map(image => [image, '']))] : [],
    ...found.wanted.length ? [list('Labels of these would help most:', found.wanted.map(one => [one.image, searches(one.searches)]))] : []);
  }
}

const searches = count => `${count.toLocaleString('en')} search${count === 1 ? '' : 'es'}`;

/** Return what is known of the searches, in sentences. */
function facts({pictures, lost, lost_interval: [low, high], lost_by_chance, unopened, drift, change, images, never, never_by_chance, notes}) {
  return [
    ...pictures ? [`${lost.toLocaleString('en')} of ${searches(pictures)} by a picture found nothing: ${percent(lost / pictures, 1)} (${percent(low, 1)} to ${percent(high, 1)}). `
      + `Of the gallery's own images, ${percent(lost_by_chance, 1)} would find nothing.`] : [],
    ...unopened === null ? [] : [`Of ${searches(unopened)}, nothing was opened.`],
    ...difference('Searches and images of the gallery', drift),
    ...difference('Newer and older searches', change),
    `${never.toLocaleString('en')} of ${plural(images, 'image')} are not found by any search; ${Math.round(never_by_chance).toLocaleString('en')} by chance.`,
    ...notes.map(note => `${note[0].toUpperCase()}${note.slice(1)}.`),
  ];
}

function difference(what, found) {
  if (!found) return [];
  const {auc, low, high, certain} = found;
  return [`${what} ${certain ? 'differ' : 'do not certainly differ'}: ${auc.toFixed(2)} (${low.toFixed(2)} to ${high.toFixed(2)}; 0.5 is alike, 1 never alike).`];
}

function line(text) {
  const row = document.createElement('li');
  row.textContent = text;
  return row;
}

function list(words, images) {
  const row = clone('covered');
  part(row, 'words').textContent = words;
  part(row, 'images').replaceChildren(...images.map(([image, fact]) => entry(image, fact)));
  return row;
}

function entry(image, fact) {
  const found = clone('covering'), name = image.label ?? fileName(image.key);
  found.dataset.item = image.id;
  part(found, 'image').src = image.thumbnail;
  part(found, 'image').alt = `item ${image.id} · ${image.label ?? 'no label'}`;
  part(found, 'label').replaceChildren(...breakable(name));
  part(found, 'fact').textContent = fact;
  return found;
}
