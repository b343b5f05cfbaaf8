// Keyboard navigation that Gradio's markup lacks: the skip link, arrow keys on the tabs, and the focus. An answer
// may replace or disable the button that was pressed: the focus goes to the button in its place, or to its part.
const contents = element.querySelector('button').dataset.content.split(' ');
const reach = part => {
  part?.focus();
  if (!part || part === document.activeElement) return;
  part.tabIndex = -1;
  part.focus();
};
const shown = part => Boolean(part && part.getClientRects().length);
const content = () => contents.map(id => document.getElementById(id)).find(shown);
element.addEventListener('click', () => reach(content()));

document.addEventListener('keydown', event => {
  const tab = event.target.closest('[role=tab]');
  if (!tab) return;
  const tabs = [...tab.parentElement.querySelectorAll('[role=tab]')];
  const here = tabs.indexOf(tab);
  const to = {ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: -1}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = tabs.at(to % tabs.length);
  next.focus();
  next.click();
});

let pressed;
const named = control => control.tagName + control.textContent + control.ariaLabel;
document.addEventListener('click', event => {
  const control = event.target.closest('.html-container :is(button, summary)');
  pressed = control && {control, name: named(control), part: control.closest('.block')};
});
new MutationObserver(() => {
  for (const panel of document.querySelectorAll('[role=tabpanel]:not([aria-labelledby])')) {
    panel.setAttribute('aria-labelledby', panel.id + '-button');
  }
  if (!pressed || pressed.control.isConnected && !pressed.control.disabled) return;
  if (![document.body, pressed.control].includes(document.activeElement)) return;
  const {name, part} = pressed;
  pressed = null;
  const same = [...part.querySelectorAll('button:enabled, summary')].find(other => named(other) === name);
  reach(same || (shown(part) && part.querySelector('button') ? part : content()));
}).observe(document.body, {childList: true, subtree: true, attributeFilter: ['disabled']});
