// Copies of the page's <template> elements, and shorthands for elements.

/**
 * Return a copy of the template of that name.
 * @param {string} name
 * @returns {Root}
 */
export function clone(name) {
  /** @type {HTMLTemplateElement} */
  const template = document.querySelector(`template[data-name="${name}"]`);
  return template.content.firstElementChild.cloneNode(true);
}

/**
 * Return the element inside `root` that a template names with `data-part`.
 * @param {ParentNode} root
 * @param {string} name
 * @returns {Root}
 */
export const part = (root, name) => root.querySelector(`[data-part="${name}"]`);

/** Show an element, or hide it. */
export const show = (element, shown) => { element.hidden = !shown; };

/** Let a card of a grid of justified rows have the proportions of its picture, within bounds; a square if unknown. */
export function proportion(card, {width, height}) {
  card.style.setProperty('--ratio', width && height ? Math.min(Math.max(width / height, 0.75), 2.2).toFixed(3) : 1);
}

/** Return the parts of a name between which a line may break: after its separators. */
export const breakable = name => name.split(/(?<=[_/.-])(?=[^\s_/.-]{3})/).flatMap((piece, at) => at ? [document.createElement('wbr'), piece] : [piece]);

/** Return the options of a select for an order by a column, in either direction. */
export const orders = columns => columns.flatMap(column =>
  [['ascending', column], ['descending', `${column} desc`]].map(([way, value]) => new Option(`by ${column}, ${way}`, value)));

/** Return a count with its noun, such as "1,335 images". */
export const plural = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;

/**
 * Return a function that shows a sentence in the parts `status` and `again`: as a problem if it is one, with the button if it can be tried again.
 * @param {ParentNode} root
 */
export function statusLine(root) {
  const line = part(root, 'status');
  return (text, problem = false, again = false) => {
    line.textContent = text;
    line.classList.toggle('trouble', problem);
    show(part(root, 'again'), again);
  };
}
