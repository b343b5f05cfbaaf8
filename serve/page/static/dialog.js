// The dialog that shows one image. It is not part of the template, because Gradio would close it when it renders.
// Closing it clears the value, so that the same image can be shown again.
const dialog = document.createElement('dialog');
dialog.id = 'dialog';
dialog.setAttribute('aria-labelledby', 'detail-title');
element.append(dialog);
let comparing = false, late = false;  // late: the dialog was closed before the answer came
watch('value', () => {
  if (!props.value) return dialog.close();  // the image has been removed
  const unwanted = late;
  comparing = late = false;
  if (unwanted) { props.value = ''; return; }
  const pressed = dialog.contains(document.activeElement) && document.activeElement.ariaPressed;
  dialog.innerHTML = props.value;
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector(pressed ? '[aria-pressed]' : '[data-close]') || dialog).focus();
});
dialog.addEventListener('close', () => {
  late = comparing;
  props.value = '';
  dialog.replaceChildren();
});
const compare = (way, button, item) => {
  comparing = true;
  button.ariaBusy = 'true';
  trigger(way, {item: Number(item)});
};
const search = (way, item) => {
  dialog.close();
  document.getElementById('search-tab-button').click();
  trigger(way, {item: Number(item)});
};
dialog.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (event.target === dialog || (button && 'close' in button.dataset)) dialog.close();
  else if (button && button.dataset.search) search('submit', button.dataset.search);
  else if (button && button.dataset.include) search('include', button.dataset.include);
  else if (button && button.dataset.compare) compare('compare', button, button.dataset.compare);
  else if (button && button.dataset.show) compare('restore', button, button.dataset.show);
  else if (button && button.dataset.remove && confirmed(button)) trigger('remove', removal(button));
});
