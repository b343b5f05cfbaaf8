// Views of the page that are saved under names: addresses, which the server keeps for everybody who uses the gallery.

import {address, format, ownViews, parse} from './address.js';
import {clone, part, plural, show} from './dom.js';
import {GALLERY} from './options.js';

const SURE = 'Delete?';
const OWN = 'Your picture is in this browser only, so nobody else could see this view. Search with an image of the gallery instead.';

/** Start the menu. */
export const mount = (root, api) => new SavedViews(root, api);

class SavedViews {
  #root; #api; #views = []; #changes = GALLERY?.changes ?? false; #replacing = ''; #reads = 0;

  constructor(root, api) {
    this.#root = root;
    this.#api = api;
    show(part(root, 'save'), this.#changes);
    part(root, 'save').addEventListener('submit', event => { event.preventDefault(); this.#save(); });
    part(root, 'views').addEventListener('click', event => this.#press(event));
    root.addEventListener('toggle', () => { if (root.open) this.#load(); });
    root.addEventListener('keydown', event => {
      if (event.key !== 'Escape') return;
      root.open = false;
      root.querySelector('summary').focus();
    });
    document.addEventListener('click', event => {
      const target = /** @type {Node} */ (event.target);
      if (target.isConnected && !root.contains(target)) root.open = false;  // a button that was pressed may be gone
    });
    this.#load();
  }

  async #load() {
    const read = this.#reads += 1;
    try {
      const {views} = await this.#api.get('/views');
      if (read !== this.#reads) return;  // a change has been answered meanwhile, or is newer
      this.#draw(views);
      this.#say('');
    } catch (error) {
      this.#say(error.message);
    }
  }

  #draw(views) {
    this.#views = views;
    part(this.#root, 'views').replaceChildren(...views.map(view => {
      const row = clone('saved'), link = part(row, 'link'), remove = part(row, 'delete');
      link.href = location.pathname + view.address;
      link.textContent = view.images ? `${view.name} (${plural(view.images, 'image')})` : view.name;
      link.title = `saved ${view.time.slice(0, 16).replace('T', ' ')} (UTC)`;
      remove.ariaLabel = `Delete the view ${view.name}`;
      show(remove, this.#changes);
      return row;
    }));
    show(part(this.#root, 'none'), !views.length);
  }

  #press(event) {
    const row = event.target.closest('li'), view = this.#views[[...part(this.#root, 'views').children].indexOf(row)];
    if (!view) return;
    if (event.target.closest('a')) {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;  // a new tab
      event.preventDefault();
      this.#root.open = false;
      address.update(parse(view.address));
      return;
    }
    const button = event.target.closest('button');
    if (!button) return;
    if (button.textContent === SURE) return void this.#send({name: view.name, address: null, old: view.address}, `Deleted ${view.name}.`);
    const before = [button.textContent, button.ariaLabel];
    [button.textContent, button.ariaLabel] = [SURE, `${SURE} ${view.name}`];
    button.addEventListener('blur', () => { [button.textContent, button.ariaLabel] = before; }, {once: true});
    button.focus();
  }

  async #save() {
    const field = part(this.#root, 'name'), name = field.value.trim();
    if (!name) return field.focus();
    if (ownViews(address.state).length) return this.#say(OWN);
    const before = this.#views.find(view => view.name === name);
    if (before && this.#replacing !== name) {
      this.#replacing = name;
      return this.#say(`There is a view ${name} already. Save again to replace it.`);
    }
    this.#replacing = '';
    const shown = format({...address.state, open: null}) || '?';
    if (await this.#send({name, address: shown, old: before?.address ?? null}, `Saved as ${name}.`)) field.value = '';
  }

  /** Send a change; if somebody else was first, show the views as they are now. */
  async #send(change, done) {
    try {
      const {views} = await this.#api.post('/views', change);
      this.#reads += 1;
      this.#draw(views);
      this.#say(done);
      return true;
    } catch (error) {
      if (error.code === 'changed') await this.#load();
      this.#say(error.code === 'changed' ? `Somebody else has changed the view ${change.name} in the meantime: nothing was changed.` : error.message);
      return false;
    }
  }

  #say(text) { part(this.#root, 'outcome').textContent = text; }
}
