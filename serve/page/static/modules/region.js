// A rectangle on a picture: the region to search with. It is drawn with mouse or finger, or moved by keys.
// A region is left, top, right, bottom in fractions of the picture; null is all of it.

const STEP = 0.02, LEAST = 0.02, CLICK = 6, PAUSE = 700;
const between = (value, low, high) => Math.min(Math.max(value, low), high);

export class Region {
  #frame; #shape; #change; #region = null; #sent = null; #drag = null; #timer = 0;

  /**
   * @param {Element} frame Encloses the picture exactly, and contains a button `.region` with corners.
   * @param {(region: number[] | null) => void} change Receives a region that was chosen.
   */
  constructor(frame, change) {
    this.#frame = frame;
    this.#shape = frame.querySelector('.region');
    this.#change = change;
    frame.addEventListener('dragstart', event => event.preventDefault());
    frame.addEventListener('pointerdown', event => this.#press(event));
    frame.addEventListener('pointermove', event => this.#move(event));
    frame.addEventListener('pointerup', () => this.#release(true));
    frame.addEventListener('pointercancel', () => this.#release(false));
    this.#shape.addEventListener('keydown', event => this.#key(event));
  }

  /** Show a region, unless the visitor is changing it. */
  draw(region) {
    if (this.#drag || this.#timer) return;
    this.#region = region;
    this.#sent = String(region);
    this.#paint();
  }

  #paint() {
    const [left, top, right, bottom] = this.#region || [0, 0, 1, 1];
    Object.assign(this.#shape.style, {left: 100 * left + '%', top: 100 * top + '%',
      width: 100 * (right - left) + '%', height: 100 * (bottom - top) + '%'});
    this.#shape.classList.toggle('chosen', Boolean(this.#region));
  }

  #send() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#region) this.#region = this.#region.map(value => Math.round(1e4 * value) / 1e4);
    if (String(this.#region) === this.#sent) return;
    this.#sent = String(this.#region);
    this.#change(this.#region);
  }

  #place(event) {
    const box = this.#frame.getBoundingClientRect();
    return [between((event.clientX - box.left) / box.width, 0, 1), between((event.clientY - box.top) / box.height, 0, 1)];
  }

  #press(event) {
    if (event.button || !event.isPrimary) return;
    event.preventDefault();
    this.#shape.focus({preventScroll: true, focusVisible: false});
    const corner = event.target.closest('[data-corner]')?.dataset.corner;
    const before = this.#region;
    this.#drag = {start: this.#place(event), at: [event.clientX, event.clientY], before, moves: false, moved: false};
    if (before && corner) {  // drawn again from the opposite corner
      this.#drag.start = [before[corner.includes('left') ? 2 : 0], before[corner.includes('top') ? 3 : 1]];
    } else this.#drag.moves = Boolean(before && event.target.closest('.region'));
    this.#frame.setPointerCapture(event.pointerId);
  }

  #move(event) {
    const drag = this.#drag;
    if (!drag) return;
    drag.moved ||= Math.hypot(event.clientX - drag.at[0], event.clientY - drag.at[1]) >= CLICK;
    if (!drag.moved) return;
    const [x, y] = this.#place(event), [u, v] = drag.start;
    this.#region = drag.moves ? shifted(drag.before, x - u, y - v)
      : [Math.min(x, u), Math.min(y, v), Math.max(x, u), Math.max(y, v)];
    this.#paint();
  }

  #release(keep) {
    if (!this.#drag) return;
    const {before, moved} = this.#drag, region = this.#region;
    const small = region && (region[2] - region[0] < LEAST || region[3] - region[1] < LEAST);
    if (!keep || !moved || small) this.#region = before;
    this.#drag = null;
    this.#paint();
    this.#send();
  }

  #key(event) {
    if (event.key === 'Escape') {
      event.stopPropagation();
      if (this.#drag) return this.#release(false);
      this.#region = null;
      this.#paint();
      return this.#send();
    }
    if (event.key === 'Enter') return this.#send();
    const [across, down] = {ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP]}[event.key] || [];
    if (across === undefined) return;
    event.preventDefault();
    if (!this.#region) this.#region = [0.2, 0.2, 0.8, 0.8];
    else if (event.shiftKey) {
      const [left, top, right, bottom] = this.#region;
      this.#region = [left, top, between(right + across, left + 2 * LEAST, 1), between(bottom + down, top + 2 * LEAST, 1)];
    } else this.#region = shifted(this.#region, across, down);
    this.#paint();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#send(), PAUSE);  // when no key is pressed for a while
  }
}

/** Return a region moved within the picture. */
function shifted([left, top, right, bottom], across, down) {
  const x = between(across, -left, 1 - right), y = between(down, -top, 1 - bottom);
  return [left + x, top + y, right + x, bottom + y];
}
