// The header: gallery, theme, the tabs, which are in the address, and how far the server is in indexing.

import {address} from './address.js';
import {Api} from './api.js';
import {part, plural, show} from './dom.js';

const THEME = 'lookalike-theme';
const INDEXING = 1000;  // milliseconds between two questions how far it is
const CHECKS = 50, PAUSE = 100;  // of the open tab on a new page: their number, and milliseconds between them

/**
 * Start the header.
 * @param {string[]} tabs Ids of the tabs; the first has no name in the address.
 * @param {string} path Path of the gallery's API.
 */
export function mount(root, tabs, path) {
  document.getElementById('first-paint')?.remove();
  part(root, 'galleries')?.addEventListener('change', event => { location.href = event.target.value; });
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.body.classList.toggle('dark', chosen === 'dark');
  part(root, 'theme').addEventListener('click', () => {
    const dark = document.body.classList.toggle('dark');
    localStorage.setItem(THEME, dark ? 'dark' : 'light');
  });
  followTabs(tabs);
  // Gradio's components keep their state in the address by events of the document.
  document.addEventListener('lookalike:state', event => address.update(event.detail));
  address.onChange(() => document.dispatchEvent(new CustomEvent('lookalike:moved', {detail: address.state})));
  followIndexing(root, new Api(path));
}

/** Show how many images are indexed while the server is at it, and tell the tabs as the gallery grows. */
async function followIndexing(root, api) {
  let images = null, busy = true;
  while (busy) {
    const gallery = await api.get('/gallery').catch(() => null);  // the server is asked again
    if (gallery) {
      const {indexing} = gallery;
      busy = indexing !== null;
      show(part(root, 'indexing'), busy);
      if (busy) {
        const {done, total} = indexing, bar = part(root, 'indexed');
        if (total) bar.value = done / total; else bar.removeAttribute('value');
        part(root, 'so-far').textContent = total ? `Indexed ${done.toLocaleString('en')} of ${plural(total, 'image')}` : 'Looking for images';
      }
      if (images !== null && images !== gallery.images) document.dispatchEvent(new CustomEvent('lookalike:grown', {detail: gallery}));
      if (images !== null && !busy) document.dispatchEvent(new CustomEvent('lookalike:changed'));
      images = gallery.images;
    }
    if (busy) await new Promise(resolve => setTimeout(resolve, INDEXING));
  }
}

function followTabs(tabs) {
  const name = id => id === tabs[0] ? '' : id.replace('-tab', '');
  const button = id => document.getElementById(`${id}-button`);
  const open = () => {
    const tab = button(tabs.find(id => name(id) === address.state.tab) ?? tabs[0]);
    if (tab?.ariaSelected !== 'true') tab?.click();
  };
  document.addEventListener('click', event => {
    const tab = event.target.closest('[role=tab]');
    const id = tabs.find(id => button(id) === tab);
    if (id && name(id) !== address.state.tab) address.update({tab: name(id), open: null});
  });
  // Gradio may draw the tabs later than this, and the first one open.
  const settle = checks => {
    open();
    if (checks > 1) setTimeout(settle, PAUSE, checks - 1);
  };
  address.onChange(open);
  settle(CHECKS);
}
