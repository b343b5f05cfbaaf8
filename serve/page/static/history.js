element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  if (button.dataset.item) want('submit', {item: Number(button.dataset.item)});
  else if (button.dataset.entry) want('repeat', {entry: Number(button.dataset.entry)});
});
