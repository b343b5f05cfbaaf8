// Links to searches with pictures of the visitor: the vectors travel in the fragment of the address, which browsers
// do not send to servers. Nothing is stored, and whoever opens the link needs no picture.

import {format} from './address.js';
import {embedded} from './vectors.js';

const DIGITS = 16;  // of the fingerprint of the model
const STEPS = 127;  // of a number, on either side of 0
const OTHER_MODEL = 'This link is from another model than the gallery has now, so its search cannot be repeated. Ask for the picture, and drop it here.';
const DAMAGED = 'This link is not complete. Ask for it again.';

/** Return a vector as text: its model, and 8 bits for each number. Its length is lost, and has no meaning in a search. */
export function encoded(vector, fingerprint) {
  const largest = Math.max(...vector.map(Math.abs));
  const bytes = Uint8Array.from(vector, value => Math.round(STEPS * value / largest));
  const text = btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(''));
  return `${fingerprint.slice(0, DIGITS)}.${text.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '')}`;
}

/**
 * Return the vector of a text, for a search with a model.
 * @throws {Error} It is of another model, or damaged; the message is for the visitor.
 */
export function decoded(text, {fingerprint, dim}) {
  const [model, letters = ''] = text.split('.');
  if (model.length === DIGITS && !fingerprint.startsWith(model)) throw new Error(OTHER_MODEL);
  let bytes = '';
  try { bytes = atob(letters.replaceAll('-', '+').replaceAll('_', '/')); } catch { /* it has no bytes */ }
  const vector = Array.from(Int8Array.from(bytes, letter => letter.charCodeAt(0)));
  if (model.length !== DIGITS || vector.length !== dim || !vector.some(Boolean)) throw new Error(DAMAGED);
  return vector;
}

/**
 * Return a state whose views have the vectors of their pictures.
 * @throws {Error} A picture is no longer in this browser.
 */
export async function portable(state, api) {
  const own = async view => {
    if (view.vector || !(view.picture || view.shared)) return view;
    const {vector, fingerprint} = await embedded(view, api);
    return {...view, vector: encoded(vector, fingerprint)};
  };
  const [like, unlike] = await Promise.all([state.like, state.unlike].map(views => Promise.all(views.map(own))));
  return {...state, like, unlike};
}

/** Return the address of a state, for others. */
export const linkTo = async (state, api) => location.origin + location.pathname + format(await portable(state, api));
