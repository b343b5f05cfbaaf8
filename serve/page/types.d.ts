// What the scripts of the page share without importing it, for the check of their types: `make lint`. It is not served.

/** An element of a template: its parts, which `part` finds by their names, are not known to the check. */
type Root = any;

/** The answer of /v1/gallery, as far as the page reads it. */
interface Gallery {
  images: number;
  columns: string[];
  product: string | null;
  objects: boolean;
  embeds: boolean;
  texts: boolean;
  urls: boolean;
  changes: boolean;
  calibrated: boolean;
  sharing: number;
  indexing: {done: number, total: number | null} | null;
}

/** Events by which parts of the page tell others what to do, or what has happened. */
interface DocumentEventMap {
  'lookalike:search': CustomEvent<{item: number, side?: 'like' | 'unlike', alone?: boolean}>;
  'lookalike:open': CustomEvent<{item: number}>;
  'lookalike:live': CustomEvent<{uuid: string, generation: string, images: number, indexing: Gallery['indexing'], changed: boolean}>;
  'lookalike:changed': CustomEvent<{removed: number[]}>;
}
