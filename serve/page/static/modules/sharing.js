// The link to a search: copied, with pictures of the visitor on the server if the visitor wants that.

import {address, format, ownViews} from './address.js';
import {isOn} from './device.js';
import {part, plural, show} from './dom.js';
import {linkTo, portable} from './link.js';
import * as pictures from './pictures.js';

const OWN_LINK = 'Link copied. It opens this search everywhere, without your picture.';

export class Sharing {
  #root; #api; #hours; #say;

  /**
   * @param {Root} root Has the parts `copy`, `share`, `share-all` and `hours`.
   * @param {import('./api.js').Api} api
   * @param {object} gallery
   * @param {number} gallery.sharing Hours for which the server keeps pictures; 0 if it does not.
   * @param {(text: string, problem?: boolean) => void} say Shows a sentence.
   */
  constructor(root, api, {sharing}, say) {
    this.#root = root;
    this.#api = api;
    this.#hours = sharing;
    this.#say = say;
    part(root, 'copy').addEventListener('click', () => this.#copy());
    part(root, 'share').addEventListener('click', event => { if (event.target.dataset.act) this.#choose(event.target.dataset.act); });
    part(root, 'share').addEventListener('keydown', event => { if (event.key === 'Escape') this.#choose('close'); });
    part(root, 'hours').textContent = plural(sharing, 'hour');
  }

  /** Ask no longer whether to share once the query of the address has no picture of the visitor. */
  follow() { if (!ownViews(address.state).length) this.#offer(false); }

  #copy() {
    const own = ownViews(address.state).length > 0;
    if (own && this.#hours && !isOn()) return this.#offer(true);
    return this.#tried(async () => this.#write(await linkTo(address.state, this.#api), own ? OWN_LINK : 'Link copied.'));
  }

  /** Ask whether pictures of the visitor may be stored on the server, or ask no longer. */
  #offer(shown) {
    show(part(this.#root, 'share'), shown);
    part(this.#root, 'copy').ariaExpanded = String(shown);
    if (shown) part(this.#root, 'share-all').focus();
  }

  #choose(act) {
    if (act === 'share') this.#tried(() => this.#share());
    if (act === 'own') this.#tried(async () => this.#write(await linkTo(address.state, this.#api), OWN_LINK));
    this.#offer(false);
    part(this.#root, 'copy').focus();
  }

  /** Store the visitor's pictures on the server, and copy an address that names them there. */
  async #share() {
    this.#say('Sharing the picture …');
    const state = await portable(address.state, this.#api);
    const [like, unlike] = await Promise.all([state.like, state.unlike].map(views => Promise.all(views.map(view => this.#shared(view)))));
    const link = location.origin + location.pathname + format({...state, like, unlike});
    await this.#write(link, `Link copied. It shows your picture for ${plural(this.#hours, 'hour')}.`);
  }

  async #shared(view) {
    if (!view.picture || !await pictures.find(view.picture)) return view;
    const {picture, ...others} = view;
    return {...others, shared: await pictures.share(picture, this.#api)};
  }

  async #write(link, done) {
    try {
      await navigator.clipboard.writeText(link);
      this.#say(done);
    } catch {
      this.#say(`Copy this address: ${link}`);
    }
  }

  async #tried(act) {
    try { await act(); } catch (error) { this.#say(error.message, true); }
  }
}
