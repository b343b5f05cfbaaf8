// Cards that open an item in the dialog: which hears of it by an event of the document.
element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) document.dispatchEvent(new CustomEvent('lookalike:open', {detail: {item: Number(card.dataset.item)}}));
});
