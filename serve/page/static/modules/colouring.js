// Colours for the values of a column: one for each text, or the steps of a scale for numbers and dates.

import {classColours, scaleColours, VERDICTS} from './palette.js';

const STEPS = 8;
const CROWDED = 0.6;  // share of the values in one step, beyond which steps have equal numbers of images instead
const TEXTS = 200;  // that have a colour of their own
const OTHER = 'other values', MISSING = 'no value';
const DATE = /^\d{4}-\d\d-\d\d/;
const DAY = 86_400_000;  // milliseconds

/**
 * Return the categories of points.
 * @param {(string | number | null)[]} values The value of each point.
 * @param {'light' | 'dark'} theme
 * @returns {{category: number[], names: string[], colours: string[]}} The place of each point's category in `names`,
 *   which ascend for numbers and dates; the last one is that of points without a value.
 */
export function colouring(values, theme) {
  const known = values.filter(value => value !== null), grey = VERDICTS[theme][2];
  const dates = known.length > 0 && known.every(value => typeof value === 'string' && DATE.test(value) && !Number.isNaN(instant(value)));
  const scaled = known.length > 0 && (dates || known.every(value => typeof value === 'number'));
  const {names, place} = scaled ? steps(dates ? known.map(instant) : known, dates) : texts(known);
  const category = values.map(value => value === null ? names.length : place(dates && scaled ? instant(value) : value));
  const colours = scaled ? scaleColours(names.length) : classColours(names.length, theme).map((colour, at) => names[at] === OTHER ? grey : colour);
  return {category, names: [...names, MISSING], colours: [...colours.slice(0, names.length), grey]};
}

const instant = text => Date.parse(/[T ]/.test(text) && !/(Z|[+-]\d\d:\d\d)$/.test(text) ? `${text.replace(' ', 'T')}Z` : text.replace(' ', 'T'));

function texts(known) {
  const counts = new Map();
  for (const value of known) counts.set(value, (counts.get(value) ?? 0) + 1);
  const frequent = [...counts].sort((one, other) => other[1] - one[1]).slice(0, TEXTS).map(([value]) => value).sort();
  const names = [...frequent.map(String), ...(counts.size > TEXTS ? [OTHER] : [])];
  const places = new Map(frequent.map((value, at) => [value, at]));
  return {names, place: value => places.get(value) ?? frequent.length};
}

function steps(numbers, dates) {
  const sorted = [...numbers].sort((one, other) => one - other), [low, high] = [sorted[0], sorted.at(-1)];
  let edges = dates ? evenly(low, high) : round(low, high);
  const fullest = Math.max(...edges.slice(1).map((edge, at) => below(sorted, edge) - below(sorted, edges[at])));
  if (fullest > CROWDED * sorted.length && quantiles(sorted).length > STEPS / 2) edges = quantiles(sorted);
  const write = dates ? (edge => new Date(edge).toISOString().slice(0, high - low < 3 * DAY ? 16 : 10).replace('T', ' ')) : (edge => String(Number(edge.toPrecision(6))));
  const inner = edges.slice(1, -1);  // a value is in the step that its lower edge begins
  const names = edges.length < 2 ? [write(low)] : edges.slice(1).map((edge, at) => `${write(edges[at])} to ${write(edge)}`);
  return {names, place: value => below(inner, value, true)};
}

const evenly = (low, high) => low === high ? [low] : Array.from({length: STEPS + 1}, (_, at) => low + (high - low) * at / STEPS);

/** Return edges that are multiples of 1, 2 or 5 times a power of ten. */
function round(low, high) {
  if (low === high) return [low];
  const least = (high - low) / STEPS, power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(times => times * power).find(size => size >= least * 0.999);
  const first = Math.floor(low / step), last = Math.max(Math.ceil(high / step), first + 1);
  return Array.from({length: last - first + 1}, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

const quantiles = sorted => [...new Set(Array.from({length: STEPS + 1}, (_, at) => sorted[Math.min(sorted.length - 1, Math.floor(at * sorted.length / STEPS))]))];

/** Return how many of ascending numbers are below one, or, inclusive, not above it. */
function below(sorted, number, inclusive = false) {
  let [first, last] = [0, sorted.length];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (sorted[middle] < number || inclusive && sorted[middle] === number) first = middle + 1; else last = middle;
  }
  return first;
}
