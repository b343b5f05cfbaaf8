// The HTTP API of this gallery. Every failure is an ApiError with a sentence for the visitor.

import {connection} from './connection.js';

const STALLED = 30_000;  // milliseconds without progress, after which the server is asked whether it is there
const PATIENT = 4;  // times that it may say so; a slow line that moves may take as long as it needs
const PROXY = [502, 504];  // answers of a proxy whose server is away

/**
 * Problem details (RFC 9457); `reason` is why a picture cannot be used.
 * @typedef {{code?: string, detail?: string, reason?: string, errors?: {pointer: string, detail: string}[]}} Problem
 */

export class ApiError extends Error {
  /**
   * @param {string} message What went wrong and what to do, for the visitor.
   * @param {Problem} problem The problem details of the server; {} if there was no answer.
   */
  constructor(message, problem = {}) {
    super(message);
    this.code = problem.code || 'unreachable';
    this.ofPicture = Boolean(problem.reason);
    this.faults = problem.errors || [];  // each with `pointer` and `detail`
  }
}

const OFFLINE = 'The server cannot be reached. Check your connection, then try again.';
const BROKEN = 'The connection was interrupted. Try again.';

export class Api {
  /** @param {string} root Path of the gallery's API, such as "/v1/galleries/birds". */
  constructor(root) { this.root = root; }

  /**
   * GET a path below the root, and return the parsed answer; options as for `send`.
   * @param {string} path
   * @param {Parameters<Api['send']>[3]} [options]
   */
  get(path, options) { return this.send('GET', path, undefined, options); }

  /**
   * POST a body to a path, as JSON if it is no file, and return the parsed answer; options as for `send`.
   * @param {string} path
   * @param {any} body
   * @param {Parameters<Api['send']>[3]} [options]
   */
  post(path, body, options) { return this.send('POST', path, body, options); }

  /**
   * Send a request.
   * @param {string} method
   * @param {string} path Below the root.
   * @param {any} [body]
   * @param {object} [options]
   * @param {AbortSignal} [options.signal] Cancels the request, which then rejects with an AbortError.
   * @param {'json' | 'text' | 'blob' | 'tagged'} [options.type] Type of the answer; `tagged` is JSON with its entity tag,
   *   as `{body, etag}`.
   * @param {string} [options.match] Entity tag that what is changed must still have, or the error has the code `changed`.
   * @param {(share: number) => void} [options.progress] Receives the share that has been sent, 0 to 1.
   * @returns {Promise<any>}
   */
  send(method, path, body, {signal, progress, match, type = 'json'} = {}) {
    // XMLHttpRequest, because fetch does not report how much of a body has been sent.
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      let timer = 0, stalls = 0, ended = false;
      const end = () => { ended = true; clearTimeout(timer); watch.ended(); signal?.removeEventListener('abort', abort); };
      const fail = (message, problem) => { end(); reject(new ApiError(message, problem)); };
      const abort = () => { end(); request.abort(); reject(new DOMException('Aborted', 'AbortError')); };
      const cancel = () => { request.abort(); fail('Cancelled.', {code: 'cancelled'}); };
      const watch = connection.watch(cancel);
      const lost = here => { if (!ended) fail(here ? BROKEN : OFFLINE); };
      const stalled = async () => {
        const here = await connection.check();
        if (ended) return;
        if (here && ++stalls < PATIENT) timer = setTimeout(stalled, STALLED);
        else { lost(here); request.abort(); }
      };
      const move = () => {
        clearTimeout(timer);
        timer = setTimeout(stalled, STALLED);
        stalls = 0;
        watch.moved();
      };
      if (signal?.aborted) return abort();
      signal?.addEventListener('abort', abort);
      request.open(method, this.root + path);
      request.responseType = type === 'blob' ? 'blob' : 'text';
      request.upload.onprogress = event => { move(); progress?.(event.loaded / event.total); };
      request.onprogress = move;
      request.onerror = () => { if (!ended) connection.check().then(lost); };
      request.onload = async () => {
        end();
        if (connection.away || PROXY.includes(request.status)) await connection.check();
        if ((type === 'text' || type === 'blob') && request.status < 300) return resolve(request.response);
        const answer = parsed(type === 'blob' ? await request.response.text() : request.responseText);
        if (request.status < 300) resolve(type === 'tagged' ? {body: answer, etag: request.getResponseHeader('ETag')} : answer); else fail(sentence(request, answer), answer);
      };
      if (match) request.setRequestHeader('If-Match', match);
      move();
      if (body instanceof FormData) request.send(body);
      else if (body instanceof Blob) {
        request.setRequestHeader('Content-Type', body.type.startsWith('image/') ? body.type : 'application/octet-stream');
        request.send(body);
      } else if (body === undefined) request.send();
      else {
        request.setRequestHeader('Content-Type', 'application/json');
        request.send(JSON.stringify(body));
      }
    });
  }
}

/** Return the parts of the page that the server draws, below its own path. */
export const parts = () => new Api(`${document.body.dataset.page}parts`);

function parsed(text) {
  try { return JSON.parse(text || 'null') || {}; } catch { return {}; }
}

function sentence(request, problem) {
  const detail = problem.errors?.[0]?.detail || problem.detail;
  const text = problem.reason ? `this picture cannot be used: ${detail}` : detail;
  if (text) return text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
  return request.status === 413 ? 'This file is too large.' : `The server answered with status ${request.status}. Try again.`;
}
