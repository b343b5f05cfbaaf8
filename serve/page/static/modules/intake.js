// Pictures from everywhere: dropped on the window, pasted, chosen, taken with the camera.

import {part, show} from './dom.js';

/** Whether keys that are pressed are written into an element. */
export const typing = element => element?.matches?.('input:not([type=checkbox], [type=radio], [type=file]), textarea, [contenteditable=true]');
const ofFiles = transfer => [...(transfer?.types ?? [])].includes('Files');

/**
 * Take pictures from the whole window and from the controls inside `root`.
 * @param {Element} root Has the parts `choose` and `camera` (file inputs) and `overlay`.
 * @param {(files: File[]) => void} take Receives what was given.
 * @param {() => boolean} wanted Whether the window takes drops and pastes at present.
 */
export function takePictures(root, take, wanted) {
  const overlay = part(root, 'overlay');
  let depth = 0;  // a drag enters a child before it leaves its parent
  const over = count => { depth = Math.max(0, count); show(overlay, depth > 0); };
  const handles = event => ofFiles(event.dataTransfer) && wanted();
  addEventListener('dragenter', event => { if (handles(event)) over(depth + 1); });
  addEventListener('dragleave', event => { if (handles(event)) over(depth - 1); });
  addEventListener('dragover', event => { if (handles(event)) event.preventDefault(); });
  addEventListener('drop', event => {
    if (!handles(event)) return;
    event.preventDefault();
    over(0);
    give([...event.dataTransfer.files]);
  });
  document.addEventListener('paste', event => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length || typing(event.target) || !wanted()) return;
    event.preventDefault();
    give(files);
  });
  for (const name of ['choose', 'camera']) {
    const input = part(root, name);
    input.addEventListener('change', () => { give([...input.files]); input.value = ''; });
  }
  const give = files => { if (files.length) take(files); };
}

/** The type of what is dragged: the id of an item. */
export const DRAGGED = 'application/x-lookalike-item';

/**
 * Take hits that are dragged to an element.
 * @param {HTMLElement} element
 * @param {(item: number) => void} take
 */
export function takeHits(element, take) {
  const isHit = event => event.dataTransfer.types.includes(DRAGGED);
  element.addEventListener('dragover', event => { if (isHit(event)) event.preventDefault(); });
  element.addEventListener('drop', event => {
    if (!isHit(event)) return;
    event.preventDefault();
    take(Number(event.dataTransfer.getData(DRAGGED)));
  });
}

/** Call a function when `/` is pressed, but in a field or while a dialog is open. */
export function takeSlash(act) {
  document.addEventListener('keydown', event => {
    if (event.key !== '/' || typing(event.target) || document.querySelector('dialog[open]')) return;
    event.preventDefault();
    act();
  });
}
