// The query: its pictures in small, one of them in large with its region, and its texts.

import {address} from './address.js';
import {stays} from './device.js';
import {clone, part, show} from './dom.js';
import {Objects} from './objects.js';
import * as pictures from './pictures.js';
import {Region} from './region.js';

const MOST = 16;  // images in a query
const DRAG = 'Drag over the picture to search with a part of it.';
const STAYS = 'The picture does not leave your device. ';
const ABSENT = 'The picture is not in this link, only what the model sees in it.';

export class Query {
  #root; #api; #region; #objects; #shown = ['like', 0]; #drawing = 0;

  /**
   * @param {Root} root Has the parts `frame`, `large`, `boxes`, `whole`, `find`, `views`, `text`, `without` and `clear`.
   * @param {import('./api.js').Api} api
   * @param {Gallery} gallery Whether it has a model, for regions and pictures from outside.
   */
  constructor(root, api, {embeds}) {
    this.#root = root;
    this.#api = api;
    this.#region = embeds ? new Region(part(root, 'frame'), region => this.#crop(region)) : null;
    this.#objects = embeds ? new Objects(root, api, region => this.#crop(region)) : null;
    if (!embeds) root.querySelector('.region').remove();
    part(root, 'whole').addEventListener('click', () => this.#crop(null));
    part(root, 'views').addEventListener('click', event => this.#press(event));
    part(root, 'clear').addEventListener('click', () => address.update({like: [], unlike: [], text: '', without: '', open: null}));
  }

  /** Draw the query of the address. */
  async draw() {
    const {like, unlike} = address.state;
    const drawing = ++this.#drawing;
    if (!address.state[this.#shown[0]][this.#shown[1]]) this.#shown = [like.length ? 'like' : 'unlike', 0];
    const views = /** @type {['like' | 'unlike', number, import('./address.js').View][]} */ ([...like.map((view, index) => ['like', index, view]), ...unlike.map((view, index) => ['unlike', index, view])]);
    const sources = await Promise.all(views.map(([, , view]) => this.#source(view)));
    if (drawing !== this.#drawing) return;  // the query has changed again
    const [kind, number] = this.#shown, shown = address.state[kind][number];
    show(part(this.#root, 'frame'), Boolean(shown));
    show(part(this.#root, 'help'), Boolean(shown));
    show(part(this.#root, 'whole'), Boolean(shown?.region));
    if (!shown) this.#objects?.follow(null);
    if (shown) {
      const at = views.findIndex(view => view[0] === kind && view[1] === number);
      const large = part(this.#root, 'large');
      large.src = sources[at];
      large.alt = views.length === 1 && kind === 'like' ? 'The query image' : upper(nameOf(kind, at));
      part(this.#root, 'frame').classList.toggle('unlike', kind === 'unlike');
      const missing = sources[at] === MISSING;
      part(this.#root, 'frame').classList.toggle('missing', missing);
      if (missing) large.alt += ', which is not in this link';
      part(this.#root, 'help').textContent = missing ? ABSENT : (stays(shown) ? STAYS : '') + DRAG;
      show(part(this.#root, 'whole'), Boolean(shown.region) && !missing);
      this.#region?.draw(shown.region);
      this.#objects?.follow(missing || stays(shown) ? null : shown);
    }
    part(this.#root, 'views').replaceChildren(...(views.length < 2 ? [] : views.map((view, index) => this.#icon(view, index, sources[index]))));
  }

  /** Add views to a side of the query: `like` or `unlike`. Returns a sentence if there are too many. */
  add(side, views, {alone = false} = {}) {
    const {like, unlike} = address.state;
    const sides = alone ? {like: [], unlike: []} : {like, unlike};
    sides[side] = [...sides[side], ...views];
    if (sides.like.length + sides.unlike.length > MOST) return `A query has at most ${MOST} images. Remove some first.`;
    if (side === 'like' || !sides.like.length) this.#shown = [side, sides[side].length - 1];
    address.update({...sides, ...(alone && {text: '', without: ''}), open: null, tab: ''});
    return '';
  }

  #crop(region) {
    if (part(this.#root, 'frame').classList.contains('missing')) return;
    const [side, number] = this.#shown;
    const views = address.state[side].map((view, index) => index === number ? cropped(view, region) : view);
    address.update({[side]: views});
  }

  #press(event) {
    const button = event.target.closest('button');
    if (!button) return;
    const {side, number} = button.closest('li').dataset;
    if (button.dataset.act === 'remove') {
      address.update({[side]: address.state[side].filter((_, index) => index !== Number(number))});
    } else {
      this.#shown = [side, Number(number)];
      this.draw();
    }
  }

  #icon([side, number, view], index, source) {
    const icon = clone('view');
    Object.assign(icon.dataset, {side, number});
    icon.classList.toggle('unlike', side === 'unlike');
    const name = nameOf(side, index);
    const image = part(icon, 'image');
    image.src = source;
    image.alt = `Show ${name}`;
    if (view.region) image.classList.add('part');
    part(icon, 'remove').ariaLabel = `Remove ${name}`;
    part(icon, 'show').ariaCurrent = String(side === this.#shown[0] && number === this.#shown[1]);
    return icon;
  }

  async #source(view) {
    if (view.item !== undefined) return `${this.#api.root}/items/${view.item}/thumbnail`;
    return (await pictures.ofView(view, this.#api).catch(() => null))?.url ?? MISSING;
  }
}

// Another region has another vector than the link.
const cropped = ({vector: _, ...view}, region) => ({...view, region});
const nameOf = (side, index) => side === 'like' ? `query image ${index + 1}` : `image ${index + 1}, to move away from`;
const upper = text => text[0].toUpperCase() + text.slice(1);

// A sketch of a picture, in place of one that is not there.
const MISSING = 'data:image/svg+xml,' + encodeURIComponent(
  '<svg xmlns="http://www.w3.org/2000/svg" width="160" height="120" viewBox="0 0 16 12"><rect width="16" height="12" fill="#64748b"/>'
  + '<g fill="none" stroke="#fff" stroke-width=".5" stroke-linejoin="round"><rect x="4" y="3" width="8" height="6" rx=".6"/><circle cx="6.3" cy="5" r=".7"/><path d="M4.5 8.5 7.5 6.5 9 7.5 10.2 6.5 11.8 8"/></g></svg>');
