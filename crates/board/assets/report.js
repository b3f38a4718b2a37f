// Reports of finished runs, and their verification.

import { ask, byId, element, setText } from './page.js';

const MARKS = { passed: '✓', failed: '✗', missing: '–', 'out-of-reach': '–' };
const WORDS = { passed: 'passed', failed: 'failed', missing: 'missing', 'out-of-reach': 'not checked' };
let listed = null;
let shown = null;
let watching = null;

byId('report-run').addEventListener('change', () => show(byId('report-run').value));
byId('verify').addEventListener('click', verify);

/** Lists the runs that have a report. */
export function showReports(runs) {
  const finished = runs.filter((run) => run.report);
  const choice = byId('report-run');
  const key = finished.map((run) => `${run.id} ${run.name}`).join('\n');
  if (key !== listed) {
    listed = key;
    const current = choice.value;
    choice.replaceChildren(...finished.map((run) => element('option', { value: run.id }, run.name)));
    if (finished.some((run) => run.id === current)) choice.value = current;
  }
  choice.disabled = finished.length === 0;
  byId('verify').disabled = finished.length === 0 || watching === choice.value;
  byId('report-link').hidden = finished.length === 0;
  setText(byId('report-note'), finished.length === 0 ? 'No run is finished yet.' : '');
  if (choice.value !== (shown ?? '')) show(choice.value);
}

function show(id) {
  shown = id || null;
  const frame = byId('report-frame');
  frame.hidden = shown === null;
  byId('verdict').replaceChildren();
  if (shown === null) {
    frame.removeAttribute('src');
    return;
  }
  const address = `report?run=${encodeURIComponent(id)}`;
  frame.src = address;
  byId('report-link').href = address;
  follow(id, ask('verification', [['run', id]]));
}

async function verify() {
  const id = byId('report-run').value;
  if (!id) return;
  await follow(id, ask('verify', [['run', id]], { method: 'POST' }));
}

/** Shows a verification, and asks again until it is made. */
async function follow(id, first) {
  try {
    let verification = await first;
    while (verification.state === 'running') {
      watching = id;
      byId('verify').disabled = true;
      if (shown === id) showVerdict(element('p', { class: 'soft' }, 'Verifying…'));
      await new Promise((resolve) => setTimeout(resolve, 300));
      verification = await ask('verification', [['run', id]]);
    }
    if (shown === id) showVerification(verification);
  } catch (error) {
    if (shown === id) showVerdict(element('p', { class: 'problem' }, error.message));
  }
  if (watching === id) watching = null;
  byId('verify').disabled = false;
}

function showVerification(verification) {
  if (verification.state === 'none') return showVerdict();
  if (verification.state === 'failed') {
    return showVerdict(element('p', { class: 'problem' }, verification.error));
  }
  const line = ({ kind, name, detail }) => element('li', { class: kind },
    element('span', { role: 'img', 'aria-label': WORDS[kind] }, MARKS[kind]),
    element('span', {}, name), element('span', {}, detail));
  const wasMade = ({ kind }) => kind === 'passed' || kind === 'failed';
  const made = verification.lines.filter(wasMade);
  const open = verification.lines.filter((check) => !wasMade(check));
  const card = element('div', { class: `card verdict ${verification.conclusion}` },
    element('p', { class: 'sentence' }, verification.sentence),
    element('details', {}, element('summary', {}, `${made.length} checks`), element('ul', {}, ...made.map(line))),
    element('details', {}, element('summary', {}, `${open.length} not checked`), element('ul', {}, ...open.map(line))));
  card.querySelector('details').open = true;
  return showVerdict(card);
}

function showVerdict(...content) {
  byId('verdict').replaceChildren(...content);
}
