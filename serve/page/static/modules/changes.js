// Changes of items, many at once, of which somebody else may have changed some in the meantime.

import {plural} from './dom.js';

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
 * Give items another label, those that still have the one that was seen.
 * @param {import('./api.js').Api} api
 * @param {{id: number, old: ?string, label: ?string}[]} labels The label that was seen, and the new one; null for none.
 * @param {(count: number) => void} [progress] Called with the number of items that were done.
 * @returns {Promise<{labelled: {id: number, decision: number}[], changed: {id: number, label: ?string}[], missing: number[]}>} Those that were
 *   labelled, those that have another label, as they are, and those that are gone.
 */
export async function labelItems(api, labels, progress = () => {}) {
  const found = {labelled: [], changed: [], missing: []};
  for (let at = 0; at < labels.length; at += AT_ONCE) {
    const images = labels.slice(at, at + AT_ONCE);
    const answer = await api.post('/items:label', {images});
    for (const [name, some] of Object.entries(found)) some.push(...answer[name]);
    progress(images.length);
  }
  return found;
}

/** Return what to say of items that were left alone; empty if there are none. */
export function leftAlone({changed, missing}) {
  const others = [changed.length && `labelled ${plural(changed.length, 'image')}`, missing.length && `removed ${plural(missing.length, 'image')}`];
  return changed.length + missing.length ? ` Somebody else has ${others.filter(Boolean).join(' and ')} in the meantime: left as they are.` : '';
}

/**
 * Undo decisions.
 * @param {import('./api.js').Api} api
 * @param {number[]} numbers
 * @param {(count: number) => void} [progress] Called with the number of decisions that were undone.
 * @returns {Promise<Map<number, string>>} A sentence for each of them where somebody else was first.
 */
export async function undoDecisions(api, numbers, progress = () => {}) {
  const found = new Map();
  for (let at = 0; at < numbers.length; at += AT_ONCE) {
    const decisions = numbers.slice(at, at + AT_ONCE);
    const {already, left} = await api.post('/decisions:undo', {decisions});
    for (const n of already) found.set(n, 'Somebody else has undone this already.');
    for (const {decision, label} of left) found.set(decision, `Undone, but somebody else has changed the label since: it stays ${label ?? 'without one'}.`);
    progress(decisions.length);
  }
  return found;
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

/**
 * Tell all parts of the page that this visitor has changed the gallery.
 * @param {number[]} [removed] The items that are gone.
 */
export const announce = (removed = []) => document.dispatchEvent(new CustomEvent('lookalike:changed', {detail: {removed}}));
