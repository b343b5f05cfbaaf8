// The notice in the corner: the server is away, or slow. Pictures that could not be loaded are loaded again.

import {connection} from './connection.js';
import {part, show} from './dom.js';
import {toContent} from './focus.js';

const AWAY = 'The server cannot be reached. The page goes on when it is back.';
const OFFLINE = 'You are offline. The page goes on when you are back.';
const SLOW = 'The server is slow. It is still working on this.';
const AGAIN = 2000;  // milliseconds until a picture is loaded again that the server has not sent

/** @param {HTMLElement} root Has the parts `notice`, `said`, `retry` and `cancel`. */
export function mountNotice(root) {
  const [notice, said, retry, cancel] = ['notice', 'said', 'retry', 'cancel'].map(name => part(root, name));
  connection.addEventListener('change', () => {
    const {away, slow} = connection;
    const focused = notice.contains(document.activeElement);
    said.textContent = away ? (navigator.onLine ? AWAY : OFFLINE) : slow ? SLOW : '';
    show(notice, away || slow);
    show(retry, away);
    show(cancel, slow && !away);
    if (focused && !notice.contains(document.activeElement)) toContent();
  });
  retry.addEventListener('click', async () => {
    retry.ariaBusy = 'true';
    await connection.check();
    retry.ariaBusy = null;
  });
  cancel.addEventListener('click', () => connection.cancel());
}

/** Hide pictures that could not be loaded, and load them again: once after a while, and when the server is back. */
export function mendPictures() {
  const tried = new WeakSet();
  const again = image => { if (image.classList.contains('missing')) image.src = image.src; };
  document.addEventListener('error', ({target}) => {
    if (!(target instanceof HTMLImageElement)) return;
    target.classList.add('missing');
    if (!target.src.startsWith('http') || tried.has(target)) return;
    tried.add(target);
    connection.check().then(here => { if (here) setTimeout(() => again(target), AGAIN); });
  }, true);
  document.addEventListener('load', ({target}) => {
    if (!(target instanceof HTMLImageElement)) return;
    target.classList.remove('missing');
    tried.delete(target);
  }, true);
  connection.addEventListener('back', () => document.querySelectorAll('img.missing').forEach(again));
}
