// Open figures of the embeddings; the one that is open is in the address.
const shown = () => element.querySelector('[data-figure][aria-pressed=true]')?.dataset.figure ?? '';
const open = figure => { if (figure !== shown()) trigger('select', {of: figure}); };
element.addEventListener('click', event => {
  const button = event.target.closest('[data-figure]');
  if (!button) return;
  const figure = button.ariaPressed === 'true' ? '' : button.dataset.figure;
  open(figure);
  document.dispatchEvent(new CustomEvent('lookalike:state', {detail: {figure}}));
});
document.addEventListener('lookalike:moved', ({detail: {tab, figure}}) => { if (tab === 'evaluation') open(figure); });
open(new URLSearchParams(location.search).get('figure') ?? '');
