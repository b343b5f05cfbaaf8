// Confirm a removal by a second click on the same button; a double click does not count, and leaving the button
// cancels.
const confirmed = button => {
  if ('asked' in button.dataset) return performance.now() - Number(button.dataset.asked) > 500;
  const before = button.textContent;
  button.dataset.asked = performance.now();
  button.textContent = button.dataset.sure;
  button.focus();
  button.addEventListener('blur', () => {
    delete button.dataset.asked;
    button.textContent = before;
  }, {once: true});
  return false;
};
// The page of images and the groups of near-duplicates that are shown now.
const place = () => {
  const shown = document.querySelector('#browse [data-where]');
  const groups = document.querySelector('#duplicates [data-score]');
  return {where: shown ? shown.dataset.where : '', page: shown ? Number(shown.dataset.number) : 0,
          score: Number(groups?.dataset.score || 0), group_page: Number(groups?.dataset.number || 0)};
};
// The items that a button removes, with `place`.
const removal = button => ({
  ...place(), items: button.dataset.remove.split(' ').map(Number), of: button.dataset.of});
