// Searches on the visitor's device: the picture is embedded here, and only its vector is sent. The server must offer it.

import {parts} from './api.js';

const KEPT = 'on-device';
const FAILED = 'This browser could not search on your device.';

/** Whether the server offers it. */
export const offered = 'device' in document.body.dataset;

let on = read(), worker = null, model = null, asked = 0;
const waiting = new Map();  // by the number of the picture

/** Whether a view is a picture that must not be sent. */
export const stays = view => on && Boolean(view?.picture);

/** Whether the visitor's pictures stay here. */
export const isOn = () => on;

/** Let pictures stay here from now on, or let them be sent. */
export function turn(value) {
  on = value;
  try { localStorage.setItem(KEPT, value ? 'yes' : ''); } catch { /* private windows may refuse: it lasts for this visit */ }
}

function read() {
  try { return offered && localStorage.getItem(KEPT) === 'yes'; } catch { return false; }
}

/** Forget the model: the gallery has another one. */
export const forgetModel = () => { model = null; };

/**
 * Embed a picture, or a region of it, and return its vector with the fingerprint of the model.
 * @param {Blob} file
 * @param {?number[]} region
 * @param {{signal?: AbortSignal, progress?: (share: number, what?: string) => void}} options
 * @throws {Error} The browser cannot; the message is for the visitor.
 */
export async function embeddedHere(file, region, {signal, progress} = {}) {
  model ??= await parts().get('/device', {signal});
  if (!worker) {
    worker = new Worker(new URL('./embedder.js', import.meta.url), {type: 'module'});
    worker.addEventListener('message', ({data: {id, share, vector, error}}) => {
      const {resolve, reject, tell} = waiting.get(id);
      if (share !== undefined) return tell(share);
      waiting.delete(id);
      if (vector) resolve(vector); else reject(new Error(error || FAILED));
    });
    worker.addEventListener('error', () => {
      worker = null;  // the next picture starts another one
      for (const {reject} of waiting.values()) reject(new Error(FAILED));
      waiting.clear();
    });
  }
  const id = ++asked, {fingerprint} = model;
  const vector = await new Promise((resolve, reject) => {
    waiting.set(id, {resolve, reject, tell: share => progress?.(share, 'Loading the model')});
    worker.postMessage({id, file, region, model});
  });
  signal?.throwIfAborted();
  return {vector, fingerprint};
}
