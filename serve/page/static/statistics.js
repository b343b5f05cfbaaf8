// Count the statistics when their panel is opened; a click on a label filters the images by it.
details.addEventListener('toggle', () => {
  if (!details.open) return;
  if (!made.firstChild) made.innerHTML = "<p role='status'>Counting …</p>";
  trigger('expand');
});
made.addEventListener('click', event => {
  const button = event.target.closest('button[data-filter]');
  if (!button) return;
  document.dispatchEvent(new CustomEvent('lookalike:filter', {detail: {where: button.dataset.filter}}));
});
