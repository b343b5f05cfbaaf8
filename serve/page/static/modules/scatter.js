// A map of points on a plane: zoom, drag, a lasso, and thumbnails of those in view, or of some among many.

import {part, show} from './dom.js';
import {Points} from './points.js';
import {placeOf, View} from './view.js';

const MOST_THUMBNAILS = 120;  // points in view that all have one; of more, some have a smaller one
const APART = 56;  // pixels between these, so that dots are seen between them
const TRIED = 5000;  // points that may get one
const NEAR = 12;  // pixels from the pointer to its point
const FADED = 0.07, OPAQUE = 0.85;
const OUTLINE = 4;  // pixels by which an outlined dot is larger
const MARGIN = 0.06;  // around all points: those at the edges are whole
const KEYS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

/** Whether the browser draws with WebGL. */
export const supported = () => Boolean(document.createElement('canvas').getContext('webgl'));

export class Scatter {
  /** Whether a drag draws a lasso in place of moving the map; with Shift held it always does. */
  lasso = false;
  #stage; #canvas; #thumbnails; #drawn; #view; #points = null; #colours = []; #outlined = []; #outlineColour = [0, 0, 0]; #at = -1; #handlers; #due = 0; #frame = 0; #path = null;

  /**
   * @param {HTMLElement} stage Has the parts `canvas`, `thumbnails` and `lasso`, a polygon, and gets the focus.
   * @param {object} handlers
   * @param {(point: number | null) => void} handlers.point Called with the point under the pointer or chosen by a key.
   * @param {(point: number) => void} handlers.open Called with a point that is pressed.
   * @param {(points: number[]) => void} handlers.enclose Called with the points inside a lasso.
   * @param {(point: number) => string} handlers.thumbnail Returns the address of a point's image.
   */
  constructor(stage, handlers) {
    this.#stage = stage;
    this.#canvas = part(stage, 'canvas');
    this.#thumbnails = part(stage, 'thumbnails');
    this.#handlers = handlers;
    this.#drawn = new Points(this.#canvas);
    this.#view = new View(stage, {
      change: () => this.#changed(),
      press: place => { const point = this.#nearest(place); if (point !== -1) handlers.open(point); },
      point: place => this.#over(place),
      takes: event => this.#begins(event),
    });
    stage.addEventListener('pointermove', event => this.#extend(event));
    for (const name of ['pointerup', 'pointercancel']) stage.addEventListener(name, event => this.#close(event));
    new ResizeObserver(([{contentRect: {width, height}}]) => this.#resize(width, height)).observe(stage);
    stage.addEventListener('keydown', event => this.#key(event));
    addEventListener('beforeprint', () => this.#render());  // what was drawn before is on the screen only
    this.#resize(stage.clientWidth, stage.clientHeight);
  }

  /**
   * Draw points: other points than before in whole, the same ones with the view that there is.
   * @param {{x: number[], y: number[], category: number[], lit: boolean[]}} points Places from -1 to 1; each point's
   *   colour is that of its category, and points that are not lit are faded.
   * @param {string[]} colours Of the categories, as `#rrggbb`.
   * @param {'light' | 'dark'} theme Of the background.
   */
  draw(points, colours, theme) {
    const same = this.#points?.x === points.x;
    this.#points = points;
    this.#colours = colours.map(rgb);
    this.#outlineColour = theme === 'dark' ? [255, 255, 255] : [0, 0, 0];
    this.#load();
    if (same) this.#changed(); else this.fit();
    this.#stage.ariaBusy = 'false';
  }

  /** Show all points. */
  fit() {
    const {x, y} = this.#points;
    this.#view.fit([least(x), least(y), most(x), most(y)], MARGIN);
  }

  /** Outline these points. */
  outline(points) {
    this.#outlined = points;
    this.#load();
    this.#changed();
  }

  /** Return the place of a point on the screen, relative to the stage. */
  place(point) { return this.#view.place(this.#points.x[point], this.#points.y[point]); }

  /** Give the graphics card the points; those that are lit, and outlined ones, lie above the others. */
  #load() {
    const {x, y, category, lit} = this.#points;
    const all = [...x.keys()], above = all.filter(point => lit[point]), below = all.filter(point => !lit[point]);
    const layer = (points, extra, colour) => ({extra, places: Float32Array.from(points.flatMap(point => [x[point], y[point]])), colours: Uint8Array.from(points.flatMap(colour))});
    const own = opacity => point => [...this.#colours[category[point]], 255 * opacity];
    this.#drawn.layers = [layer(below, 0, own(FADED)), layer(above, 0, own(OPAQUE)),
      layer(this.#outlined, OUTLINE, () => [...this.#outlineColour, 255]), layer(this.#outlined, 0, own(1))];
  }

  #resize(width, height) {
    if (!width || !height) return;
    const ratio = devicePixelRatio;
    Object.assign(this.#canvas, {width: Math.round(width * ratio), height: Math.round(height * ratio)});
    this.#view.size = [width, height];
  }

  #changed() {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#render());
    if (this.#points) this.#later();
  }

  #render() {
    if (!this.#points) return;
    const count = this.#points.x.length;
    this.#drawn.draw(this.#view.transform, devicePixelRatio * (count > 20_000 ? 3 : count > 3000 ? 5 : 9));
  }

  #over(place) {
    const point = place ? this.#nearest(place) : -1;
    this.#stage.classList.toggle('over', point !== -1);
    if (point !== -1) this.#at = point;
    this.#handlers.point(point === -1 ? null : point);
  }

  /** Return the lit point at a place of the screen; -1 if there is none. */
  #nearest([left, top]) {
    let best = -1, least = NEAR;
    if (!this.#points) return best;
    for (let point = 0; point < this.#points.x.length; point++) {
      if (!this.#points.lit[point]) continue;
      const [x, y] = this.place(point), distance = Math.hypot(x - left, y - top);
      if (distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  #inView() {
    const {clientWidth, clientHeight} = this.#stage;
    return [...this.#points.x.keys()].filter(point => {
      const [x, y] = this.place(point);
      return x >= 0 && y >= 0 && x <= clientWidth && y <= clientHeight;
    });
  }

  // ---- the lasso

  #begins(event) {
    if (!this.#points || this.#path || !(this.lasso || event.shiftKey)) return false;
    this.#stage.setPointerCapture(event.pointerId);
    this.#path = [placeOf(event, this.#stage)];
    return true;
  }

  #extend(event) {
    if (!this.#path) return;
    this.#path.push(placeOf(event, this.#stage));
    part(this.#stage, 'lasso').setAttribute('points', this.#path.join(' '));
  }

  #close(event) {
    const path = this.#path;
    if (!path) return;
    this.#path = null;
    part(this.#stage, 'lasso').setAttribute('points', '');
    if (event.type === 'pointerup' && path.length > 2) {
      this.#handlers.enclose([...this.#points.x.keys()].filter(point => encloses(path, this.place(point))));
    }
  }

  #key(event) {
    if (event.key === 'Enter' && this.#at >= 0) this.#handlers.open(this.#at);
    const step = KEYS[event.key];
    if (!step || event.target.closest('button')) return;
    event.preventDefault();
    const next = this.#neighbour(step);
    if (next === -1) return;
    this.#at = next;
    this.#handlers.point(next);
  }

  /** Return the nearest point of a direction, on the screen, among those in view; -1 if there is none. */
  #neighbour([across, down]) {
    const {width, height} = this.#stage.getBoundingClientRect();
    const [x, y] = this.#at >= 0 ? this.place(this.#at) : [width / 2, height / 2];
    let best = -1, least = Infinity;
    for (const point of this.#inView()) {
      if (point === this.#at || !this.#points.lit[point]) continue;
      const [px, py] = this.place(point);
      const ahead = (px - x) * across + (py - y) * down, aside = Math.abs((px - x) * down) + Math.abs((py - y) * across);
      const distance = ahead + 2 * aside;
      if (ahead > 0 && distance < least) [best, least] = [point, distance];
    }
    return best;
  }

  #later() {
    show(this.#thumbnails, false);
    clearTimeout(this.#due);
    this.#due = setTimeout(() => this.#drawThumbnails(), 120);
  }

  #drawThumbnails() {
    const inView = this.#inView().filter(point => this.#points.lit[point]);
    const few = inView.length <= MOST_THUMBNAILS;
    const placed = (few ? inView : everyNth(inView, TRIED)).map(point => ({point, place: this.place(point)}));
    this.#thumbnails.classList.toggle('sparse', !few);
    this.#thumbnails.replaceChildren(...(few ? placed : apart(placed)).map(({point, place: [x, y]}) => {
      const image = new Image();
      image.src = this.#handlers.thumbnail(point);
      image.alt = '';
      image.style.translate = `${x}px ${y}px`;
      return image;
    }));
    show(this.#thumbnails, true);
  }
}

/** Return whether a place is inside a closed path (even-odd rule). */
function encloses(path, [x, y]) {
  let inside = false;
  for (let at = 0, before = path.length - 1; at < path.length; before = at++) {
    const [[ax, ay], [bx, by]] = [path[at], path[before]];
    if (ay > y !== by > y && x < (bx - ax) * (y - ay) / (by - ay) + ax) inside = !inside;
  }
  return inside;
}

const rgb = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
const least = values => values.reduce((one, other) => Math.min(one, other), Infinity);
const most = values => values.reduce((one, other) => Math.max(one, other), -Infinity);

/** Return at most so many of the points, evenly from among them. */
function everyNth(points, most) {
  const step = Math.ceil(points.length / most);
  return points.filter((_, at) => at % step === 0);
}

/** Return those whose places are far enough from all that come before and are returned. */
function apart(placed) {
  const kept = new Map();  // by cells of a grid, each of which has room for one
  const near = (x, y) => [-1, 0, 1].some(right => [-1, 0, 1].some(down => {
    const other = kept.get(`${Math.floor(x / APART) + right},${Math.floor(y / APART) + down}`);
    return other && Math.hypot(other.place[0] - x, other.place[1] - y) < APART;
  }));
  for (const one of placed) {
    const [x, y] = one.place;
    if (!near(x, y)) kept.set(`${Math.floor(x / APART)},${Math.floor(y / APART)}`, one);
  }
  return [...kept.values()];
}
