// The header: gallery, theme, and how far the server is in indexing.

import {part, plural, show} from './dom.js';
import {GALLERY} from './options.js';

const THEME = 'lookalike-theme';

/** Start the header, but for its tabs. */
export function mountHeader(root, api) {
  part(root, 'galleries')?.addEventListener('change', event => { location.href = event.target.value; });
  part(root, 'theme').addEventListener('click', () => {
    const dark = document.documentElement.classList.toggle('dark');
    localStorage.setItem(THEME, dark ? 'dark' : 'light');
  });
  part(root, 'saved').addEventListener('toggle', async ({target}) => (await import('./saved.js')).mount(target, api), {once: true});
  document.addEventListener('lookalike:live', ({detail}) => drawIndexing(root, detail.indexing));
  drawIndexing(root, GALLERY?.indexing ?? null);
}

function drawIndexing(root, indexing) {
  show(part(root, 'indexing'), indexing !== null);
  if (indexing === null) return;
  const {done, total} = indexing, bar = part(root, 'indexed');
  if (total) bar.value = done / total; else bar.removeAttribute('value');
  part(root, 'so-far').textContent = total ? `Indexed ${done.toLocaleString('en')} of ${plural(total, 'image')}` : 'Looking for images';
}
