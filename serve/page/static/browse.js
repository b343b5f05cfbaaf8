// The gallery's images in pages, with a filter. The filter of an answer is that of its images.
const form = element.querySelector('form');
let typed = false, page = 0;
form.addEventListener('input', () => { typed = true; });
watch('value', () => {
  const shown = element.querySelector('[data-where]');
  if (!shown || sentAt) return;
  page = Number(shown.dataset.number);
  if (!typed) form.where.value = shown.dataset.where;
  form.where.placeholder = shown.dataset.example;
});
form.addEventListener('submit', event => {
  event.preventDefault();
  typed = false;
  page = 0;
  triggerLatest('submit', {where: form.where.value, page});
});
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-page]');
  if (!button) return;
  const {where, number} = element.querySelector('[data-where]').dataset;
  page = Math.max(0, page + Number(button.dataset.page) - Number(number));  // also while a page is awaited
  triggerLatest('submit', {where, page});
  form.scrollIntoView({block: 'nearest'});
});
