// A panel that is folded up. It is not part of the template, because Gradio would fold it when it renders.
// `made` holds the component's value, and keeps the focus when that changes.
const details = document.createElement('details');
details.innerHTML = element.querySelector('template').innerHTML;
element.append(details);
const made = details.querySelector('.made');
watch('value', () => {
  const held = made.contains(document.activeElement) && document.activeElement.textContent;
  made.innerHTML = props.value;
  if (held === false) return;
  const turns = [...made.querySelectorAll('nav button:enabled')];
  const same = turns.find(button => button.textContent === held) || turns[0];
  (same || made.querySelector('[tabindex]') || made).focus();
});
