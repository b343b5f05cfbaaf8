element.addEventListener('click', event => {
  const button = event.target.closest('button[data-search]');
  if (!button) return;
  const tab = document.getElementById('search-tab-button');
  tab.click();
  tab.focus();  // what had it is out of sight now
  trigger('submit', {item: Number(button.dataset.search)});
});
