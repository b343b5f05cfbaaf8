// Count the statistics when their panel is opened; a click on a label filters the images by it.
details.addEventListener('toggle', () => {
  if (!details.open) return;
  if (!made.firstChild) made.innerHTML = "<p role='status'>Counting …</p>";
  trigger('expand');
});
made.addEventListener('click', event => {
  const button = event.target.closest('button[data-filter]');
  if (!button) return;
  const browse = document.querySelector('#browse form');
  browse.where.value = button.dataset.filter;
  browse.requestSubmit();
  browse.scrollIntoView({block: 'start'});
  browse.where.focus({preventScroll: true});
});
