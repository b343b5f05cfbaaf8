// Hits, or items, as a table in a file.

/** Return a cell of a CSV file; text that a spreadsheet would evaluate gets an apostrophe in front. */
function cell(value) {
  const text = String(value ?? '');
  const number = /^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text);
  const safe = !number && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
}

/** Return hits or items as CSV, with a column for each name of the metadata; hits have a rank and a similarity. */
export function csv(hits) {
  const columns = [...new Set(hits.flatMap(hit => Object.keys(hit.metadata)))];
  const ranked = hits.some(hit => hit.score !== undefined);
  const calibrated = hits.some(hit => (hit.probability ?? null) !== null);
  const head = [...(ranked ? ['Rank', 'Similarity'] : []), ...(calibrated ? ['Probability'] : []), 'Label', 'Item', ...columns, 'Key'];
  const rows = hits.map((hit, index) => [...(ranked ? [index + 1, hit.score] : []), ...(calibrated ? [hit.probability] : []),
    hit.label, hit.id, ...columns.map(name => hit.metadata[name]), hit.key]);
  return [head, ...rows].map(row => row.map(cell).join(',') + '\r\n').join('');
}

/** Save a text as a file of the visitor. */
export function save(text, name, type) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
