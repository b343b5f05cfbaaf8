// The gallery's images in pages, with a filter. The filter of an answer is that of its images.
const form = element.querySelector('form');
let typed = false, page = 0;
let requested = null;  // the last filter; another answer, such as that of the opening tab, may arrive after its own
const request = where => {
  requested = where.trim();
  triggerLatest('submit', {where, page});
};
form.addEventListener('input', () => { typed = true; });
watch('value', () => {
  const shown = element.querySelector('[data-where]');
  if (!shown || sentAt) return;
  if (requested !== null && shown.dataset.where !== requested) {
    triggerLatest('submit', {where: requested, page});
    requested = null;  // once
    return;
  }
  page = Number(shown.dataset.number);
  if (!typed) form.where.value = shown.dataset.where;
  form.where.placeholder = shown.dataset.example;
});
document.addEventListener('lookalike:changed', () => request(requested ?? form.where.value));
form.addEventListener('submit', event => {
  event.preventDefault();
  typed = false;
  page = 0;
  request(form.where.value);
});
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-page]');
  if (!button) return;
  const {where, number} = element.querySelector('[data-where]').dataset;
  page = Math.max(0, page + Number(button.dataset.page) - Number(number));  // also while a page is awaited
  request(where);
  form.scrollIntoView({block: 'nearest'});
});
