// The gallery tab: its views, of which the address names one.

import {address} from './address.js';
import {About} from './about.js';
import {Adding} from './adding.js';
import {DecisionList} from './decisions.js';
import {part, show} from './dom.js';
import {Duplicates} from './duplicates.js';
import {Pictures} from './listing.js';
import {Suspects} from './suspects.js';

const VIEWS = {'': Pictures, duplicates: Duplicates, suspects: Suspects, decisions: DecisionList, add: Adding, about: About};

/** Start the tab. */
export function mount(root, api) {
  const tab = new Collection(root, api);
  address.onChange(() => tab.follow());
  tab.follow();
}

class Collection {
  #root; #api; #gallery; #views = new Map();

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    part(root, 'views').addEventListener('click', event => {
      const button = event.target.closest('[data-view]');
      if (button) address.update({view: button.dataset.view});
    });
  }

  async follow() {
    const {tab, view} = address.state;
    if (tab !== 'gallery') return;
    for (const button of part(this.#root, 'views').querySelectorAll('[data-view]')) {
      button.ariaPressed = String(button.dataset.view === view);
    }
    for (const name of Object.keys(VIEWS)) if (name !== view) show(part(this.#root, `view-${name}`), false);
    try {
      this.#gallery ??= this.#api.get('/gallery');
      const gallery = await this.#gallery;
      part(this.#root, 'problem').textContent = '';
      show(part(this.#root, 'adds'), gallery.changes && gallery.embeds);
      const View = VIEWS[view];
      if (!View || view !== address.state.view) return;
      const root = part(this.#root, `view-${view}`);
      if (!this.#views.has(view)) this.#views.set(view, new View(root, this.#api, gallery));
      show(root, true);  // not before: a form without its listener would load the page again
      this.#views.get(view).follow();
    } catch (error) {
      this.#gallery = undefined;  // asked again with the next change
      part(this.#root, 'problem').textContent = error.message;
    }
  }
}
