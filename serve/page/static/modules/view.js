// What is seen of a plane: its centre, and how large. Zoomed by the wheel or two fingers, moved by dragging.

const CLOSEST = 2000, WIDEST = 0.3;  // times the view of all points
const CLICK = 4;  // pixels that a click may move
const WHEEL = 0.002;  // of a step of the wheel

export class View {
  x = 0; y = 0; scale = 1;  // centre, and pixels of the screen for one unit
  #stage; #size = [1, 1]; #fitted = 1; #pointers = new Map(); #moved = 0; #handlers;

  /**
   * @param {Root} stage Takes the pointers.
   * @param {object} handlers
   * @param {() => void} handlers.change Called after every change.
   * @param {(place: [number, number]) => void} handlers.press Called with a place on the screen that is clicked.
   * @param {(place: [number, number] | null) => void} handlers.point Called with the place of a pointer that is not pressed.
   * @param {(event: PointerEvent) => boolean} handlers.takes Whether a press is for something else.
   */
  constructor(stage, handlers) {
    this.#stage = stage;
    this.#handlers = handlers;
    stage.addEventListener('wheel', event => {
      event.preventDefault();
      this.#zoom(Math.exp(-WHEEL * event.deltaY), placeOf(event, stage));
    }, {passive: false});
    stage.addEventListener('pointerdown', event => {
      if (event.target.closest('button') || handlers.takes(event)) return;
      stage.setPointerCapture(event.pointerId);
      this.#pointers.set(event.pointerId, placeOf(event, stage));
      if (this.#pointers.size === 1) this.#moved = 0;
    });
    stage.addEventListener('pointermove', event => this.#move(event));
    for (const name of ['pointerup', 'pointercancel']) stage.addEventListener(name, event => this.#end(event));
    stage.addEventListener('pointerleave', () => handlers.point(null));
  }

  /** Set the size of the screen, in pixels. */
  set size(size) {
    this.#size = size;
    this.#handlers.change();
  }

  /** Show a box of the plane, and a margin around it that is a share of the screen. */
  fit([left, top, right, bottom], margin) {
    const [width, height] = this.#size;
    [this.x, this.y] = [(left + right) / 2, (top + bottom) / 2];
    this.scale = this.#fitted = (1 - 2 * margin) * Math.min(width / Math.max(right - left, 1e-6), height / Math.max(bottom - top, 1e-6));
    this.#handlers.change();
  }

  /** Return the place of a point on the screen. */
  place(x, y) { return [this.#size[0] / 2 + (x - this.x) * this.scale, this.#size[1] / 2 - (y - this.y) * this.scale]; }

  /** Return the view as `Points.draw` takes it. */
  get transform() {
    const zoom = this.#size.map(size => 2 * this.scale / size);
    return {zoom, shift: [-this.x * zoom[0], -this.y * zoom[1]]};
  }

  #zoom(times, [left, top]) {
    const scale = Math.min(Math.max(this.scale * times, WIDEST * this.#fitted), CLOSEST * this.#fitted);
    const [right, up] = [left - this.#size[0] / 2, this.#size[1] / 2 - top];
    this.x += right / this.scale - right / scale;  // what is under the pointer stays there
    this.y += up / this.scale - up / scale;
    this.scale = scale;
    this.#handlers.change();
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId), now = placeOf(event, this.#stage);
    if (!before) {
      if (!this.#pointers.size && event.pointerType !== 'touch' && !event.buttons) this.#handlers.point(now);
      return;
    }
    this.#pointers.set(event.pointerId, now);
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    this.#moved += Math.hypot(dx, dy);
    const other = [...this.#pointers].find(([id]) => id !== event.pointerId)?.[1];
    const share = other ? 0.5 : 1;  // two fingers: the middle of them
    this.x -= share * dx / this.scale;
    this.y += share * dy / this.scale;
    if (!other) return this.#handlers.change();
    const apart = place => Math.max(1, Math.hypot(place[0] - other[0], place[1] - other[1]));
    this.#zoom(apart(now) / apart(before), [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2]);
  }

  #end(event) {
    const place = this.#pointers.get(event.pointerId);
    if (!this.#pointers.delete(event.pointerId) || this.#pointers.size) return;
    if (event.type === 'pointerup' && this.#moved < CLICK) this.#handlers.press(place);
  }
}

/**
 * Return the place of an event, in pixels of an element.
 * @param {MouseEvent} event
 * @param {Element} element
 * @returns {[number, number]}
 */
export function placeOf(event, element) {
  const {left, top} = element.getBoundingClientRect();
  return [event.clientX - left - element.clientLeft, event.clientY - top - element.clientTop];
}
