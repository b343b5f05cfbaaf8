// The HTTP API of this gallery. Every failure is an ApiError with a sentence for the visitor.

const STALLED = 30_000;  // milliseconds without progress; a slow line that moves may take as long as it needs

export class ApiError extends Error {
  /**
   * @param {string} message What went wrong and what to do, for the visitor.
   * @param {object} problem The problem details (RFC 9457) of the server; {} if there was no answer.
   */
  constructor(message, problem = {}) {
    super(message);
    this.code = problem.code || 'unreachable';
    this.ofPicture = Boolean(problem.reason);
    this.faults = problem.errors || [];  // each with `pointer` and `detail`
  }
}

const OFFLINE = 'The server cannot be reached. Check your connection, then try again.';

export class Api {
  /** @param {string} root Path of the gallery's API, such as "/v1/galleries/birds". */
  constructor(root) { this.root = root; }

  /** GET a path below the root, and return the parsed answer; options as for `send`. */
  get(path, options) { return this.send('GET', path, undefined, options); }

  /** POST JSON to a path, and return the parsed answer; options as for `send`. */
  post(path, body, options) { return this.send('POST', path, body, options); }

  /**
   * Send a request.
   * @param {AbortSignal} [options.signal] Cancels the request, which then rejects with an AbortError.
   * @param {'json' | 'text' | 'blob'} [options.type] Type of the answer.
   * @param {(share: number) => void} [options.progress] Receives the share that has been sent, 0 to 1.
   */
  send(method, path, body, {signal, progress, type = 'json'} = {}) {
    // XMLHttpRequest, because fetch does not report how much of a body has been sent.
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      let timer;
      const stall = () => {
        clearTimeout(timer);
        timer = setTimeout(() => { fail('The connection has stopped moving. Try again.'); request.abort(); }, STALLED);
      };
      const end = () => { clearTimeout(timer); signal?.removeEventListener('abort', abort); };
      const fail = (message, problem) => { end(); reject(new ApiError(message, problem)); };
      const abort = () => { end(); request.abort(); reject(new DOMException('Aborted', 'AbortError')); };
      if (signal?.aborted) return abort();
      signal?.addEventListener('abort', abort);
      request.open(method, this.root + path);
      request.responseType = type === 'blob' ? 'blob' : 'text';
      request.upload.onprogress = event => { stall(); progress?.(event.loaded / event.total); };
      request.onprogress = stall;
      request.onerror = () => fail(OFFLINE);
      request.onload = async () => {
        end();
        if (type !== 'json' && request.status < 300) return resolve(request.response);
        const answer = parsed(type === 'blob' ? await request.response.text() : request.responseText);
        if (request.status < 300) resolve(answer); else fail(sentence(request, answer), answer);
      };
      stall();
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
