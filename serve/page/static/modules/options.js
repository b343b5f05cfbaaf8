// The options of a search that a visitor can choose, as the document of the page declares them.

/** @type {{name: string, label: string, low: ?number, high: ?number, isNumber: boolean}[]} */
export const OPTIONS = JSON.parse(document.getElementById('search-options').textContent);

/** Their values if nothing is chosen. */
export const UNCHOSEN = Object.fromEntries(OPTIONS.map(({name, isNumber}) => [name, isNumber ? null : '']));

/** The names of those that a state chooses. */
export const chosen = state => Object.keys(UNCHOSEN).filter(name => state[name] !== UNCHOSEN[name]);
