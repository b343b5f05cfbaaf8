// The address bar follows the search; other parameters of the address stay. Another query is a new entry in the
// browser's history: the server repeats the search from its address.
let shown = location.search, navigated = false;
const query = params => String(['id', 'region', 'q', 'text', 'without'].map(name => params.getAll(name)));
watch('value', () => {
  if (sentAt) return;  // the visitor has already gone to another address
  const returned = navigated;
  navigated = false;
  if (element.querySelector('[data-kept]')) return;  // the search has not changed
  const params = new URLSearchParams(location.search);
  const before = query(params);
  const names = ['id', 'region', 'q', 'k', 'where', 'min_score', 'min_probability', 'group_by', 'text',
    'without'];
  for (const name of names) params.delete(name);
  const found = element.querySelector('[data-address]');
  for (const [name, value] of new URLSearchParams(found ? found.dataset.address : '')) {
    params.append(name, value);
  }
  const address = params.size ? '?' + String(params).replaceAll('%2C', ',') : location.pathname;
  const failed = !found && element.querySelector('.trouble');  // Back would fail again
  if (failed || returned || before === query(params)) history.replaceState(history.state, '', address);
  else history.pushState(history.state, '', address);
  shown = location.search;
});
addEventListener('popstate', () => {
  if (location.search === shown) return;
  shown = location.search;
  navigated = true;
  triggerLatest('navigate', {address: location.search});
});
