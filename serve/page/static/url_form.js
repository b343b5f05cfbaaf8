// Search with the image at a URL.
const form = element.querySelector('form');
form.addEventListener('submit', event => {
  event.preventDefault();
  const address = form.address.value.trim();
  if (address) trigger('submit', {address});
});
