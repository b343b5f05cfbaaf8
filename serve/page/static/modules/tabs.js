// The tabs: the address names the one that is open.

import {address} from './address.js';
import {connection} from './connection.js';
import {show} from './dom.js';

const NOT_LOADED = 'This part of the page could not be loaded. Check your connection, then reload the page.';
const STEPS = {ArrowLeft: -1, ArrowRight: 1};

export class Tabs {
  #tabs; #load;

  /**
   * @param {Element} list Has the tabs, each with its name in the address and the id of its panel.
   * @param {Record<string, () => Promise<unknown>>} load Functions that start a tab when it is opened first.
   */
  constructor(list, load) {
    this.#tabs = [...list.children];
    this.#load = {...load};
    list.addEventListener('click', event => this.#open(/** @type {Element} */ (event.target).closest('[role=tab]')));
    list.addEventListener('keydown', event => this.#step(event));
    address.onChange(() => this.#follow());
    this.#follow();
  }

  #open(tab) {
    if (tab && tab.dataset.tab !== address.state.tab) address.update({tab: tab.dataset.tab, open: null});
  }

  #step(event) {
    const {length} = this.#tabs, here = this.#tabs.indexOf(event.target);
    const to = {Home: 0, End: length - 1}[event.key] ?? (event.key in STEPS ? here + STEPS[event.key] : null);
    if (to === null || here < 0) return;
    event.preventDefault();
    const next = this.#tabs.at(to % length);
    next.focus();
    this.#open(next);
  }

  #follow() {
    const chosen = this.#tabs.find(tab => tab.dataset.tab === address.state.tab) ?? this.#tabs[0];
    for (const tab of this.#tabs) {
      tab.ariaSelected = String(tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      show(panel(tab), tab === chosen);
    }
    const load = this.#load[chosen.dataset.tab];
    delete this.#load[chosen.dataset.tab];
    load?.().catch(() => {
      const content = panel(chosen).firstElementChild;
      content.role = 'alert';
      content.textContent = NOT_LOADED;
      connection.addEventListener('back', () => location.reload(), {once: true});
      connection.check();
    });
  }
}

const panel = tab => document.getElementById(tab.getAttribute('aria-controls'));
