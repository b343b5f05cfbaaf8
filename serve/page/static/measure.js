// Start an evaluation; the focus stays where the button was.
let pressed = false;
element.addEventListener('click', event => {
  if (!event.target.closest('[data-evaluate]')) return;
  pressed = true;
  trigger('submit');
});
watch('value', () => {
  if (pressed) element.querySelector('[tabindex], button')?.focus();
  pressed = false;
});
