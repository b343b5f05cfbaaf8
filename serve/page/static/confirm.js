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
const place = () => {
  const shown = document.querySelector('#browse [data-where]');
  const groups = document.querySelector('#duplicates [data-score]');
  return {where: shown ? shown.dataset.where : '', page: shown ? Number(shown.dataset.number) : 0,
          score: Number(groups?.dataset.score || 0), group_page: Number(groups?.dataset.number || 0)};
};
const wanted = button => ({
  ...place(), items: button.dataset.remove.split(' ').map(Number), of: button.dataset.of});
