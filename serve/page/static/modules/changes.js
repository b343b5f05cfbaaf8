// Changes of many items at once.

export const AT_ONCE = 200;  // items in a condition

/** Return conditions that select these items, some of them each: `{ids, where}`. */
export const conditions = ids => Array.from({length: Math.ceil(ids.length / AT_ONCE)}, (_, index) => {
  const some = ids.slice(index * AT_ONCE, (index + 1) * AT_ONCE);
  return {ids: some, where: `id in (${some.join(', ')})`};
});

/**
 * Return the items of these ids as they are now, by id; those that are gone are missing.
 * @param {import('./api.js').Api} api
 * @param {number[]} ids
 * @param {(done: number) => void} [progress] Called with the number of items that were read.
 */
export async function presentItems(api, ids, progress = () => {}) {
  const found = new Map();
  for (const {ids: some, where} of conditions(ids)) {
    const {items} = await api.get(`/items?limit=${AT_ONCE}&where=${encodeURIComponent(where)}`);
    for (const item of items) found.set(item.id, item);
    progress(some.length);
  }
  return found;
}

/**
 * Give items a label, or none.
 * @param {import('./api.js').Api} api
 * @param {number[]} ids
 * @param {string | null} label
 * @param {(done: number) => void} [progress] Called with the number of items that were done.
 */
export async function labelItems(api, ids, label, progress = () => {}) {
  for (const id of ids) {
    await api.send('PATCH', `/items/${id}`, {label});
    progress(1);
  }
}

/**
 * Remove items; those that are gone already are passed over.
 * @param {import('./api.js').Api} api
 * @param {number[]} ids
 * @param {(done: number) => void} [progress] Called with the number of items that were done.
 */
export async function removeItems(api, ids, progress = () => {}) {
  for (const {ids: some, where} of conditions(ids)) {
    const {selected} = await api.post('/items:remove', {where});
    if (selected) await api.post('/items:remove', {where, dry_run: false, expected: selected});
    progress(some.length);
  }
}

/** Tell all parts of the page that the gallery has changed. */
export const announce = () => document.dispatchEvent(new CustomEvent('lookalike:changed'));
