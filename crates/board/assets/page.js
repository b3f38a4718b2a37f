// Requests to the board and small helpers for the page. Texts are set as text, never as HTML.

/** Asks the board for a JSON document. The path is relative to the address with the token. */
export async function ask(path, query = [], options = {}) {
  const search = new URLSearchParams(query).toString();
  const response = await fetch(search ? `${path}?${search}` : path, options);
  const document = await response.json().catch(() => ({ error: `status ${response.status}` }));
  if (!response.ok) throw new Error(document.error ?? `status ${response.status}`);
  return document;
}

/** Finds an element by its id. */
export const byId = (id) => document.getElementById(id);

/** Makes an element with attributes and children, which are elements or texts. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Sets a text only if it differs, so that screen readers hear changes only. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The badge of what no guarantee covers; nothing for public figures. */
export function badge(marking) {
  return marking === 'public' ? [] : [' ', element('strong', { class: 'badge' }, 'NON-PRIVATE')];
}

/** Puts a chart of the board's chart module into an element. */
export function setChart(place, svg) {
  const parsed = new DOMParser().parseFromString(svg, 'image/svg+xml').documentElement;
  if (parsed.nodeName !== 'svg') throw new Error('the chart is malformed');
  place.replaceChildren(document.importNode(parsed, true));
}

/** Formats a number with about four significant digits. */
export function short(value) {
  if (typeof value !== 'number') return String(value);
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return value.toFixed(Math.max(0, Math.min(6, 3 - Math.floor(Math.log10(size)))));
}

/** Rounds an upper bound up to some decimal places. */
export function up(value, digits) {
  const scale = 10 ** digits;
  return (Math.ceil(value * scale - 1e-6) / scale).toFixed(digits);
}

/** A duration in words. */
export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

/**
 * Sends at most one request at a time, and next the newest one that was asked for meanwhile.
 * Requests in between are dropped. `show` learns whether its answer is the newest.
 */
export function newestOnly(send, show, fail) {
  let waiting = null;
  let busy = false;
  return async (query) => {
    waiting = query;
    if (busy) return;
    busy = true;
    while (waiting !== null) {
      const current = waiting;
      waiting = null;
      try {
        const answer = await send(current);
        show(answer, current, waiting === null);
      } catch (error) {
        if (waiting === null) fail(error);
      }
    }
    busy = false;
  };
}
