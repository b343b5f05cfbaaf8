// The other views of the product that an image shows: their number and its variants on a card, and small pictures in the dialog.

import {address} from './address.js';
import {equals} from './conditions.js';
import {part, plural, show} from './dom.js';
import {GALLERY} from './options.js';

const MOST = 30;
export const VARIANTS = 6;  // small pictures on a card

/** Return the number of variants or views of a hit in words; empty for a single one. */
export const viewsOf = hit => (hit.variant_count > 1 ? plural(hit.variant_count, 'variant') : hit.view_count > 1 ? plural(hit.view_count, 'view') : '');

/** Return the variant that a hit shows; nothing if it is of none. */
export const variantOf = hit => hit.variant_count > 1 ? hit.views?.find(view => view.id === hit.id)?.variant : undefined;

/** Return the ids of a hit and of its variants that are known. */
export const idsOf = hit => [hit.id, ...(hit.views ?? []).map(view => view.id)];

/** Draw the variants of a hit on its card, if it has several: a small picture of each that is known, and the number of the others. */
export function drawVariants(card, hit) {
  const box = part(card, 'variants'), views = hit.variant_count > 1 ? hit.views ?? [] : [], more = hit.variant_count - views.length;
  show(box, views.length > 1);
  box.replaceChildren(...views.map(view => {
    const button = document.createElement('button'), image = document.createElement('img');
    const title = `${view.variant ?? 'Without a variant'}, similarity ${view.score.toFixed(4)}`;
    Object.assign(image, {src: view.thumbnail, alt: '', loading: 'lazy', decoding: 'async'});
    Object.assign(button, {type: 'button', tabIndex: -1, title: `${title} (V: the next one)`, ariaLabel: title, ariaPressed: String(view.id === hit.id)});
    button.dataset.view = view.id;
    button.append(image);
    return button;
  }), ...more > 0 ? [`+${more}`] : []);
}

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
  const variant = GALLERY.variant === 'label' ? view.label : view.metadata[GALLERY.variant];
  const alt = [`View ${at + 1} of ${count}`, variant].filter(Boolean).join(', ');
  Object.assign(image, {src: view.thumbnail, alt, title: alt, loading: 'lazy', decoding: 'async'});
  button.type = 'button';
  if (isShown) button.setAttribute('aria-current', 'true');
  button.addEventListener('click', () => address.update({open: view.id}, {replace: true}));
  button.append(image);
  item.append(button);
  return item;
}
