// Vectors of pictures from outside the gallery. A picture is sent once, or never: filters and further results need its vector only.

import {viewText} from './address.js';
import {embeddedHere, forgetModel, stays} from './device.js';
import * as pictures from './pictures.js';

const ELSEWHERE = 'This link needs a picture that is only in the browser it was searched with. Drop the picture here to search with it.';
const EXPIRED = 'The picture of this link is no longer shared. Ask for a new link, or drop the picture here.';

const sent = new Map();  // vectors and their models, by the name of the view

/**
 * Return the vector of a view of a picture, and the fingerprint of its model; options as of `Api.send`.
 * @throws {Error} The picture is no longer there, or the server cannot use it.
 */
export async function embedded(view, api, options = {}) {
  const name = viewText(view);
  if (!sent.has(name)) {
    const picture = await pictures.ofView(view, api);
    if (!picture) throw new Error(view.shared ? EXPIRED : ELSEWHERE);
    sent.set(name, stays(view) ? await embeddedHere(picture.file, view.region, options) : await embeddedThere(picture, view, api, options));
  }
  return sent.get(name);
}

async function embeddedThere(picture, {region}, api, options) {
  const {vectors: [vector], fingerprint} = await api.post('/embed', await pictures.shrink(picture, region), options);
  return {vector, fingerprint};
}

/** Return a picture as both galleries of a comparison take it, as Base64; null if it is no longer there. */
export async function encoded(view, api) {
  const picture = await pictures.ofView(view, api).catch(() => null);
  if (!picture) return null;
  const file = await pictures.shrink(picture, view.region), reader = new FileReader();
  await new Promise((resolve, reject) => Object.assign(reader, {onload: resolve, onerror: reject}).readAsDataURL(file));
  return String(reader.result).split(',')[1];
}

/** Forget all vectors: the gallery has another model. */
export function forget() {
  sent.clear();
  forgetModel();
}
