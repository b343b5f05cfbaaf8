// Pixels of a picture as a model takes them, computed as the server does (retrieval/images): its vectors and ours can be compared.

/**
 * An image in three channels, row by row.
 * @typedef {{width: number, height: number, data: Uint8Array}} Pixels
 */

/**
 * How a model wants its pixels, of its file.
 * @typedef {{size: number, resize: ?number, fit: 'crop' | 'squeeze' | 'pad', interpolation: 'bilinear' | 'bicubic', mean: number[]}} Preprocess
 */

const BAND = 1 << 20;  // pixels that are taken from the browser at once
const ORIENTATION = 0x112;  // its tag in EXIF
const DIVISORS = [8, 4, 2];  // by which a JPEG can be reduced while it is decoded
const SMALLEST = 4;  // side of a region
const FACTS = 1 << 18;  // bytes at either end of a file that have its facts
const MOST = 50_000_000;  // pixels of a picture
const WEIGHT_BITS = 15, MOST_BITS = 21;  // of the weights without the sign; of their fraction
const REACH = {bilinear: 1, bicubic: 2};  // radius of a filter
const OTHER = 'This browser cannot decode this kind of picture itself. Search with a JPEG, PNG or WebP, or let the server search.';
const INK = 'This picture is in the colours of print (CMYK), which browsers show otherwise than the server. Save it as RGB, or let the server search.';
const LARGE = 'This picture is over the limit of 50 megapixels. Scale it down first.';
const SMALL = 'This part of the picture is too small to search with.';

/**
 * Return the pixels of a file for a model, uint8 [size, size, 3].
 * @param {Blob} file
 * @param {?number[]} region Left, top, right and bottom, as fractions.
 * @param {Preprocess} preprocess
 * @throws {Error} It cannot be used; the message is for the visitor.
 */
export async function pixelsFor(file, region, preprocess) {
  const scaled = preprocess.resize ?? preprocess.size;
  const [left, top, right, bottom] = region ?? [0, 0, 1, 1];
  const whole = await decoded(file, Math.ceil(scaled / Math.min(right - left, bottom - top)));
  return preprocessed(region ? cut(whole, region) : whole, preprocess);
}

/** Return an upright image, a JPEG at a half, quarter or eighth of its size if its shorter side has twice `side` pixels then. */
export async function decoded(file, side) {
  const [head, tail] = await Promise.all([file.slice(0, FACTS), file.slice(-FACTS)].map(async part => new Uint8Array(await part.arrayBuffer())));
  const isJpeg = head[0] === 0xff && head[1] === 0xd8;
  if (isJpeg && components(head) === 4) throw new Error(INK);
  if (!isJpeg && (isAnimatedPng(head) || isTurned(head) || isTurned(tail))) throw new Error(OTHER);
  const bitmap = await createImageBitmap(file, {colorSpaceConversion: 'none'}).catch(() => null);
  if (!bitmap) throw new Error(OTHER);
  try {
    if (bitmap.width * bitmap.height > MOST) throw new Error(LARGE);
    const most = Math.floor(Math.min(bitmap.width, bitmap.height) / (2 * side));
    return taken(bitmap, isJpeg ? DIVISORS.find(divisor => most >= divisor) ?? 1 : 1);
  } finally {
    bitmap.close();
  }
}

/** Return the number of components of a JPEG, 4 for CMYK; 0 if its frame is further on. */
function components(jpeg) {
  for (let at = 2; at + 9 < jpeg.length && jpeg[at] === 0xff;) {
    const kind = jpeg[at + 1], isFrame = kind >= 0xc0 && kind <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(kind);
    if (isFrame) return jpeg[at + 9];
    at += kind === 0xff ? 1 : 2 + 256 * jpeg[at + 2] + jpeg[at + 3];
  }
  return 0;
}

const latin = bytes => new TextDecoder('latin1').decode(bytes);

/** Return whether an image is a PNG with frames, of which browsers show another one than the server. */
const isAnimatedPng = bytes => /^.PNG[^]*?acTL[^]*?IDAT/.test(latin(bytes));

/** Return whether a PNG or WebP has an EXIF orientation, which some browsers apply to JPEG files only. */
function isTurned(bytes) {
  const found = /(?:eXIf|EXIF[^]{4})(?:Exif\0\0)?(II\*\0|MM\0\*)/.exec(latin(bytes));
  if (!found) return false;
  const tiff = new DataView(bytes.buffer, found.index + found[0].length - found[1].length), little = found[1][0] === 'I';
  try {
    const entries = tiff.getUint32(4, little), count = tiff.getUint16(entries, little);
    for (let at = entries + 2; at < entries + 2 + 12 * count; at += 12) {
      if (tiff.getUint16(at, little) === ORIENTATION) return tiff.getUint16(at + 8, little) !== 1;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;  // a broken block, which is ignored
  }
  return false;
}

/** Return the pixels of a bitmap on white, reduced by a divisor; in bands, since large canvases fail. */
function taken(bitmap, divisor) {
  const across = Math.ceil(bitmap.width / divisor), down = Math.ceil(bitmap.height / divisor);
  const data = new Uint8Array(3 * across * down);
  const rows = divisor * Math.max(1, Math.floor(BAND / divisor / bitmap.width));
  const canvas = new OffscreenCanvas(bitmap.width, Math.min(rows, bitmap.height));
  const context = canvas.getContext('2d', {willReadFrequently: true});
  for (let top = 0; top < bitmap.height; top += rows) {
    const height = Math.min(rows, bitmap.height - top);
    context.fillStyle = 'white';
    context.fillRect(0, 0, canvas.width, height);
    context.drawImage(bitmap, 0, top, bitmap.width, height, 0, 0, bitmap.width, height);
    const band = opaque(context.getImageData(0, 0, bitmap.width, height));
    data.set((divisor === 1 ? band : reduced(band, divisor)).data, 3 * across * (top / divisor));
  }
  return {width: across, height: down, data};
}

function opaque({width, height, data: source}) {
  const data = new Uint8Array(3 * width * height);
  for (let to = 0, from = 0; to < data.length; to += 3, from += 4) {
    data[to] = source[from];
    data[to + 1] = source[from + 1];
    data[to + 2] = source[from + 2];
  }
  return {width, height, data};
}

/** Reduce an image by a divisor to means of squares, as JPEG decoders do; at the edges of what is there. */
function reduced({width, height, data}, divisor) {
  const across = Math.ceil(width / divisor), down = Math.ceil(height / divisor);
  const sums = new Uint32Array(3 * across * down), counts = new Uint32Array(across * down);
  for (let row = 0, from = 0; row < height; row++) {
    const line = across * Math.floor(row / divisor);
    for (let column = 0; column < width; column++, from += 3) {
      const place = line + Math.floor(column / divisor);
      counts[place]++;
      sums[3 * place] += data[from];
      sums[3 * place + 1] += data[from + 1];
      sums[3 * place + 2] += data[from + 2];
    }
  }
  return {width: across, height: down, data: Uint8Array.from(sums, (sum, at) => Math.round(sum / counts[Math.floor(at / 3)]))};
}

/** Return a region of an image, to the nearest pixel. */
function cut(image, region) {
  const [left, top, right, bottom] = region.map((value, edge) => even(value * (edge % 2 ? image.height : image.width)));
  if (Math.min(right - left, bottom - top) < SMALLEST) throw new Error(SMALL);
  return within(image, left, top, right - left, bottom - top);
}

function within(image, left, top, width, height) {
  const data = new Uint8Array(3 * width * height);
  for (let row = 0; row < height; row++) {
    const from = 3 * ((top + row) * image.width + left);
    data.set(image.data.subarray(from, from + 3 * width), 3 * row * width);
  }
  return {width, height, data};
}

/** Scale and crop an image for a model; return uint8 [size, size, 3]. */
export function preprocessed(image, {size, resize, fit, interpolation, mean}) {
  const {width, height} = image, scaled = resize ?? size;
  if (fit === 'pad') return padded(image, scaled, size, interpolation, mean).data;
  const shorter = Math.min(width, height);
  const [across, down] = (fit === 'squeeze' ? [width, height] : [shorter, shorter]).map(side => side * size / scaled);
  const left = (width - across) / 2, top = (height - down) / 2;
  return resampled(image, [left, top, left + across, top + down], size, size, interpolation).data;
}

/** Return the centre of an image in a square of the mean colour. */
function padded(image, scaled, size, interpolation, mean) {
  const {width, height} = image, longer = Math.max(width, height), colour = mean.map(value => even(255 * value));
  const across = Math.max(1, even(width * scaled / longer)), down = Math.max(1, even(height * scaled / longer));
  const left = (scaled - across) >> 1, top = (scaled - down) >> 1, margin = (scaled - size) >> 1;
  const part = resampled(image, [0, 0, width, height], across, down, interpolation).data;
  const data = Uint8Array.from({length: 3 * scaled * scaled}, (_, at) => colour[at % 3]);
  for (let row = 0; row < down; row++) data.set(part.subarray(3 * across * row, 3 * across * (row + 1)), 3 * ((top + row) * scaled + left));
  return within({width: scaled, height: scaled, data}, margin, margin, size, size);
}

/** Round halves to even numbers, as Python does. */
const even = value => value % 1 === 0.5 ? 2 * Math.round(value / 2) : Math.round(value);

/** Scale a box of an image, antialiased: as retrieval/images/resampling.py, to the same pixels. */
export function resampled(image, [left, top, right, bottom], width, height, interpolation) {
  const rows = weightsOf(image.height, top, Math.min(bottom, image.height), height, interpolation);
  const columns = weightsOf(image.width, left, Math.min(right, image.width), width, interpolation);
  return columnsOf(columnsOf(image, rows), columns);
}

/**
 * Scale the columns of an image, and turn it: what was down is across. Twice, it is the whole image.
 * @param {Pixels} image
 * @param {{starts: number[], taps: (number: number) => Float64Array}} weights The first row of each scaled one, and the weights from there on.
 * @returns {Pixels}
 */
function columnsOf({width, height, data}, {starts, taps}) {
  const scaled = starts.length, line = 3 * width, turned = new Uint8Array(line * scaled), sums = new Float64Array(line);
  for (let number = 0; number < scaled; number++) {
    const weights = taps(number);
    sums.fill(0);
    for (let tap = 0; tap < weights.length; tap++) {
      const weight = weights[tap], from = line * Math.min(starts[number] + tap, height - 1);
      for (let at = 0; at < line; at++) sums[at] += weight * data[from + at];
    }
    for (let column = 0; column < width; column++) {
      const to = 3 * (column * scaled + number), from = 3 * column;
      for (let channel = 0; channel < 3; channel++) turned[to + channel] = Math.min(255, Math.max(0, Math.floor(sums[from + channel] + 0.5)));
    }
  }
  return {width: scaled, height: width, data: turned};
}

/** Return the weights that scale a part of a side, whole numbers of a power of 2. */
function weightsOf(length, start, stop, scaled, interpolation) {
  const scale = (stop - start) / scaled, widening = Math.max(scale, 1), support = REACH[interpolation] * widening;
  const lines = Array.from({length: scaled}, (_, number) => {
    const center = start + (number + 0.5) * scale;
    const first = Math.max(Math.floor(center - support), 0), end = Math.min(Math.ceil(center + support), length);
    const weights = Float64Array.from({length: end - first}, (_, tap) =>
      heightOf(Math.abs((first + tap - (center - 0.5)) * (1 / widening)), interpolation));
    const sum = weights.reduce((one, other) => one + other, 0);
    return {first, weights: weights.map(weight => weight / sum)};
  });
  const largest = Math.max(...lines.map(({weights}) => Math.max(...weights)));
  let bits = 0;
  while (bits < MOST_BITS && rounded(largest * 2 ** (bits + 1)) < 2 ** WEIGHT_BITS) bits++;
  const taps = lines.map(({weights}) => weights.map(weight => rounded(weight * 2 ** bits) / 2 ** bits));
  return {starts: lines.map(({first}) => first), taps: number => taps[number]};
}

function heightOf(x, interpolation) {
  if (interpolation === 'bilinear') return Math.max(1 - x, 0);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

/** Round halves away from zero. */
const rounded = value => Math.sign(value) * Math.floor(Math.abs(value) + 0.5);
