// Open figures of the embeddings, and select points of the map with the pointer or the arrow keys.
element.addEventListener('click', event => {
  const button = event.target.closest('[data-figure]');
  if (button) trigger('select', {of: button.ariaPressed === 'true' ? '' : button.dataset.figure});
});
let selection = null;
const onMap = () => {
  const map = element.querySelector('.map');
  if (!map) return;
  if (map === selection?.map) { selection.reset(); return; }
  const group = map.querySelector('g');
  const show = i => {
    const mark = group.children[i], text = element.querySelector('#pointed');
    const shown = text.nextElementSibling;
    shown.hidden = !mark;
    text.textContent = mark ? `${mark.dataset.label}, item ${mark.dataset.item}` : 'No image is selected.';
    group.classList.toggle('lit', Boolean(mark));
    for (const one of group.children) {
      one.classList.toggle('on', mark?.dataset.class === one.dataset.class);
    }
    if (!mark) return;
    const image = shown.querySelector('img');
    image.src = image.getAttribute('src').replace(/\d+(?=\/thumbnail)/, mark.dataset.item);
    image.alt = mark.dataset.label;
    shown.querySelector('button').dataset.search = mark.dataset.item;
  };
  selection = {map, ...navigateMarks(map, group, show)};
  const pick = () => { if (map.querySelector('.at')) element.querySelector('.card button').click(); };
  map.addEventListener('click', event => { if (event.pointerType === 'mouse') pick(); });
  map.addEventListener('keydown', event => { if (event.key === 'Enter') pick(); });
};
watch('value', onMap);
