// Filters as conditions of the expression language, see docs/filters.md.
// A filter is the text of the address: `label=red` for a value, `price~10..20` for a range.

const WORDS = /^(?!.*\b(?:and|or|not|in|like|is|between)\b)[\p{L}\p{N}\s_-]+$/iu;

const encoded = column => encodeURIComponent(column).replaceAll('~', '%7E');

/** Return a filter for a value of a column. */
export const valueFilter = (column, value) => `${encoded(column)}=${value}`;

/** Return a filter for a range of numbers or dates; an empty end is open. */
export const rangeFilter = (column, low, high) => `${encoded(column)}~${low}..${high}`;

/** Return the column of a filter, with `value` or with `low` and `high`; null for text that is no filter. */
export function parseFilter(text) {
  const [, column, kind, rest] = text.match(/^([^=~]+)([=~])(.*)$/s) ?? [];
  if (!column) return null;
  const name = decodeURIComponent(column);
  if (kind === '=') return {column: name, value: rest};
  const [low = '', high = ''] = rest.split('..');
  return {column: name, low, high};
}

/** Return a filter in words: "make: Audi", "price: 10 to 20". */
export function filterWords(text) {
  const {column, value, low, high} = parseFilter(text);
  if (value !== undefined) return `${column}: ${value}`;
  if (!high) return `${column}: from ${low}`;
  return low ? `${column}: ${low} to ${high}` : `${column}: up to ${high}`;
}

const quoted = text => `'${text.replaceAll("'", "''")}'`;
const name = column => `"${column.replaceAll('"', '""')}"`;
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
  for (const {column, value, low, high} of filters.map(parseFilter).filter(Boolean)) {
    if (value !== undefined) values.set(column, [...(values.get(column) ?? []), quoted(value)]);
    else if (low || high) {
      if (low) parts.push(`${name(column)} >= ${literal(low)}`);
      if (high) parts.push(`${name(column)} <= ${literal(high)}`);
    }
  }
  for (const [column, listed] of values) parts.push(`${name(column)} in (${listed.join(', ')})`);
  if (where) parts.push(parts.length ? `(${writtenCondition(where)})` : writtenCondition(where));
  return parts.join(' and ');
}
