// The search tab until the first search: it takes pictures, and shows what a visitor can begin with. All else of it is loaded meanwhile.

import {address, asks} from './address.js';
import {connection} from './connection.js';
import {part, plural, show, statusLine} from './dom.js';
import {takePictures} from './intake.js';
import {GALLERY} from './options.js';
import {Welcome} from './welcome.js';

/**
 * Start the tab. The promise is kept when all of it works.
 * @param {HTMLElement} element Contains `search.html`.
 * @param {import('./api.js').Api} api
 */
export async function mountSearch(element, api) {
  const root = element.querySelector('.search');
  const say = statusLine(root);
  try {
    await new Start(root, api, GALLERY ?? await api.get('/gallery'), say).tab;
  } catch (error) {
    say(error instanceof TypeError ? 'A part of the page could not be loaded.' : error.message, true, true);
    part(root, 'again').addEventListener('click', () => location.reload());
    connection.addEventListener('back', () => location.reload());
    connection.check();
  }
}

export class Start {
  #api; #say; #welcome;

  /** @type {Promise<import('./search.js').SearchTab>} All else of the tab. */
  tab;

  constructor(root, api, gallery, say) {
    this.gallery = gallery;
    this.#api = api;
    this.#say = say;
    this.#welcome = new Welcome(part(root, 'examples'), api, item => this.#search({item}));
    const searching = () => !address.state.tab && !document.querySelector('dialog[open]');
    if (gallery.embeds) takePictures(root, files => this.tab.then(tab => tab.take(files), () => {}), searching);
    part(root, 'texts').addEventListener('change', event => address.update({[event.target.name]: event.target.value.trim()}));
    part(root, 'texts').addEventListener('submit', event => {
      event.preventDefault();
      address.update({text: part(root, 'text').value.trim(), without: part(root, 'without').value.trim()});
    });
    part(root, 'link').addEventListener('submit', event => {
      event.preventDefault();
      const field = event.target.elements.url;
      if (field.value.trim()) this.#search({url: field.value.trim()});
      field.value = '';
    });
    for (const [name, shown] of [['ask', gallery.embeds], ['texts', gallery.texts], ['link', gallery.urls]]) show(part(root, name), shown);
    if (!asks(address.state)) {
      this.#say(this.hint());
      this.begin();
    }
    this.tab = this.#load(root);
  }

  #search(image) { this.tab.then(tab => tab.searchWith(image), () => {}); }

  async #load(root) {
    document.head.append(/** @type {HTMLTemplateElement} */ (document.getElementById('later')).content);  // what that needs, all at once
    const {SearchTab} = await import('./search.js');
    const tab = new SearchTab(root, this.#api, this, this.#say);
    await tab.follow();
    return tab;
  }

  /** Show what a visitor can begin with. */
  async begin() {
    try {
      const drawn = await this.#welcome.draw(this.gallery.images);
      if (drawn && !asks(address.state)) this.#say(this.hint());
    } catch (error) {
      if (!asks(address.state)) this.#say(error.message, true, !connection.away);
    }
  }

  /** Return what to say before a search. */
  hint() {
    const {images, indexing, embeds, objects} = this.gallery;
    if (!images && indexing) return 'The first images are being indexed …';
    if (!images) return 'This gallery is empty: `lookalike index add GALLERY IMAGES` fills it.';
    if (!embeds) return 'Choose an image of the gallery to find similar ones: it has no model to embed other images.';
    return `${objects ? `${images.toLocaleString('en')} pictures and parts of them` : plural(images, 'image')} in the gallery.`;
  }
}
