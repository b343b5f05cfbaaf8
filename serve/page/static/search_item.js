// Buttons that search with an item: they open the search tab, which hears of it by an event of the document.
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-search]');
  if (!button) return;
  const tab = document.getElementById('search-tab-button');
  tab.click();
  tab.focus();  // the button that had it is hidden now
  document.dispatchEvent(new CustomEvent('lookalike:search', {detail: {item: Number(button.dataset.search)}}));
});
