// Pictures of the visitor: shrunk before they are sent, and kept in the browser, so that a reload finds them.

import {viewText} from './address.js';
import {isOn} from './device.js';

const SIDE = 1024;  // pixels of the longer side; models look at fewer
const KEPT = 40;
const STORE = 'pictures';
const STAYS = 'The picture stays on your device, so it is not shared.';
const UNREADABLE = 'This browser cannot open this picture, and it stays on your device. Save it as a JPEG, or let the server search.';

/** @typedef {{id: string, file: Blob, name: string, width: number, height: number, url: string}} Picture */

const opened = new Map();  // by id, for this visit
const received = new Map();  // promises of pictures of the server, by the name of their view

function database() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open('lookalike', 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, {keyPath: 'id'});
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function stored(mode, act) {
  const connection = await database();
  try {
    const request = act(connection.transaction(STORE, mode).objectStore(STORE));
    return await new Promise((resolve, reject) => {
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  } finally {
    connection.close();
  }
}

/** Return the id of a file: the start of its SHA-256; a random one where the browser has no SHA-256 (plain http). */
async function identify(file) {
  const bytes = crypto.subtle
    ? new Uint8Array(await crypto.subtle.digest('SHA-256', await file.arrayBuffer()))
    : crypto.getRandomValues(new Uint8Array(32));
  return [...bytes.slice(0, 8)].map(byte => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * Keep a file of the visitor, and return it as a picture.
 * @param {(share: number) => void} progress Receives the share that has been sent, if the browser cannot decode it.
 * @throws {ApiError} Neither the browser nor the server can decode it.
 */
export async function keep(file, api, progress) {
  const id = await identify(file);
  if (opened.has(id)) return opened.get(id);
  // Most browsers cannot decode HEIC; the server may.
  const readable = await measured(id, file).catch(() => {
    if (isOn()) throw new Error(UNREADABLE);
    return preview(id, file, api, {progress});
  });
  const record = {...readable, name: file.name || 'picture', time: Date.now()};
  try {
    await stored('readwrite', store => store.put(record));
    await forget();
  } catch { /* private windows may refuse: the picture lasts until the page is closed */ }
  return open(record);
}

/** Return a picture that was kept; null if it is no longer there. */
export async function find(id) {
  if (opened.has(id)) return opened.get(id);
  const record = await stored('readonly', store => store.get(id)).catch(() => null);
  return record ? open(record) : null;
}

/**
 * Return the picture of a view: one of this browser, shared by another, or at a URL; null if it is no longer there.
 * @throws {ApiError} The server cannot be reached, or could not fetch it.
 */
export function ofView(view, api) {
  if (view.picture) return find(view.picture);
  const name = viewText({...view, region: null});
  if (!received.has(name)) {
    const picture = view.shared ? receive(name, view.shared, api) : preview(name, {url: view.url}, api).then(open);
    received.set(name, picture);
    picture.catch(() => received.delete(name));
  }
  return received.get(name);
}

/** Store a picture on the server for others. Returns its id there. */
export async function share(id, api) {
  if (isOn()) throw new Error(STAYS);
  const picture = await find(id);
  if (!picture) throw new Error('The picture is no longer in this browser. Drop it here again to share it.');
  return (await api.post('/pictures', await shrink(picture, null))).id;
}

async function receive(name, id, api) {
  try {
    return open(await measured(name, await api.get(`/pictures/${id}`, {type: 'blob'})));
  } catch (error) {
    if (error.code === 'no-such-picture') return null;
    throw error;
  }
}

/** Return an image, or the one at a URL, as the server shows it. */
const preview = async (id, body, api, options = {}) =>
  measured(id, await api.post('/preview', body, {type: 'blob', ...options}));

/** Return a record of an image; its size, upright, is in the first bytes, so it need not be decoded. */
async function measured(id, file) {
  const image = new Image();
  image.src = URL.createObjectURL(file);
  try {
    await new Promise((resolve, reject) => Object.assign(image, {onload: resolve, onerror: reject}));
    return {id, file, width: image.naturalWidth, height: image.naturalHeight};
  } finally {
    URL.revokeObjectURL(image.src);
  }
}

function open(record) {
  const picture = {...record, url: URL.createObjectURL(record.file)};
  opened.set(record.id, picture);
  return picture;
}

/** Remove all but the newest pictures. */
async function forget() {
  const all = await stored('readonly', store => store.getAll());
  const old = all.sort((one, other) => other.time - one.time).slice(KEPT);
  for (const {id} of old) await stored('readwrite', store => store.delete(id));
}

/** Return what to send of a picture, of at most 1,024 pixels a side: its region, if there is one. What the browser cannot decode is sent as it is. */
export async function shrink(picture, region) {
  const [left, top, right, bottom] = region ?? [0, 0, 1, 1];
  const side = pixels => Math.max(1, Math.round(pixels));
  const width = side((right - left) * picture.width), height = side((bottom - top) * picture.height);
  const scale = Math.min(1, SIDE / Math.max(width, height));
  if (!region && scale === 1) return picture.file;
  const bitmap = await createImageBitmap(picture.file).catch(() => null);
  if (!bitmap) return picture.file;
  const canvas = Object.assign(document.createElement('canvas'), {width: side(scale * width), height: side(scale * height)});
  const context = canvas.getContext('2d');
  context.fillStyle = 'white';  // as the server does behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, left * picture.width, top * picture.height, width, height, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise(resolve => canvas.toBlob(resolve, scale === 1 ? 'image/png' : 'image/jpeg', 0.92));
}
