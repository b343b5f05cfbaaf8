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

/** Return the width of the card of an image divided by the height of its picture: within bounds, 1 if unknown. */
export const ratioOf = ({width, height}) => width && height ? Math.round(1000 * Math.min(Math.max(width / height, 0.75), 2.2)) / 1000 : 1;

/** Let a card of a grid of justified rows have the proportions of its picture. */
export const proportion = (card, item) => card.style.setProperty('--ratio', String(ratioOf(item)));

/** Return the last part of a key, which is a path for most images. */
export const fileName = key => key.split('/').at(-1).replace(/#xywh=[^#]*$/, '');  // without the box of a part

/** Return the parts of a name between which a line may break: after its separators. */
export const breakable = name => name.split(/(?<=[_/.-])(?=[^\s_/.-]{3})/).flatMap((piece, at) => at ? [document.createElement('wbr'), piece] : [piece]);

/** Return the options of a select for an order by a column, in either direction. */
export const orders = columns => columns.flatMap(column =>
  [['ascending', column], ['descending', `${column} desc`]].map(([way, value]) => new Option(`by ${column}, ${way}`, value)));

/** Return a count with its noun, such as "1,335 images". */
export const plural = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;

/** Return a share in percent; no line breaks before the sign. */
export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)}\u00a0%`;

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
