// Points on a plane, drawn with WebGL: zoom, pan, lasso, and thumbnails of those in view, or of some among many.

import createScatterplot from './scatterplot.min.js';
import {part, show} from './dom.js';

const MOST_THUMBNAILS = 120;  // points in view that all have one; of more, some have a smaller one
const APART = 56;  // pixels between these, so that dots are seen between them
const TRIED = 5000;  // points that may get one
const FADED = 0.07;
const MARGIN = 0.1;  // around all points: those at the edges are whole
const BACKGROUND = {light: '#ffffff', dark: '#0b1220'};
const KEYS = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

/** Whether the browser draws with WebGL. */
export const supported = () => Boolean(document.createElement('canvas').getContext('webgl'));

export class Scatter {
  #stage; #canvas; #thumbnails; #plot; #points; #at = -1; #handlers; #drawing = Promise.resolve(); #lassoed = false; #due = 0;

  /**
   * @param {Element} stage Has the parts `canvas` and `thumbnails`, and gets the focus.
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
    const {width, height} = stage.getBoundingClientRect();
    this.#plot = createScatterplot({
      canvas: this.#canvas, width, height, lassoMinDelay: 8, lassoMinDist: 3, pointSizeSelected: 3, pointOutlineWidth: 2,
      opacityInactiveMax: 1, opacityInactiveScale: 1, pointScaleMode: 'constant', colorBy: 'valueZ', opacityBy: 'valueW', opacity: [FADED, 0.85],
    });
    new ResizeObserver(([{contentRect}]) => {
      if (contentRect.width) this.#plot.set({width: contentRect.width, height: contentRect.height});
    }).observe(stage);
    this.#plot.subscribe('pointOver', point => { this.#at = point; handlers.point(point); });
    this.#plot.subscribe('pointOut', () => handlers.point(null));
    this.#plot.subscribe('lassoStart', () => { this.#lassoed = true; });
    this.#plot.subscribe('select', ({points}) => this.#select(points));
    this.#plot.subscribe('view', () => this.#later());
    stage.addEventListener('keydown', event => this.#key(event));
  }

  /**
   * Draw points: other points than before in whole, the same ones with the view that there is.
   * @param {{x: number[], y: number[], category: number[], lit: boolean[]}} points Places from -1 to 1; each point's
   *   colour is that of its category, and points that are not lit are faded.
   * @param {string[]} colours Of the categories.
   * @param {'light' | 'dark'} theme Of the background.
   */
  draw(points, colours, theme) {
    const same = this.#points?.x === points.x;
    this.#stage.ariaBusy = 'true';
    this.#points = points;
    this.#drawing = this.#drawing.catch(() => {}).then(async () => {
      const count = points.x.length;
      this.#plot.set({
        pointColor: colours, backgroundColor: BACKGROUND[theme], pointColorHover: theme === 'dark' ? '#ffffff' : '#000000',
        pointColorActive: theme === 'dark' ? '#ffffff' : '#000000', pointSize: count > 20_000 ? 3 : count > 3000 ? 5 : 8,
      });
      await this.#plot.draw(
        {x: points.x, y: points.y, z: points.category, w: points.lit.map(Number)},
        {zDataType: 'categorical', wDataType: 'categorical', ...(same ? {spatialIndex: this.#plot.get('spatialIndex')} : {})});
      if (!same) await this.fit();
      this.#stage.ariaBusy = 'false';
      this.#later();
    });
    return this.#drawing;
  }

  /** Let a drag draw a lasso in place of moving the map; with Shift held it always does. */
  set lasso(on) { this.#plot.set({mouseMode: on ? 'lasso' : 'panZoom'}); }

  /** Show all points. */
  fit() { return this.#plot.zoomToPoints(this.#points.x.map((_, point) => point), {padding: MARGIN}); }

  /** Show these points, as large as they fit. */
  zoomTo(points) { this.#plot.zoomToPoints(points, {padding: 0.3, transition: true}); }

  /** Outline these points. */
  outline(points) {
    if (points.length) this.#plot.select(points, {preventEvent: true}); else this.#plot.deselect({preventEvent: true});
  }

  /** Return the place of a point on the screen, relative to the stage. */
  place(point) { return this.#plot.getScreenPosition(point); }

  #select(points) {
    if (this.#lassoed) this.#handlers.enclose(points);
    else if (points.length === 1) { this.#plot.deselect({preventEvent: true}); this.#handlers.open(points[0]); }
    this.#lassoed = false;
  }

  #key(event) {
    if (event.key === 'Enter' && this.#at >= 0) this.#handlers.open(this.#at);
    const step = KEYS[event.key];
    if (!step || event.target.closest('button')) return;
    event.preventDefault();
    const next = this.#neighbour(step);
    if (next === -1) return;
    this.#at = next;
    this.#plot.hover(next);
    this.#handlers.point(next);
  }

  /** Return the nearest point of a direction, on the screen, among those in view; -1 if there is none. */
  #neighbour([across, down]) {
    const {width, height} = this.#stage.getBoundingClientRect();
    const [x, y] = this.#at >= 0 ? this.place(this.#at) : [width / 2, height / 2];
    let best = -1, least = Infinity;
    for (const point of this.#plot.get('pointsInView')) {
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
    const inView = this.#plot.get('pointsInView').filter(point => this.#points.lit[point]);
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
