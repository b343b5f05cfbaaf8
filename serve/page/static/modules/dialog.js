// The dialog that shows one image of the gallery; the address names it.

import {address, ownViews} from './address.js';
import {gridIn} from './cards.js';
import {announce} from './changes.js';
import {stays} from './device.js';
import {breakable, fileName, part, show} from './dom.js';
import {Heatmap} from './heatmap.js';
import {linkTo} from './link.js';
import {GALLERY} from './options.js';
import {showParts} from './parts.js';
import {likeness} from './results.js';
import {showViews} from './views.js';

const CONFIRM = 'Really remove it?';
const GONE = 'Somebody else has removed this image.';
const PAUSE = 500;  // milliseconds in which a double click is not a confirmation

/** Start the dialog. */
export async function mount(box, api) {
  new Dialog(box, api, GALLERY ?? await api.get('/gallery'));
}

class Dialog {
  #box; #api; #heatmap; #item = null; #etag = null; #asked = 0; #failed = false;

  constructor(box, api, gallery) {
    this.#box = box;
    this.#api = api;
    this.#heatmap = gallery.embeds ? new Heatmap(box, api) : null;
    show(part(box, 'edit'), gallery.changes);
    show(part(box, 'remove'), gallery.changes);
    box.addEventListener('close', () => {
      if (document.activeElement === document.body || box.contains(document.activeElement)) this.#card()?.focus();  // its card was drawn again meanwhile
      if (address.state.open !== null) address.close();
    });
    box.addEventListener('click', event => this.#press(event));
    box.addEventListener('keydown', event => this.#key(event));
    part(box, 'edit').addEventListener('submit', event => { event.preventDefault(); this.#describe(); });
    part(box, 'pane').addEventListener('pointermove', event => this.#pan(event));
    document.addEventListener('lookalike:open', event => address.update({open: event.detail.item}));
    document.addEventListener('lookalike:results', () => { if (box.open) this.#place(); });
    document.addEventListener('lookalike:live', ({detail}) => { if (detail.changed && box.open) this.#look(); });
    address.onChange(before => { if (before.open !== address.state.open || this.#failed) this.#follow(); });
    this.#follow();
  }

  async #follow() {
    const {open} = address.state;
    this.#failed = false;
    if (open === null) return this.#box.close();
    this.#say('');
    try {
      const found = await this.#read(open);
      if (open === address.state.open) this.#draw(found);
    } catch (error) {
      this.#failed = true;
      this.#draw({body: {id: open, key: `item ${open}`, label: null, metadata: {}, thumbnail: ''}, etag: null});
      this.#say(error.message);
    }
  }

  #read(id) { return this.#api.get(`/items/${id}`, {type: 'tagged'}); }

  /** Look whether somebody else has changed the image; if so, show it as it is, with the label that is being written. */
  async #look() {
    const before = this.#item, written = part(this.#box, 'label').value;
    let found;
    try {
      found = await this.#read(before.id);
    } catch (error) {
      if (this.#item !== before) return;
      return this.#say(error.code === 'no-such-image' ? GONE : error.message);
    }
    if (this.#item !== before || found.etag === this.#etag) return;
    this.#draw(found);
    if (written !== (before.label ?? '')) part(this.#box, 'label').value = written;
    this.#say(`Somebody else has changed this image: ${words(found.body)}.`);
  }

  #draw({body: item, etag}) {
    const box = this.#box;
    this.#item = item;
    this.#etag = etag;
    part(box, 'title').replaceChildren(...breakable(item.label ?? fileName(item.key)));
    const image = part(box, 'image');
    image.src = item.thumbnail;
    image.alt = `item ${item.id}, ${item.label ?? 'no label'}`;
    showParts(part(box, 'context'), this.#api, item);
    part(box, 'caption').textContent = fileName(item.key);
    part(box, 'original').href = `${this.#api.root}/items/${item.id}/picture`;
    part(box, 'label').value = item.label ?? '';
    const facts = {item: item.id, key: item.key, ...item.metadata};
    part(box, 'facts').replaceChildren(...Object.entries(facts).map(([name, value]) => fact(name, value)));
    this.#zoom(false);
    this.#place(true);
    showViews(part(box, 'views'), this.#api, item);
    if (box.open) return;
    box.showModal();
    part(box, 'close').focus();
  }

  /** Show the place of the image among the hits, which may come after the dialog, and what can be done with a query. */
  #place(renewed = false) {
    const box = this.#box, {like} = address.state, hit = this.#hit();
    const place = hit ? [`${hit.place}. result`, likeness(hit.item)].filter(Boolean).join(' · ') : '';
    if (!renewed && place === part(box, 'rank').textContent) return;
    part(box, 'rank').textContent = place;
    this.#heatmap?.reset(hit ? like[0] : null);
    show(part(box, 'compare'), Boolean(this.#heatmap && hit && like.length && !stays(like[0])));
    for (const name of ['like', 'unlike']) show(part(box, name), like.length > 0);
  }

  /** Return the hit that the image is, with its place, if hits are shown behind the dialog. */
  #hit() {
    const grid = gridIn(shownPanel()), place = grid?.placeOf(this.#item.id), item = place && grid.items[place - 1];
    return item?.score === undefined ? null : {place, item};
  }

  /** @returns {?HTMLElement} What opens the image in the list behind the dialog. */
  #card() { return this.#item && shownPanel()?.querySelector(`[data-item="${this.#item.id}"] [data-part=open]`); }

  /** Return the ids of the images that are listed behind the dialog. */
  #listed() {
    const panel = shownPanel(), cards = /** @type {HTMLElement[]} */ ([...panel?.querySelectorAll('[data-item]') ?? []]);
    return gridIn(panel)?.items.map(({id}) => id) ?? cards.map(card => Number(card.dataset.item));
  }

  #press(event) {
    const act = event.target.closest('[data-act]')?.dataset.act;
    const item = this.#item?.id;
    if (event.target === this.#box || act === 'close') this.#box.close();
    else if (act === 'previous') this.#step(-1);
    else if (act === 'next') this.#step(1);
    else if (act === 'zoom') this.#zoom(part(this.#box, 'zoom').ariaPressed !== 'true');
    else if (act === 'compare') this.#compare();
    else if (act === 'copy') this.#copy();
    else if (act === 'remove') this.#remove(event.target);
    else if (act) document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item, side: act === 'unlike' ? 'unlike' : 'like', alone: act === 'search'}}));
    else if (event.target === part(this.#box, 'image')) this.#zoom(part(this.#box, 'zoom').ariaPressed !== 'true');
  }

  #key(event) {
    if (event.target.matches('input')) return;
    if (event.key === 'ArrowLeft') this.#step(-1);
    if (event.key === 'ArrowRight') this.#step(1);
  }

  #step(by) {
    const ids = this.#listed(), at = ids.indexOf(this.#item.id), next = ids[at + by];
    if (at >= 0 && next !== undefined) address.update({open: next}, {replace: true});
  }

  #zoom(large) {
    const box = this.#box, image = part(box, 'image');
    part(box, 'zoom').ariaPressed = String(large);
    part(box, 'pane').classList.toggle('zoomed', large);
    if (large) image.src = part(box, 'original').href;
    part(box, 'layers').style.transformOrigin = '';
  }

  #pan(event) {
    if (!part(this.#box, 'pane').classList.contains('zoomed')) return;
    const frame = part(this.#box, 'pane').getBoundingClientRect();
    const [x, y] = [(event.clientX - frame.left) / frame.width, (event.clientY - frame.top) / frame.height];
    part(this.#box, 'layers').style.transformOrigin = `${100 * x}% ${100 * y}%`;
  }

  async #compare() {
    const button = part(this.#box, 'compare');
    if (button.ariaPressed === 'true') return this.#heatmap.reset(address.state.like[0]);
    button.ariaBusy = 'true';
    try {
      await this.#heatmap.draw(address.state.like[0], this.#item.id);
    } catch (error) {
      this.#say(error.message);
    }
    button.ariaBusy = null;
  }

  async #copy() {
    const link = await linkTo(address.state, this.#api).catch(() => location.href);
    try {
      await navigator.clipboard.writeText(link);
      this.#say(ownViews(address.state).length ? 'Link copied. Your picture is not in it.' : 'Link copied.');
    } catch {
      this.#say(`Copy this address: ${link}`);
    }
  }

  async #describe() {
    try {
      const label = part(this.#box, 'label').value.trim() || null;
      this.#draw(await this.#api.send('PATCH', `/items/${this.#item.id}`, {label}, {match: this.#etag, type: 'tagged'}));
      this.#say('Saved.');
      announce();
    } catch (error) {
      await this.#refused(error, 'Nothing was saved. Save again to replace it');
    }
  }

  async #remove(button) {
    if (button.textContent !== CONFIRM) {
      const before = button.textContent;
      this.#asked = performance.now();
      button.textContent = CONFIRM;
      button.addEventListener('blur', () => { button.textContent = before; }, {once: true});
      return button.focus();
    }
    if (performance.now() - this.#asked < PAUSE) return;
    try {
      await this.#api.send('DELETE', `/items/${this.#item.id}`, undefined, {match: this.#etag});
      this.#box.close();
      announce([this.#item.id]);
    } catch (error) {
      await this.#refused(error, 'It was not removed. Remove it again if you still want to');
    }
  }

  /** Say why a change was refused; if somebody else was first, show the image as it is now. */
  async #refused(error, then) {
    if (error.code === 'no-such-image') return this.#say(GONE);  // as the event that tells of it says, whichever comes last
    if (error.code !== 'changed') return this.#say(error.message);
    await this.#look();
    this.#say(`Somebody else has changed this image: ${words(this.#item)}. ${then}.`);
  }

  #say(text) { part(this.#box, 'message').textContent = text; }
}

/** @returns {?HTMLElement} The panel of the open tab. */
const shownPanel = () => [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll('[role=tabpanel]'))].find(one => one.getClientRects().length) ?? null;

const words = item => item.label === null ? 'it has no label now' : `its label is ${item.label} now`;

function fact(name, value) {
  const row = document.createElement('div');
  const term = document.createElement('dt'), text = document.createElement('dd');
  term.textContent = name;
  text.replaceChildren(...breakable(String(value ?? '')));
  row.append(term, text);
  return row;
}
