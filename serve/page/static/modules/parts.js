// The picture that an image is a part of, or that has parts, with their outlines.

import {equals} from './conditions.js';
import {part, plural, show} from './dom.js';

const MOST = 30;
const COLUMN = 'picture', MARK = '#xywh=';
const pictureOf = item => item.key.split(MARK)[0];

/**
 * Show the picture of an image with the parts that the gallery has of it; hide it if there are none.
 * @param {Root} figure Has the parts `whole`, `outlines` and `says`.
 * @param {import('./api.js').Api} api
 * @param {any} item
 */
export async function showParts(figure, api, item) {
  figure.dataset.of = item.id;
  draw(figure, api, item, item.part ? [item] : []);
  const picture = item.metadata[COLUMN];
  if (typeof picture !== 'string') return;
  const where = encodeURIComponent(equals(COLUMN, picture));
  const {items} = await api.get(`/items?limit=${MOST}&where=${where}`).catch(() => ({items: []}));
  const parts = items.filter(one => one.part && pictureOf(one) === pictureOf(item));
  if (figure.dataset.of === String(item.id) && parts.length) draw(figure, api, item, parts);
}

function draw(figure, api, item, parts) {
  show(figure, parts.length > 0);
  if (!parts.length) return;
  part(figure, 'whole').src = `${api.root}/items/${item.id}/thumbnail?whole=true`;
  part(figure, 'outlines').replaceChildren(...parts.map(one => outline(one, one.id === item.id)));
  part(figure, 'says').textContent = item.part ? 'The picture that it is a part of' : `The ${plural(parts.length, 'part')} of it in the gallery`;
}

function outline({part: [left, top, right, bottom]}, isShown) {
  const mark = document.createElement('i');
  if (isShown) mark.dataset.part = 'outline';
  Object.assign(mark.style, {left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%`});
  return mark;
}
