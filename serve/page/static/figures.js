// Open figures of the embeddings.
element.addEventListener('click', event => {
  const button = event.target.closest('[data-figure]');
  if (button) trigger('select', {of: button.ariaPressed === 'true' ? '' : button.dataset.figure});
});
