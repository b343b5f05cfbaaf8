// A set of items that is selected; it dispatches `change` when it changes.

export class Selection extends EventTarget {
  #ids = new Set();

  constructor() {
    super();
    document.addEventListener('lookalike:changed', ({detail: {removed}}) => { if (removed.some(id => this.has(id))) this.remove(removed); });
  }

  get ids() { return [...this.#ids]; }

  get size() { return this.#ids.size; }

  has(id) { return this.#ids.has(id); }

  add(ids) { for (const id of ids) this.#ids.add(id); this.#notify(); }

  remove(ids) { for (const id of ids) this.#ids.delete(id); this.#notify(); }

  toggle(id) { if (!this.#ids.delete(id)) this.#ids.add(id); this.#notify(); }

  replace(ids) { this.#ids = new Set(ids); this.#notify(); }

  clear() { if (this.size) this.replace([]); }

  #notify() { this.dispatchEvent(new Event('change')); }
}
