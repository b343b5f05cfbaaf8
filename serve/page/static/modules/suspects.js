// Labels that are probably wrong, as a grid: accept the suggested label, keep the present one, or give another, for one
// image or for many, and undo it.

import {address} from './address.js';
import {announce, labelItems, leftAlone, presentItems, undoDecisions} from './changes.js';
import {breakable, clone, fileName, part, percent, plural, show} from './dom.js';
import {Jobs} from './jobs.js';
import {Work} from './work.js';

const LISTED = 500;  // images, of those that are not likely wrong
const SHOWN = 24;
const BESIDE = 4;  // images of each of the two labels
const KEYS = {a: 'accept', k: 'keep', s: 'skip', x: 'choose', z: 'undo'};
const LOGGED = 1000;  // decisions in an answer

export class Suspects {
  #root; #api; #work; #changes; #cases = []; #shown = SHOWN; #at = 0; #chosen = new Set(); #done = []; #started = false; #asked = false; #finding = false; #busy = false; #acts = 0;

  constructor(root, api, gallery) {
    this.#root = root;
    this.#api = api;
    this.#changes = gallery.changes;
    this.#work = new Work(root, new Jobs(api));
    for (const name of ['deciding', 'keys']) show(part(root, name), this.#changes);
    show(part(root, 'read-only'), !this.#changes);
    part(root, 'find').addEventListener('click', () => this.#find({}));
    part(root, 'more').addEventListener('click', () => this.#find({limit: LISTED}));
    part(root, 'further').addEventListener('click', () => { this.#shown += SHOWN; this.#draw(); });
    part(root, 'case').addEventListener('click', event => this.#press(event));
    part(root, 'other').addEventListener('submit', event => {
      event.preventDefault();
      const label = part(root, 'label').value.trim();
      if (label) this.#relabel([...this.#chosen], () => label);
    });
    document.addEventListener('keydown', event => this.#key(event));
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed && this.#open) this.#look(); });
  }

  get #open() { return address.state.tab === 'gallery' && address.state.view === 'suspects'; }

  /** Show the labels that were found last, by this visitor or another. */
  follow() {
    if (this.#cases.length) return this.#look();
    if (this.#started) return;
    this.#started = true;
    this.#resume();
  }

  async #resume() {
    const found = await this.#work.resume('suspects');
    if (!found || this.#asked) return;
    const now = await presentItems(this.#api, found.suspects.map(({image}) => image.id));
    this.#take({...found, suspects: found.suspects.filter(({image}) => now.get(image.id)?.label === image.label)});
  }

  async #find(request) {
    this.#asked = this.#finding = true;
    this.#work.say('');
    this.#draw();  // nobody decides on a list that is about to be replaced
    const found = await this.#work.run('suspects', request);
    this.#finding = false;
    if (found) this.#take(found); else this.#draw();
  }

  #take(found) {
    this.#cases = found.suspects.map(one => ({...one, card: null, decision: null, words: ''}));
    this.#shown = SHOWN;
    this.#at = 0;
    this.#chosen.clear();
    this.#done = [];
    const expected = percent(found.suspects.at(-1)?.precision ?? 0);
    part(this.#root, 'what').textContent = `The nearest images give ${plural(found.total, 'image')} of ${found.labelled.toLocaleString('en')} another label. ` + (found.suspects.length ? `About ${expected} of the ${found.suspects.length} listed are expected to be wrong; the model confuses the others.` : 'No label stands out from those that the model confuses.');
    show(part(this.#root, 'more'), found.suspects.length < Math.min(found.total, LISTED));
    part(this.#root, 'grid').replaceChildren();
    this.#draw();
    this.#count();
  }

  // ---- what is shown

  #draw() {
    const grid = part(this.#root, 'grid'), some = this.#cases.slice(0, this.#shown);
    for (const one of some) if (!one.card) grid.append(this.#card(one));
    for (const one of some) this.#mark(one);
    const chosen = this.#chosen.size, undoable = this.#done.at(-1)?.length ?? 0;
    show(part(this.#root, 'case'), some.length > 0 && !this.#finding);
    show(part(this.#root, 'further'), this.#cases.length > this.#shown && !this.#finding);
    part(this.#root, 'choose').textContent = chosen ? 'Choose none' : `Choose all ${some.filter(isOpen).length} shown`;
    part(this.#root, 'accept').textContent = chosen ? `Accept ${plural(chosen, 'suggestion')}` : 'Accept the suggestions';
    part(this.#root, 'keep').textContent = chosen ? `Keep ${plural(chosen, 'label')}` : 'Keep the labels';
    for (const name of ['accept', 'keep', 'save']) part(this.#root, name).disabled = !chosen;
    show(part(this.#root, 'undo'), undoable > 0);
    part(this.#root, 'undo').textContent = `Undo${undoable > 1 ? ` ${undoable}` : ''}`;
  }

  #count() {
    const {length} = this.#cases, decided = this.#cases.filter(one => !isOpen(one)).length;
    this.#work.say(!length ? 'No label is likely wrong.' : decided === length ? `All ${length} are done.` : `${plural(length, 'suspected label')}${decided ? `, ${decided} done` : ''}.`);
  }

  #card(one) {
    const {image, suggested, votes, neighbours, own_neighbours: own} = one, card = one.card = clone('suspect');
    card.dataset.item = image.id;
    const picture = part(card, 'image');
    picture.src = image.thumbnail;
    picture.alt = `Open item ${image.id}, ${image.label}`;
    part(card, 'open').title = fileName(image.key);
    part(card, 'present').replaceChildren(...breakable(image.label));
    part(card, 'suggested').replaceChildren(...breakable(suggested));
    part(card, 'votes').textContent = percent(votes);
    part(card, 'votes').title = 'of the votes of its nearest images';
    for (const [name, images] of [['own', own], ['others', neighbours]]) part(card, name).replaceChildren(...images.slice(0, BESIDE).map(beside));
    part(card, 'box').ariaLabel = `Choose item ${image.id}`;
    part(card, 'accept').ariaLabel = `Accept ${suggested} for item ${image.id}`;
    part(card, 'keep').ariaLabel = `Keep ${image.label} for item ${image.id}`;
    part(card, 'undo').ariaLabel = `Undo item ${image.id}`;
    return card;
  }

  #mark(one) {
    const {card} = one, open = isOpen(one);
    card.classList.toggle('decided', !open);
    if (one === this.#cases[this.#at]) card.ariaCurrent = 'true'; else card.removeAttribute('aria-current');
    part(card, 'box').checked = this.#chosen.has(one);
    part(card, 'words').textContent = one.words;
    show(part(card, 'choice'), open && this.#changes);
    show(part(card, 'acts'), open && this.#changes);
    show(part(card, 'undo'), one.decision !== null);
  }

  // ---- what the visitor does

  #press(event) {
    const act = event.target.closest('[data-act]')?.dataset.act, card = event.target.closest('li.suspect');
    const one = card && this.#cases.find(other => other.card === card);
    if (one) this.#at = this.#cases.indexOf(one);
    if (event.target.matches('[data-part=box]')) this.#choose(one);
    else if (act === 'open') address.update({open: Number(event.target.closest('[data-item]').dataset.item)});
    else if (act === 'all') this.#chooseAll();
    else if (act === 'accept-chosen') this.#relabel([...this.#chosen], other => other.suggested);
    else if (act === 'keep-chosen') this.#keep([...this.#chosen]);
    else if (act) this.#act(act, one);
  }

  #key(event) {
    if (this.#busy || !this.#open || address.state.open !== null || event.target.matches('input:not([type=checkbox]), select') || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = KEYS[event.key.toLowerCase()], one = this.#cases[this.#at];
    if (!act || !one || !this.#changes && act !== 'skip') return;
    this.#act(act, one);
    if (act !== 'choose' && act !== 'undo') this.#next();
  }

  #act(act, one) {
    if (act === 'undo') return this.#undo(this.#done.at(-1));
    if (act === 'undo-one') return this.#undo([one]);
    if (act === 'skip' || !isOpen(one)) return;
    if (act === 'choose') this.#choose(one);
    else if (act === 'accept') this.#relabel([one], other => other.suggested);
    else if (act === 'keep') this.#keep([one]);
  }

  /** Go on to the next image that is not decided. */
  #next() {
    const next = this.#cases.findIndex((one, at) => at > this.#at && at < this.#shown && isOpen(one));
    if (next === -1) return;
    this.#at = next;
    this.#draw();
    this.#cases[next].card.scrollIntoView({block: 'nearest'});
  }

  #choose(one) {
    if (!this.#chosen.delete(one)) this.#chosen.add(one);
    this.#draw();
  }

  #chooseAll() {
    this.#chosen = new Set(this.#chosen.size ? [] : this.#cases.slice(0, this.#shown).filter(isOpen));
    this.#draw();
  }

  #relabel(cases, label) {
    return this.#alone(cases, async progress => {
      const byId = new Map(cases.map(one => [one.image.id, one]));
      const found = await labelItems(this.#api, cases.map(one => ({id: one.image.id, old: one.image.label, label: label(one)})), progress);
      this.#settle(found.labelled.map(({id, decision}) => [byId.get(id), decision]), one => `is ${label(one)} now`);
      for (const item of found.changed) leave(byId.get(item.id), item);
      for (const id of found.missing) leave(byId.get(id), null);
      if (found.labelled.length) announce();
      return `${plural(found.labelled.length, 'label')} changed.${leftAlone(found)}`;
    });
  }

  #keep(cases) {
    return this.#alone(cases, async progress => {
      const kept = [], changed = [], missing = [];
      for (const one of cases) {
        const {image: {id, label}} = one;
        const {body, etag} = await this.#api.get(`/items/${id}`, {type: 'tagged'}).catch(absent);
        const is = body?.label === label && await this.#api.post('/decisions', {action: 'keep', id, etag}).then(() => true, absent);
        if (is === true) kept.push(one); else (body ? changed : missing).push(leave(one, body));
        progress(1);
      }
      const {decisions} = await this.#api.get(`/decisions?limit=${LOGGED}`);
      this.#settle(kept.map(one => [one, decisions.find(({action, key, undone}) => action === 'keep' && key === one.image.key && !undone)?.n ?? null]), () => 'stays as it is');
      return `${plural(kept.length, 'label')} kept.${leftAlone({changed, missing})}`;
    });
  }

  #settle(decided, words) {
    for (const [one, decision] of decided) Object.assign(one, {decision, words: words(one)});
    if (decided.length) this.#done.push(decided.map(([one]) => one));
  }

  #undo(undone = []) {
    return this.#alone(undone, async progress => {
      const others = await undoDecisions(this.#api, undone.map(one => one.decision), progress);
      for (const one of undone) Object.assign(one, {words: others.get(one.decision) ?? '', decision: null});
      this.#done = this.#done.map(some => some.filter(one => one.decision !== null)).filter(some => some.length);
      this.#at = this.#cases.indexOf(undone[0]);
      announce();
      return `${plural(undone.length, 'decision')} undone.`;
    });
  }

  /** Do one thing at a time, and say how far it is, and in the end what was done or why it failed. */
  async #alone(cases, task) {
    if (this.#busy || !cases.length) return;
    this.#busy = true;
    this.#acts += 1;
    let done = 0, words;
    try {
      words = await task(count => { done += count; if (cases.length > 1) this.#work.say(`${done} of ${cases.length}`); });
      for (const one of cases) this.#chosen.delete(one);
    } catch (error) {
      words = error.message;
    }
    this.#busy = false;
    this.#acts += 1;  // a look that began meanwhile has read the same
    this.#draw();
    this.#count();
    this.#work.add(words);
  }

  /** Mark those that somebody else has changed in the meantime. */
  async #look() {
    const acts = this.#acts, open = this.#cases.filter(isOpen), present = await presentItems(this.#api, open.map(one => one.image.id)).catch(() => null);
    if (!present || this.#busy) return;
    if (acts !== this.#acts) return this.#look();  // what was read may be the visitor's own change
    const others = open.filter(one => present.get(one.image.id)?.label !== one.image.label);
    if (!others.length) return;
    for (const one of others) this.#chosen.delete(leave(one, present.get(one.image.id) ?? null));
    this.#draw();
    this.#count();
  }
}

const isOpen = one => !one.words;

/** Leave an image to somebody else, who has changed or removed it (null). */
function leave(one, item) {
  return Object.assign(one, {words: item ? `somebody else has labelled it ${item.label ?? 'with nothing'}` : 'somebody else has removed it'});
}

/** Pass over that an image is gone, or is another one than was seen. */
function absent(error) {
  if (!['no-such-image', 'changed'].includes(error.code)) throw error;
  return {};
}

function beside({image}) {
  const entry = document.createElement('li'), button = document.createElement('button'), small = new Image();
  small.src = image.thumbnail;
  small.alt = `Open item ${image.id}, ${image.label}`;
  small.loading = 'lazy';
  small.addEventListener('error', () => entry.remove());  // it was removed after they were found
  button.type = 'button';
  Object.assign(button.dataset, {act: 'open', item: image.id});
  button.append(small);
  entry.append(button);
  return entry;
}
