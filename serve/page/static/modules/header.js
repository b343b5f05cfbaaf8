// The header: gallery, theme, and how far the server is in indexing.

import {connection} from './connection.js';
import {part, plural, show} from './dom.js';
import {GALLERY} from './options.js';

const THEME = 'lookalike-theme';
const INDEXING = 1000;  // milliseconds between two questions how far it is

/** Start the header, but for its tabs. */
export function mountHeader(root, api) {
  part(root, 'galleries')?.addEventListener('change', event => { location.href = event.target.value; });
  part(root, 'theme').addEventListener('click', () => {
    const dark = document.documentElement.classList.toggle('dark');
    localStorage.setItem(THEME, dark ? 'dark' : 'light');
  });
  followIndexing(root, api);
}

/** Show how many images are indexed while the server is at it, and tell the tabs as the gallery grows. */
async function followIndexing(root, api) {
  let images = null, busy = true, given = GALLERY;
  while (busy) {
    const gallery = given ?? await api.get('/gallery').catch(() => null);  // the server is asked again
    given = null;
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
    await connection.here;
  }
}
