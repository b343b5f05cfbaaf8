// Cards that open an item in the dialog: `select` names the item.
element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) trigger('select', {item: Number(card.dataset.item)});
});
