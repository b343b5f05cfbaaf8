// Buttons that search with an item: they open the search tab, and `submit` names the item.
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-search]');
  if (!button) return;
  const tab = document.getElementById('search-tab-button');
  tab.click();
  tab.focus();  // the button that had it is hidden now
  trigger('submit', {item: Number(button.dataset.search)});
});
