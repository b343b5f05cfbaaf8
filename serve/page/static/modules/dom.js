// Copies of the page's <template> elements, and shorthands for elements.

/** Return a copy of the template of that name. */
export function clone(name) {
  const template = document.querySelector(`template[data-name="${name}"]`);
  return template.content.firstElementChild.cloneNode(true);
}

/** Return the element inside `root` that a template names with `data-part`. */
export const part = (root, name) => root.querySelector(`[data-part="${name}"]`);

/** Show an element, or hide it. */
export const show = (element, shown) => { element.hidden = !shown; };

/** Return a count with its noun, such as "1,335 images". */
export const plural = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;
