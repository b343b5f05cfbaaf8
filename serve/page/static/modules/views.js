// The other views of the product that an image shows: their number on a card, and small pictures in the dialog.

import {address} from './address.js';
import {equals} from './conditions.js';
import {plural, show} from './dom.js';
import {GALLERY} from './options.js';

const MOST = 30;

/** Return the number of views of a hit in words; empty for a single one. */
export const viewsOf = hit => (hit.view_count > 1 ? plural(hit.view_count, 'view') : '');

/**
 * Show the views of an item's product in a list; hide it if there is one view, or no product.
 * @param {Root} list
 * @param {any} api
 * @param {any} item
 */
export async function showViews(list, api, item) {
  list.dataset.of = item.id;
  show(list, false);
  const product = GALLERY?.product, value = product === 'label' ? item.label : item.metadata[product];
  if (!product || value === undefined || value === null) return;
  const where = encodeURIComponent(equals(product, value));
  const {items} = await api.get(`/items?limit=${MOST}&where=${where}`).catch(() => ({items: []}));
  if (list.dataset.of !== String(item.id) || items.length < 2) return;
  list.replaceChildren(...items.map((view, at) => row(view, at, items.length, view.id === item.id)));
  show(list, true);
}

function row(view, at, count, isShown) {
  const item = document.createElement('li'), button = document.createElement('button'), image = document.createElement('img');
  Object.assign(image, {src: view.thumbnail, alt: `View ${at + 1} of ${count}`, loading: 'lazy', decoding: 'async'});
  button.type = 'button';
  if (isShown) button.setAttribute('aria-current', 'true');
  button.addEventListener('click', () => address.update({open: view.id}, {replace: true}));
  button.append(image);
  item.append(button);
  return item;
}
