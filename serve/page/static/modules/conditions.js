// Filters as conditions of the expression language, see docs/filters.md.
// A filter is the text of the address: `label=red` for a value, `price~10..20` for a range, `note^blue` for words,
// `id:1-20,33` for items, `id@to check` for the items of a collection.

import {plural} from './dom.js';

const WORDS = /^(?!.*\b(?:and|or|not|in|like|is|between)\b)[\p{L}\p{N}\s_-]+$/iu;

const encoded = column => encodeURIComponent(column).replaceAll('~', '%7E');

/** Return a filter for a value of a column. */
export const valueFilter = (column, value) => `${encoded(column)}=${value}`;

/** Return a filter for a range of numbers or dates; an empty end is open. */
export const rangeFilter = (column, low, high) => `${encoded(column)}~${low}..${high}`;

/** Return a filter for words that the text of a column contains. */
export const wordsFilter = (column, words) => `${encoded(column)}^${words}`;

/** Return a filter for these items. */
export function itemsFilter(ids) {
  const spans = [];
  for (const id of [...ids].sort((one, other) => one - other)) {
    if (spans.at(-1)?.[1] === id - 1) spans.at(-1)[1] = id; else spans.push([id, id]);
  }
  return `id:${spans.map(([first, last]) => first === last ? first : `${first}-${last}`).join(',')}`;
}

/** Return a filter for the items of a collection. */
export const collectionFilter = name => `id@${name}`;

/** Return the column of a filter, with `value`, `words`, `spans`, `collection` or `low` and `high`; null for text that is no filter. */
export function parseFilter(text) {
  const [, column, kind, rest] = text.match(/^([^=~^:@]+)([=~^:@])(.*)$/s) ?? [];
  if (!column) return null;
  const name = decodeURIComponent(column);
  if (kind === '=') return {column: name, value: rest};
  if (kind === '^') return {column: name, words: rest};
  if (kind === '@') return rest && {column: name, collection: rest};
  if (kind === ':') return /^\d+(-\d+)?(,\d+(-\d+)?)*$/.test(rest) ? {column: name, spans: rest.split(',').map(span => span.split('-').map(Number))} : null;
  const [low = '', high = ''] = rest.split('..');
  return {column: name, low, high};
}

/** Return a filter in words: "make: Audi", "price: 10 to 20", "note contains blue", "collection: to check". */
export function filterWords(text) {
  const {column, value, words, spans, collection, low, high} = parseFilter(text);
  if (collection) return `collection: ${collection}`;
  if (spans) return plural(spans.reduce((count, [first, last = first]) => count + last - first + 1, 0), 'chosen image');
  if (words !== undefined) return `${column} contains ${words}`;
  if (value !== undefined) return `${column}: ${value}`;
  if (!high) return `${column}: from ${low}`;
  return low ? `${column}: ${low} to ${high}` : `${column}: up to ${high}`;
}

const quoted = text => `'${text.replaceAll("'", "''")}'`;
const name = column => `"${column.replaceAll('"', '""')}"`;

/** Return the condition that a column has a value, text or a number. */
export const equals = (column, value) => `${name(column)} = ${typeof value === 'number' ? value : quoted(value)}`;

const containing = word => `${quoted(`%${word.replace(/[%_\\]/g, '\\$&')}%`)} escape '\\'`;
function chosen(column, spans) {
  const single = spans.filter(span => span.length === 1), listed = single.length ? [`${column} in (${single.join(', ')})`] : [];
  return `(${[...listed, ...spans.filter(span => span.length > 1).map(([first, last]) => `${column} between ${first} and ${last}`)].join(' or ')})`;
}

const literal = text => /^-?[\d.]+$/.test(text) ? text : `date ${quoted(text)}`;

/** Return what a visitor wrote as a condition. */
export const writtenCondition = where => WORDS.test(where) ? `label like ${quoted(`%${where}%`)}` : where;

/**
 * Return all filters as one condition; empty for none.
 * @param {string[]} filters Values of one column are alternatives; all else must hold together.
 * @param {string} where A condition, or words that the label contains.
 */
export function condition(filters, where) {
  const values = new Map(), parts = [];
  for (const {column, value, words, spans, collection, low, high} of filters.map(parseFilter).filter(Boolean)) {
    if (collection) parts.push(`${name(column)} in collection ${quoted(collection)}`);
    else if (spans) parts.push(chosen(name(column), spans));
    else if (words !== undefined) parts.push(...words.split(/\s+/).filter(Boolean).map(word => `${name(column)} like ${containing(word)}`));
    else if (value !== undefined) values.set(column, [...(values.get(column) ?? []), quoted(value)]);
    else if (low || high) {
      if (low) parts.push(`${name(column)} >= ${literal(low)}`);
      if (high) parts.push(`${name(column)} <= ${literal(high)}`);
    }
  }
  for (const [column, listed] of values) parts.push(`${name(column)} in (${listed.join(', ')})`);
  if (where) parts.push(parts.length ? `(${writtenCondition(where)})` : writtenCondition(where));
  return parts.join(' and ');
}
