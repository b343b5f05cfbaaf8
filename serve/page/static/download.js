// Download the results that are on the page, as CSV or JSON.
// A spreadsheet evaluates cells that begin like a formula: such text gets an apostrophe in front.
const cell = text => {
  const number = /^-?\d+(\.\d+)?(e[+-]?\d+)?$/i.test(text);
  const safe = !number && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
  return /[",\r\n]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
};
const table = () => [...element.querySelectorAll('table tr')]
  .map(row => [...row.cells].map(one => cell(one.textContent)).join(',')).join('\r\n') + '\r\n';
const objects = () =>
  JSON.stringify(JSON.parse(element.querySelector('[data-hits]').dataset.hits), null, 2) + '\n';
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-save]');
  if (!button) return;
  const kind = button.dataset.save;
  const blob = kind === 'csv' ? new Blob([table()], {type: 'text/csv'})
    : new Blob([objects()], {type: 'application/json'});
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = 'results.' + kind;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});
