// Justified rows: cards of one height side by side, as wide as their list. The last row before a heading or the end is not stretched.

const CAPTION = 60;  // pixels below a picture, until one was measured

/**
 * A row. `end` is behind its last entry; `side` is the height of its pictures in pixels, 0 for a heading; `full` whether it is as wide
 * as the list; `height` that of the whole row, null until it was measured.
 * @typedef {{first: number, end: number, side: number, full: boolean, height: ?number}} Row
 */

/** The rows of a list, and where they are. All lengths are in pixels, from the top of the list. */
export class Rows {
  /** @type {Row[]} */
  #rows = [];
  /** @type {number[]} */
  #ratios = [];
  #room = {width: 0, side: 0, gap: 0, between: 0};
  #caption = CAPTION;

  get width() { return this.#room.width; }

  /** Remove all entries. */
  clear() { [this.#rows, this.#ratios] = [[], []]; }

  /** Add entries: the width of each card divided by its height, 0 for a heading. */
  add(ratios) {
    for (const ratio of ratios) this.#ratios.push(ratio);
    this.#break(this.#rows.pop()?.first ?? 0);  // the last row may have had room
  }

  /**
   * Make other rows of the same entries.
   * @param {{width: number, side: number, gap: number, between: number}} room Width of the list, usual height of a picture,
   *   and distance of two cards and of two rows.
   */
  fit(room) {
    this.#room = room;
    this.#rows = [];
    this.#break(0);
  }

  #break(from) {
    const ratios = this.#ratios, {width, side, gap} = this.#room;
    for (let at = from; at < ratios.length;) {
      const first = at;
      let sum = ratios[at++], gaps = 0;
      if (sum) while (ratios[at] && (sum + ratios[at]) * side + gaps + gap <= width) { sum += ratios[at++]; gaps += gap; }
      const stretched = sum && (width - gaps) / sum, full = Boolean(ratios[at]) || stretched <= side;
      this.#rows.push({first, end: at, side: full ? stretched : side, full, height: null});
    }
  }

  /** Return the rows that have these entries. */
  of(from, to) { return to > from ? this.#rows.slice(this.#at(from), this.#at(to - 1) + 1) : []; }

  /** Take down the heights of rows; they are what others that were not measured are thought to have. */
  measured(rows, heights) {
    rows.forEach((row, at) => { row.height = heights[at]; });
    const captions = rows.filter(row => row.side).map(row => row.height - row.side);
    if (captions.length) this.#caption = captions.reduce((sum, one) => sum + one) / captions.length;
  }

  /** Return where the row of an entry begins; that behind the last entry is where another row would begin. */
  top(entry) {
    let top = 0;
    for (const row of this.#rows) {
      if (row.end > entry) break;
      top += this.#whole(row);
    }
    return top;
  }

  /** Return how high all rows are, with the distance to another one. */
  get height() { return this.top(Infinity); }

  /** Return the entries whose rows are, as far as is known, between two heights, as those before and behind them: `[from, to]`. */
  between(top, bottom) {
    const rows = this.#rows;
    let at = 0, y = 0;
    while (at < rows.length - 1 && y + this.#whole(rows[at]) < top) y += this.#whole(rows[at++]);
    const from = rows[at]?.first ?? 0;
    while (at < rows.length - 1 && y + this.#whole(rows[at]) < bottom) y += this.#whole(rows[at++]);
    return [from, rows[at]?.end ?? 0];
  }

  /**
   * Return the entry above or below a card: in the next row of cards, the one whose middle is nearest.
   * @param {number} entry
   * @param {1 | -1} step 1 for the row below.
   * @returns {number} -1 if there is none.
   */
  beside(entry, step) {
    let at = this.#at(entry);
    const middle = this.left(entry) + this.#width(entry) / 2;
    do at += step; while (this.#rows[at]?.side === 0);
    const away = other => Math.abs(this.left(other) + this.#width(other) / 2 - middle);
    const row = this.#rows[at], others = row ? Array.from({length: row.end - row.first}, (_, n) => row.first + n) : [];
    return others.reduce((best, other) => best < 0 || away(other) < away(best) ? other : best, -1);
  }

  /** Return how far a card is from the left edge. */
  left(entry) {
    let left = 0;
    for (let at = this.#rows[this.#at(entry)].first; at < entry; at++) left += this.#width(at) + this.#room.gap;
    return left;
  }

  #width(entry) { return this.#ratios[entry] * this.#rows[this.#at(entry)].side; }

  #whole({side, height}) { return (height ?? side + this.#caption) + this.#room.between; }

  /** Return the index of the row of an entry. */
  #at(entry) {
    let low = 0, high = this.#rows.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#rows[middle].first <= entry) low = middle; else high = middle - 1;
    }
    return low;
  }
}
