// Where the query and an image look alike: colours over both pictures, and corresponding places.

import {part, show} from './dom.js';
import * as pictures from './pictures.js';

const SCALE = 32767;  // of the similarities
const ALIKE = [234, 88, 12], UNLIKE = [37, 99, 235];
const OPAQUE = 0.75, FAINT = 0.4;  // of the strongest place that is alike, and unlike

export class Heatmap {
  #box; #api; #answer = null; #drawing = 0;

  /** @param {Element} box The dialog: has `query-figure`, `query-layers`, `query-caption`, `layers`, `legend` and `compare`. */
  constructor(box, api) {
    this.#box = box;
    this.#api = api;
    const fit = () => { if (this.#answer) this.#fit(); };
    const resized = new ResizeObserver(fit);
    for (const [index, layers] of this.#layers().entries()) {
      layers.addEventListener('pointermove', event => this.#point(event, index));
      layers.addEventListener('pointerleave', () => this.#hide());
      layers.querySelector('img').addEventListener('load', fit);
      resized.observe(layers);
    }
  }

  /** Show the query beside the image, without colours; null for no query. */
  async reset(view) {
    this.#answer = null;
    this.#drawing++;
    this.#hide();
    for (const layers of this.#layers()) show(layers.querySelector('canvas'), false);
    show(part(this.#box, 'legend'), false);
    part(this.#box, 'compare').ariaPressed = 'false';
    show(part(this.#box, 'query-figure'), Boolean(view));
    if (!view) return;
    part(this.#box, 'query-caption').textContent = view.item !== undefined ? `the query: item ${view.item}`
      : view.picture ? 'your picture' : 'the picture of this link';
    const source = await this.#source(view);
    part(this.#box, 'query-image').src = source;
    show(part(this.#box, 'query-figure'), Boolean(source));
    if (!source) show(part(this.#box, 'compare'), false);
  }

  /**
   * Colour both pictures.
   * @throws {ApiError} The model has no embedding map, or the image cannot be read.
   */
  async draw(view, item) {
    const drawing = ++this.#drawing;
    const answer = await this.#ask(view, item);
    if (drawing !== this.#drawing) return;  // another image is shown now
    this.#answer = {...answer, similarities: similarities(answer.similarities)};
    for (const [index, layers] of this.#layers().entries()) paint(layers.querySelector('canvas'), this.#sides()[index].strengths);
    this.#fit();
    show(part(this.#box, 'legend'), true);
    part(this.#box, 'compare').ariaPressed = 'true';
  }

  async #ask(view, item) {
    if (view.item !== undefined) {
      return this.#api.post('/heatmap', {id: view.item, item, ...(view.region && {region: view.region})});
    }
    const picture = await pictures.ofView(view, this.#api);
    if (!picture) throw new Error('The picture of this search is not in this browser. Search with it again.');
    return this.#api.post(`/heatmap?item=${item}`, await pictures.shrink(picture, view.region));
  }

  async #source(view) {
    if (view.item !== undefined) return `${this.#api.root}/items/${view.item}/thumbnail`;
    const picture = await pictures.ofView(view, this.#api).catch(() => null);
    return picture ? URL.createObjectURL(await pictures.shrink(picture, view.region)) : '';
  }

  #layers() { return ['query-layers', 'layers'].map(name => part(this.#box, name)); }

  #sides() { return [this.#answer.query, this.#answer.item]; }

  /** Lay the colours over the parts of the pictures that the model has seen. */
  #fit() {
    this.#hide();
    for (const [index, layers] of this.#layers().entries()) {
      const canvas = layers.querySelector('canvas'), [left, top, right, bottom] = this.#sides()[index].box;
      const {x, y, width, height} = drawn(layers.querySelector('img'));
      Object.assign(canvas.style, {left: `${x + left * width}px`, top: `${y + top * height}px`,
        width: `${(right - left) * width}px`, height: `${(bottom - top) * height}px`});
      show(canvas, true);
    }
  }

  /** Mark the place of the other picture that is most similar to the one under the pointer. */
  #point(event, index) {
    if (!this.#answer) return;
    const {width, height, similarities: all} = this.#answer;
    const area = this.#layers()[index].querySelector('canvas').getBoundingClientRect();
    const column = Math.floor((event.clientX - area.left) / area.width * width);
    const row = Math.floor((event.clientY - area.top) / area.height * height);
    if (column < 0 || row < 0 || column >= width || row >= height) return this.#hide();
    const count = width * height, place = row * width + column;
    const score = other => all[index ? other * count + place : place * count + other];
    let best = 0;
    for (let other = 1; other < count; other++) if (score(other) > score(best)) best = other;
    this.#mark(index, place);
    this.#mark(1 - index, best);
  }

  #mark(index, place) {
    const {width, height} = this.#answer;
    const layers = this.#layers()[index], mark = layers.querySelector('i');
    const canvas = layers.querySelector('canvas');
    const [wide, high] = [canvas.offsetWidth / width, canvas.offsetHeight / height];
    Object.assign(mark.style, {left: `${canvas.offsetLeft + (place % width) * wide}px`, width: `${wide}px`,
      top: `${canvas.offsetTop + Math.floor(place / width) * high}px`, height: `${high}px`});
    show(mark, true);
  }

  #hide() { for (const layers of this.#layers()) show(layers.querySelector('i'), false); }
}

/** Draw strengths, one pixel for each. */
function paint(canvas, strengths) {
  Object.assign(canvas, {width: strengths[0].length, height: strengths.length});
  const pixels = new ImageData(canvas.width, canvas.height);
  strengths.flat().forEach((strength, index) => {
    const [colour, opacity] = strength > 0 ? [ALIKE, OPAQUE] : [UNLIKE, FAINT];
    pixels.data.set([...colour, 255 * opacity * Math.abs(strength)], 4 * index);
  });
  canvas.getContext('2d').putImageData(pixels, 0, 0);
}

/** Return where a picture is that is scaled to fit its element, in pixels of the layers. */
function drawn(image) {
  const scale = Math.min(image.clientWidth / image.naturalWidth, image.clientHeight / image.naturalHeight);
  const [width, height] = [scale * image.naturalWidth, scale * image.naturalHeight];
  return {x: image.offsetLeft + (image.clientWidth - width) / 2, y: image.offsetTop + (image.clientHeight - height) / 2, width, height};
}

/** Decode Base64 of little-endian int16 values, of which SCALE is 1. */
function similarities(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer), value => value / SCALE);
}
