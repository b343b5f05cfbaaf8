"""What a click on a picture does, wherever it is shown: it opens it in large, or searches with it."""

# A click on a card, or Enter on it, tells the server which item it is.
PICK = """
element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) trigger('select', {item: Number(card.dataset.item)});
});
"""
# A button that names an item opens the search tab, and its component's `submit` says which item it is.
SEARCH = """
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-search]');
  if (!button) return;
  const tab = document.getElementById('search-tab-button');
  tab.click();
  tab.focus();  // what had it is out of sight now
  trigger('submit', {item: Number(button.dataset.search)});
});
"""
