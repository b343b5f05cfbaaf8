// Hits in bands by their probabilities, which only a calibrated gallery has: docs/calibration.md says what they mean.

import {clone, part} from './dom.js';
import {GALLERY} from './options.js';

/**
 * The bands, the highest first: at least this probability. Three of four hits at the least show the same thing in
 * the first one, one of four in the second, and fewer than one of ten in the last.
 */
export const BANDS = [
  {least: 0.75, name: 'The same', says: '75\u00a0% or more'},
  {least: 0.25, name: 'Similar', says: '25 to 75\u00a0%'},
  {least: 0.1, name: 'Only related', says: '10 to 25\u00a0%'},
  {least: 0, name: 'Nothing like it below', says: 'less than 10\u00a0%', last: true},
];

/** What is known of the probabilities of this gallery, as the API describes it; null for nothing. */
export const known = {calibration: GALLERY?.calibration ?? null};

/** Return the band of a probability. */
export const bandOf = probability => BANDS.find(({least}) => probability >= least);

/** Return the band of a probability in words, as a part of a sentence. */
export const bandName = probability => bandOf(probability).last ? 'nothing like it' : bandOf(probability).name.toLowerCase();

/**
 * Return hits with functions that draw the headings of the bands that begin among them. There are none if hits have no
 * probabilities, or are in another order than theirs.
 * @param {any[]} hits All hits.
 * @param {number} from The first one to return.
 */
export function withBands(hits, from) {
  const ordered = hits.every((hit, at) => hit.probability !== null && (!at || hit.probability <= hits[at - 1].probability));
  return hits.slice(from).flatMap((hit, index) => {
    const at = from + index, band = ordered && bandOf(hit.probability);
    return ordered && !(at && band === bandOf(hits[at - 1].probability)) ? [() => heading(band, at), hit] : [hit];
  });
}

function heading(band, at) {
  const row = clone('band');
  row.classList.toggle('last', Boolean(band.last));
  part(row, 'name').textContent = band.last && !at ? 'Nothing like it in this gallery' : band.name;
  part(row, 'says').textContent = `probability ${band.says}` + (at || known.calibration?.reliable !== false ? ''
    : `. Not reliable: it is wrong by ${points(known.calibration.error)} on average`);
  return row;
}

/** Return an error of probabilities in percentage points. */
export const points = error => `${(100 * error).toFixed(1)} percentage points`;
