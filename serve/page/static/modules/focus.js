// Where the focus goes: by the skip link to the content of the open tab; and if the button that was pressed is gone
// or disabled by what it did, to the one in its place, or to its part of the page.

const shown = element => Boolean(element?.getClientRects().length);

/** @param {Element} skip The button that skips to the content. */
export function keepFocus(skip) {
  skip.addEventListener('click', toContent);
  let pressed = null;
  document.addEventListener('click', event => {
    /** @type {HTMLButtonElement} */
    const control = /** @type {Element} */ (event.target).closest('main :is(button, summary)');
    pressed = control && {control, name: named(control), part: control.closest('section, [role=tabpanel]')};
  });
  new MutationObserver(() => {
    if (!pressed || pressed.control.isConnected && !pressed.control.disabled) return;
    if (![document.body, pressed.control].includes(document.activeElement)) return;
    const {name, part} = pressed;
    pressed = null;
    const same = [...part.querySelectorAll('button:enabled, summary')].find(other => shown(other) && named(other) === name);
    reach(same || (shown(part) && part.querySelector('button') ? part : content()));
  }).observe(document.body, {childList: true, subtree: true, attributeFilter: ['disabled']});
}

const named = control => control.tagName + control.textContent + control.ariaLabel;

/** @type {() => NodeListOf<HTMLElement>} */
const panels = () => document.querySelectorAll('[role=tabpanel]');

const content = () => [...panels()].filter(shown).map(panel => document.getElementById(panel.dataset.content))[0];

/** Put the focus on the content of the open tab. */
export const toContent = () => reach(content());

function reach(part) {
  part?.focus();
  if (!part || part === document.activeElement) return;
  part.tabIndex = -1;
  part.focus();
}
