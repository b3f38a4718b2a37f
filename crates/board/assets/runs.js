// The list of runs, and the curves, configuration and samples of the selected ones.

import { ask, badge, byId, duration, element, setChart, setText, short, up } from './page.js';

const MOST = 12;
const rows = new Map();
const selected = new Set();
let drawn = '';
let choseOnce = false;

/** Shows the answer of the board, and the curves if they have changed. */
export async function showRuns({ runs, incomplete }) {
  const table = byId('runs');
  table.hidden = runs.length === 0;
  const found = runs.length === 1 ? '1 run.' : `${runs.length} runs.`;
  const words = runs.length === 0
    ? 'No runs here yet. Start one with muffle train, or give the folders of runs: muffle board DIR.'
    : `${found} ${incomplete ?? ''}`.trim();
  setText(byId('runs-note'), words);
  const known = new Set(runs.map((run) => run.id));
  for (const [id, row] of rows) {
    if (!known.has(id)) {
      row.remove();
      rows.delete(id);
      selected.delete(id);
    }
  }
  // The first run that trains, or else the first one, is shown without being asked for.
  if (!choseOnce && runs.length > 0) {
    choseOnce = true;
    selected.add((runs.find((run) => run.state === 'running') ?? runs[0]).id);
  }
  const body = table.tBodies[0];
  runs.forEach((run, index) => {
    let row = rows.get(run.id);
    if (!row) {
      row = newRow(run);
      rows.set(run.id, row);
    }
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    updateRow(row, run);
  });
  await showSelected(runs);
}

function newRow(run) {
  const tick = element('input', { type: 'checkbox' });
  tick.checked = selected.has(run.id);
  tick.addEventListener('change', () => {
    if (tick.checked) selected.add(run.id);
    else selected.delete(run.id);
    drawn = '';
    refresh();
  });
  const name = element('span', {}, run.name);
  const note = element('span', { class: 'soft' });
  const label = element('label', {}, tick, element('span', {}, name, element('br'), note));
  const problems = element('ul', { class: 'problems' });
  const cell = (title) => element('td', { 'data-label': title });
  const row = element('tr', {}, element('th', { scope: 'row' }, label, problems),
    cell('State'), cell('Step'), cell('ε spent'), cell('Validation'));
  row.parts = { note, problems };
  return row;
}

function updateRow(row, run) {
  const { note, problems } = row.parts;
  setText(note, run.optimizer ?? '');
  setList(problems, run.problems);
  const [state, step, epsilon, figures] = [...row.cells].slice(1);
  set(state, () => [element('span', { class: `chip ${run.state}` }, run.state)], run.state);
  const left = run.seconds_left === null ? '' : `, ${duration(run.seconds_left)} left`;
  const words = run.steps === null ? `${run.step}` : `${run.step} of ${run.steps}${left}`;
  set(step, () => {
    const bar = element('progress', { max: run.steps ?? 1, value: run.step, 'aria-label': `progress of ${run.name}` });
    const inside = element('span', {}, words, ...(run.state === 'running' && run.steps ? [bar] : []));
    return [inside];
  }, words + run.state);
  const cost = spent(run);
  set(epsilon, () => [element('span', {}, cost, ...(run.private ? [] : [' ', element('strong', { class: 'badge' }, 'NOT PRIVATE')]))], `${cost}${run.private}`);
  const shown = run.figures.map(({ name, value, unit }) => `${name} ${short(value)}${unit}`).join(', ');
  set(figures, () => (shown ? [element('span', {}, shown, ...badge(run.marking))] : []), shown + run.marking);
}

function spent(run) {
  if (run.state === 'damaged') return '';
  if (run.promised === null && run.epsilon === null) return run.private ? '' : 'no promise';
  const when = run.epsilon_step === null ? '' : ` at step ${run.epsilon_step}`;
  const used = run.epsilon === null ? '–' : `${up(run.epsilon, 3)}${when}`;
  const delta = run.delta === null ? '' : ` at δ = ${short(run.delta)}`;
  return run.promised === null ? `${used}${delta}` : `${used} of ${short(run.promised)}${delta}`;
}

/** Rebuilds a cell only if its key has changed. */
function set(cell, build, key) {
  if (cell.key === key) return;
  cell.key = key;
  cell.replaceChildren(...build());
}

function setList(list, texts) {
  const key = texts.join('\n');
  list.hidden = texts.length === 0;
  set(list, () => texts.map((text) => element('li', {}, text)), key);
}

async function refresh() {
  const answer = await ask('runs').catch(() => null);
  if (answer) await showRuns(answer);
}

async function showSelected(runs) {
  const shown = runs.filter((run) => selected.has(run.id)).slice(0, MOST);
  byId('selected').hidden = shown.length === 0;
  const key = shown.map((run) => `${run.id} ${run.version}`).join('\n');
  if (key === drawn) return;
  drawn = key;
  if (shown.length === 0) return;
  const names = shown.map((run) => run.name).join(', ');
  setText(byId('selected-title'), shown.length === 1 ? names : `${shown.length} runs side by side`);
  const query = shown.map((run) => ['run', run.id]);
  const [panels, details] = await Promise.all([
    ask('curves', query),
    Promise.all(shown.map((run) => ask('run', [['run', run.id]]))),
  ]);
  showPanels(panels);
  showDetails(shown, details);
}

function showPanels(panels) {
  const place = byId('curves');
  const figures = panels.map((panel) => {
    const old = place.querySelector(`[data-title="${panel.title}"]`);
    const figure = old ?? element('figure', { class: 'card', 'data-title': panel.title }, element('div'), element('figcaption'));
    setChart(figure.firstChild, panel.svg);
    figure.lastChild.replaceChildren(...badge(panel.marking), ' ', panel.caption);
    return figure;
  });
  place.replaceChildren(...(figures.length ? figures : [element('p', { class: 'soft' }, 'No evaluation yet.')]));
}

function showDetails(shown, details) {
  const place = byId('details');
  const open = new Set([...place.querySelectorAll('details[open]')].map((node) => node.dataset.key));
  const block = (key, title, ...content) => {
    const node = element('details', { 'data-key': key }, element('summary', {}, title), ...content);
    node.open = open.has(key);
    return node;
  };
  place.replaceChildren(...details.map((run, index) => {
    const { id } = shown[index];
    const card = element('article', { class: 'card run-details' }, element('h3', {}, run.name));
    if (!run.private) {
      card.append(element('p', { class: 'problem' }, 'This run has no guarantee: its records are not protected.'));
    }
    if (run.figures.length) {
      const figure = ([name, value]) => element('div', {}, element('dt', {}, name, ...badge(run.marking)), element('dd', {}, short(value)));
      card.append(element('dl', { class: 'figures' }, ...run.figures.map(figure)));
    }
    if (run.samples.length) {
      card.append(block(`${id} samples`, `Samples (${run.samples.length})`, samples(run)));
    }
    if (run.config !== null) {
      card.append(block(`${id} config`, 'Configuration', element('pre', { tabindex: '0' }, run.config)));
    }
    if (run.problems.length) {
      card.append(element('ul', { class: 'problems' }, ...run.problems.map((text) => element('li', {}, text))));
    }
    return card;
  }));
}

function samples(run) {
  const line = (name, text) => [element('dt', {}, name), element('dd', {}, text)];
  const sample = (text, index) => element('article', {},
    element('h4', {}, `Sample ${index + 1}`, ...badge(run.marking)),
    element('dl', {}, ...line('Prompt', text.source), ...line('Generated', text.text),
      ...(text.references.length ? line('Reference', text.references[0]) : [])));
  return element('div', { class: 'samples' }, ...run.samples.map(sample));
}
