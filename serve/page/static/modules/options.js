// What the document of the page declares: the options of a search that a visitor can choose, and the gallery.

/** @type {{name: string, label: string, low: ?number, high: ?number, isNumber: boolean}[]} */
export const OPTIONS = JSON.parse(document.getElementById('search-options').textContent);

/** The description of the gallery as it was when the page was opened; null if the server could not read it. */
export const GALLERY = JSON.parse(document.getElementById('gallery')?.textContent ?? 'null');

/** The values of the options if nothing is chosen. */
export const UNCHOSEN = Object.fromEntries(OPTIONS.map(({name, isNumber}) => [name, isNumber ? null : '']));

/** The names of those that a state chooses. */
export const chosen = state => Object.keys(UNCHOSEN).filter(name => state[name] !== UNCHOSEN[name]);
