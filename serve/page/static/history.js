// Repeat a search of the history, or begin with an example.
element.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (!button) return;
  if (button.dataset.item) triggerLatest('submit', {item: Number(button.dataset.item)});
  else if (button.dataset.entry) triggerLatest('repeat', {entry: Number(button.dataset.entry)});
});
