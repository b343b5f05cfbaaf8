element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) trigger('select', {item: Number(card.dataset.item)});
});
