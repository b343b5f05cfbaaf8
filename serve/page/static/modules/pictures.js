// Pictures of the visitor: shrunk before they are sent, and kept in the browser, so that a reload finds them.

const SIDE = 1024;  // pixels of the longer side; models look at fewer
const SMALL = 300_000;  // bytes of a file that is sent as it is
const KEPT = 40;
const STORE = 'pictures';

/** @typedef {{id: string, file: Blob, name: string, width: number, height: number, url: string}} Picture */

const opened = new Map();  // by id, for this visit

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

/** Return a decoded, upright bitmap; null if the browser cannot decode the file, such as HEIC in most. */
const decode = file => createImageBitmap(file).catch(() => null);

/** Keep a file of the visitor, and return it as a picture. */
export async function keep(file) {
  const id = await identify(file);
  if (opened.has(id)) return opened.get(id);
  const bitmap = await decode(file);
  const record = {id, file, name: file.name || 'picture', width: bitmap?.width ?? 0, height: bitmap?.height ?? 0, time: Date.now()};
  bitmap?.close();
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

/** Return the picture of a view, from this browser or shared by another; null if it is no longer there. */
export const ofView = (view, api) => view.shared ? receive(view.shared, api) : find(view.picture);

/** Store a picture on the server for others. Returns its id there. */
export async function share(id, api) {
  const picture = await find(id);
  if (!picture) throw new Error('The picture is no longer in this browser. Drop it here again to share it.');
  return (await api.post('/pictures', await shrink(picture, null))).id;
}

async function receive(id, api) {
  const name = `shared:${id}`;
  if (opened.has(name)) return opened.get(name);
  const answer = await fetch(`${api.root}/pictures/${id}`).catch(() => null);
  if (!answer?.ok) return null;
  const file = await answer.blob(), bitmap = await decode(file);
  const {width = 0, height = 0} = bitmap ?? {};
  bitmap?.close();
  return open({id: name, file, name: 'picture', width, height});
}

function open(record) {
  const picture = {...record, url: record.width ? URL.createObjectURL(record.file) : ''};
  opened.set(record.id, picture);
  return picture;
}

/** Remove all but the newest pictures. */
async function forget() {
  const all = await stored('readonly', store => store.getAll());
  const old = all.sort((one, other) => other.time - one.time).slice(KEPT);
  for (const {id} of old) await stored('readwrite', store => store.delete(id));
}

/** Return what to send of a picture: its region, if there is one, of at most 1,024 pixels a side. */
export async function shrink(picture, region) {
  if (!picture.width) return picture.file;  // the server may be able to decode it
  const [left, top, right, bottom] = region ?? [0, 0, 1, 1];
  const width = Math.max(1, Math.round((right - left) * picture.width));
  const height = Math.max(1, Math.round((bottom - top) * picture.height));
  const scale = Math.min(1, SIDE / Math.max(width, height));
  if (!region && (scale === 1 || picture.file.size <= SMALL)) return picture.file;
  const bitmap = await createImageBitmap(picture.file);
  const canvas = Object.assign(document.createElement('canvas'), {width: Math.round(scale * width), height: Math.round(scale * height)});
  const context = canvas.getContext('2d');
  context.fillStyle = 'white';  // as the server does behind transparent pixels
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = 'high';
  context.drawImage(bitmap, left * picture.width, top * picture.height, width, height, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return new Promise(resolve => canvas.toBlob(resolve, scale === 1 ? 'image/png' : 'image/jpeg', 0.92));
}
