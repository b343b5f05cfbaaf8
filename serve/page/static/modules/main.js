// The entry of the page: header, tabs, and the beginning of a search. All else is loaded when it is needed, or after that.

import {address} from './address.js';
import {Api} from './api.js';
import {connection} from './connection.js';
import {keepFocus} from './focus.js';
import {mountHeader} from './header.js';
import {followGallery} from './live.js';
import {mendPictures, mountNotice} from './notice.js';
import {mountSearch} from './start.js';
import {Tabs} from './tabs.js';

const api = new Api(document.body.dataset.api);
const find = id => document.getElementById(id);

keepFocus(find('skip'));
mountHeader(find('header'), api);
mountNotice(find('header'));
mendPictures();
new Tabs(find('header').querySelector('[role=tablist]'), {
  gallery: async () => (await import('./collection.js')).mount(find('collection'), api),
  map: async () => (await import('./map.js')).mount(find('map'), api),
  evaluation: async () => (await import('./evaluation.js')).mount(find('evaluation'), api),
});

let dialog;
const openDialog = async () => {
  try {
    await (await import('./dialog.js')).mount(find('dialog'), api);
  } catch {
    dialog = undefined;  // the next image that is opened asks again
    connection.check();
  }
};
const opens = () => { if (address.state.open !== null) dialog ??= openDialog(); };
address.onChange(opens);
connection.addEventListener('back', () => address.repeat());
opens();
await mountSearch(find('search'), api);
followGallery(api);
dialog ??= openDialog();  // ahead of the first click
