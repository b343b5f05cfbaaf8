// Find near-duplicates, and remove them.
const form = details.querySelector('form');
form.addEventListener('submit', event => {
  event.preventDefault();
  trigger('submit', {score: Number(form.score.value), group_page: 0});
});
made.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  if (button.dataset.item) document.dispatchEvent(new CustomEvent('lookalike:open', {detail: {item: Number(button.dataset.item)}}));
  else if (button.dataset.groupPage) {
    trigger('turn', {...place(), group_page: Number(button.dataset.groupPage)});
    details.scrollIntoView({block: 'start'});
  }
  else if (button.dataset.remove && confirmed(button)) trigger('remove', removal(button));
});
