// Changes of the gallery as they happen, told to all parts of the page with the event `lookalike:live`. Only a tab that is
// in sight listens: a browser has six connections to a server.

import {GALLERY} from './options.js';

const AGAIN = 10_000;  // milliseconds until a stream that was refused is asked for again

/**
 * Follow the gallery. The detail of each event has its `images`, how far `indexing` is, and whether it has `changed`:
 * not before a folder is indexed, since what is listed would change every second.
 */
export function followGallery(api) {
  let source = null, due = 0, uuid = null, images = GALLERY?.images ?? null, generation = null, unsaid = false;
  const close = () => {
    clearTimeout(due);
    source?.close();
    source = null;
  };
  const take = state => {
    uuid ??= state.uuid;
    if (uuid !== state.uuid) return location.reload();  // rebuilt: what is shown, selected or open has the ids of other images by now
    unsaid ||= images !== null && images !== state.images || generation !== null && generation !== state.generation;
    ({images, generation} = state);
    const changed = unsaid && !state.indexing;
    if (changed) unsaid = false;
    document.dispatchEvent(new CustomEvent('lookalike:live', {detail: {...state, changed}}));
  };
  const open = () => {
    close();
    if (document.hidden) return;
    source = new EventSource(`${api.root}/events`);
    source.addEventListener('gallery', event => take(JSON.parse(event.data)));
    source.addEventListener('error', () => {  // a lost line is taken up by the browser, a refusal is not
      if (source?.readyState === EventSource.CLOSED) due = setTimeout(open, AGAIN);
    });
  };
  document.addEventListener('visibilitychange', open);
  addEventListener('pagehide', close);
  addEventListener('pageshow', event => { if (event.persisted) open(); });
  open();
}
