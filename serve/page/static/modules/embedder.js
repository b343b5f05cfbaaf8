// The worker that embeds pictures: ONNX Runtime and the model of a gallery, whose pages the server calls "on device".

import {pixelsFor} from './pixels.js';

let runtime, session, made = '';  // `made` is the fingerprint of the model that is loaded

/** Load what is missing, and tell how much of it has come. */
async function load({fingerprint, runtime: files, model, bytes}, tell) {
  if (made === fingerprint) return;
  const [code, binary] = files.map(file => file.address);
  const sizes = {[binary]: runtime ? 0 : files[1].bytes, [model]: bytes}, come = {};
  const total = sizes[binary] + sizes[model];
  const received = (address, count) => {
    come[address] = count;
    tell(Math.min(1, Object.values(come).reduce((one, other) => one + other, 0) / total));
  };
  const [weights, wasm] = await Promise.all([fetched(model, received), runtime ? null : fetched(binary, received)]);
  if (!runtime) {
    const loaded = await import(code);
    Object.assign(loaded.env.wasm, {numThreads: 1, proxy: false, wasmBinary: wasm.buffer});
    runtime = loaded;
  }
  await session?.release();
  session = await runtime.InferenceSession.create(weights, {executionProviders: ['wasm']});
  made = fingerprint;
}

async function fetched(address, received) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error('The model could not be loaded. Try again.');
  const parts = [];
  let count = 0;
  for (const reader = answer.body.getReader(); ;) {
    const {done, value} = await reader.read();
    if (done) break;
    parts.push(value);
    received(address, count += value.length);
  }
  const all = new Uint8Array(count);
  let at = 0;
  for (const part of parts) { all.set(part, at); at += part.length; }
  return all;
}

async function embed({file, region, model}, tell) {
  await load(model, tell);
  const {size} = model.preprocess;
  const pixels = await pixelsFor(file, region, model.preprocess);
  const {embedding} = await session.run({images: new runtime.Tensor('uint8', pixels, [1, size, size, 3])}, ['embedding']);
  return Array.from(embedding.data);
}

let before = Promise.resolve();  // one picture at a time
addEventListener('message', ({data: {id, ...picture}}) => {
  const tell = share => postMessage({id, share});
  before = before.then(() => embed(picture, tell))
    .then(vector => postMessage({id, vector}), error => postMessage({id, error: error.message}));
});
