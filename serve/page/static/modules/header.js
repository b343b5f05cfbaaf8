// The header: gallery, theme, and the tabs, which are in the address.

import {address} from './address.js';
import {part} from './dom.js';

const THEME = 'lookalike-theme';
const CHECKS = 50, PAUSE = 100;  // of the open tab on a new page: their number, and milliseconds between them

/**
 * Start the header.
 * @param {string[]} tabs Ids of the tabs; the first has no name in the address.
 */
export function mount(root, tabs) {
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
