// The planner: controls on the left, the accountant's answers on the right.

import { ask, byId, element, newestOnly, setChart, setText, short } from './page.js';

// Ranges of the sliders, which are logarithmic. Whole numbers stay whole.
const KNOBS = {
  records: { low: 100, high: 1e8, start: 60000, whole: true },
  epsilon: { low: 0.05, high: 50, start: 3 },
  delta: { low: 1e-12, high: 1e-2, start: 1e-6 },
  lot: { low: 1, high: 65536, start: 1024, whole: true },
  epochs: { low: 0.1, high: 1000, start: 10 },
  blocks: { low: 1, high: 1000, start: 1, whole: true },
  rows: { low: 2, high: 1000, start: 5, whole: true },
};
const NOTCHES = 1000;
let started = false;

/** Builds the controls and asks for the first plan. */
export function startPlanner() {
  if (started) return;
  started = true;
  document.querySelectorAll('.knob').forEach(buildKnob);
  byId('plan').addEventListener('submit', (event) => event.preventDefault());
  for (const id of ['unit', 'adjacency', 'sampling']) byId(id).addEventListener('change', changed);
  byId('auto-delta').addEventListener('change', changed);
  byId('take').addEventListener('click', takeRecommendation);
  byId('show-plan').addEventListener('click', togglePlan);
  document.querySelectorAll('[data-copy]').forEach((button) => button.addEventListener('click', copy));
  changed();
}

function buildKnob(place) {
  const { knob: name, label, hint } = place.dataset;
  const knob = KNOBS[name];
  const number = element('input', {
    type: 'number', id: name, min: knob.whole ? knob.low === 2 ? 2 : 1 : 0, step: knob.whole ? 1 : 'any',
    inputmode: 'decimal', 'aria-describedby': `${name}-hint`,
  });
  const slider = element('input', {
    type: 'range', id: `${name}-slider`, min: 0, max: NOTCHES, step: 1, 'aria-label': label, 'aria-describedby': `${name}-hint`,
  });
  place.append(element('label', { for: name }, label), number, slider, element('small', { id: `${name}-hint` }, hint));
  Object.assign(knob, { number, slider });
  slider.addEventListener('input', () => {
    setNumber(name, fromSlider(knob));
    if (name === 'delta') byId('auto-delta').checked = false;
    changed();
  });
  number.addEventListener('input', () => {
    moveSlider(knob);
    if (name === 'delta') byId('auto-delta').checked = false;
    changed();
  });
  setNumber(name, knob.start);
  moveSlider(knob);
}

function fromSlider({ low, high, slider, whole }) {
  const value = low * (high / low) ** (slider.valueAsNumber / NOTCHES);
  // Two significant digits, three above 1000: round numbers are easier to read.
  const rounded = Number(value.toPrecision(value >= 1000 ? 3 : 2));
  return whole ? Math.max(low, Math.round(rounded)) : rounded;
}

function moveSlider({ low, high, slider, number }) {
  const value = Math.min(high, Math.max(low, Number(number.value) || low));
  slider.value = Math.round(NOTCHES * Math.log(value / low) / Math.log(high / low));
  slider.setAttribute('aria-valuetext', number.value);
}

function setNumber(name, value) {
  const { number, slider } = KNOBS[name];
  number.value = value < 1e-3 ? value.toExponential() : String(value);
  slider.setAttribute('aria-valuetext', number.value);
}

/** The settings as a query. */
function settings() {
  const person = byId('unit').value === 'person';
  const value = (name) => KNOBS[name].number.value.trim();
  return {
    records: value('records'), epsilon: value('epsilon'), delta: value('delta'), lot: value('lot'),
    epochs: value('epochs'), blocks: value('blocks'), rows: person ? value('rows') : '1',
    adjacency: byId('adjacency').value, sampling: byId('sampling').value,
  };
}

function changed() {
  const sampling = byId('sampling').value;
  document.querySelector('[data-knob="rows"]').hidden = byId('unit').value !== 'person';
  document.querySelector('[data-knob="lot"]').hidden = sampling === 'full';
  if (byId('auto-delta').checked) {
    const records = Number(KNOBS.records.number.value);
    if (records > 0) {
      setNumber('delta', Number((0.1 / records).toPrecision(3)));
      moveSlider(KNOBS.delta);
    }
  }
  byId('plan-figures').setAttribute('aria-busy', 'true');
  const query = settings();
  // For persons the search takes longer: a first answer comes sooner.
  if (query.rows === '1') askNoise(query);
  else askFirst(query);
  // The recommendation does not depend on lot size and epochs.
  const { lot, epochs, ...rest } = query;
  const key = JSON.stringify(rest);
  if (key !== changed.recommendedFor) {
    changed.recommendedFor = key;
    askRecommended({ ...query, lot: '1', epochs: '1' });
  }
  markRecommendation();
}

const isCurrent = (query) => JSON.stringify(query) === JSON.stringify(settings());

const askFirst = newestOnly((query) => ask('plan/first', query), (answer, query, newest) => {
  if (settings().rows === '1') return;
  showFigures(answer, false);
  if (newest) askNoise(query);
}, fail);

const askNoise = newestOnly((query) => ask('plan', query), (answer, query, newest) => {
  // For persons, newer first answers may be shown already.
  if (query.rows !== '1' && !isCurrent(query)) return;
  showFigures(answer, newest);
  const priced = { ...query, sigma: String(answer.sigma) };
  askEpochs(priced);
  askAttacker(priced);
  askRepeated(priced);
}, fail);

function fail(error) {
  const place = byId('plan-error');
  place.hidden = false;
  setText(place, error.message);
  showAnswer(false);
  byId('plan-figures').setAttribute('aria-busy', 'false');
}

function showAnswer(shown) {
  byId('plan-answer').hidden = !shown;
  byId('plan-figures').querySelector('dl').hidden = !shown;
}

function showFigures(answer, newest) {
  byId('plan-error').hidden = true;
  showAnswer(true);
  byId('plan-figures').setAttribute('aria-busy', String(!newest));
  setText(byId('plan-sigma'), answer.sigma_text);
  setText(byId('plan-epsilon'), answer.epsilon_text);
  setText(byId('delta-shown'), answer.delta_text);
  setText(byId('noise-in-mean'), answer.noise_in_mean);
  setText(byId('plan-steps'), String(answer.steps));
  setText(byId('plan-words'), `Neighbours: ${answer.unit}. Accountant: ${answer.accountant}. Share of the records in a lot: ${short(answer.rate)}. Noise left in an average over all steps ÷ clip bound, σ/(B √T): ${answer.noise_of_run}.`);
  const warnings = byId('plan-warnings');
  warnings.hidden = answer.warnings.length === 0;
  warnings.replaceChildren(...answer.warnings.map((text) => element('li', {}, text)));
  setText(byId('run-toml'), answer.run_toml);
  setText(byId('command'), answer.command);
  setText(byId('account'), answer.account);
}

const askEpochs = newestOnly((query) => ask('plan/epochs', query), ({ svg }) => {
  setChart(byId('chart-epochs'), svg);
}, (error) => byId('chart-epochs').replaceChildren(element('p', { class: 'problem' }, error.message)));

const askAttacker = newestOnly((query) => ask('plan/attacker', query), ({ svg, sentence }) => {
  setChart(byId('chart-attacker'), svg);
  setText(byId('attacker'), sentence);
}, (error) => {
  byId('chart-attacker').replaceChildren(element('p', { class: 'problem' }, error.message));
  setText(byId('attacker'), '');
});

const RUNS = ['2', '5', '10'];
const askRepeated = newestOnly((query) => Promise.all(RUNS.map((runs) => ask('plan/repeated', { ...query, runs }))), (costs) => {
  const row = ({ runs, all_text: all, best_text: best }) => element('tr', {},
    element('th', { scope: 'row' }, String(runs)), element('td', {}, all), element('td', {}, best ?? '—'));
  byId('repeated').tBodies[0].replaceChildren(...costs.map(row));
}, (error) => {
  const cell = element('td', { colspan: '3' }, error.message);
  byId('repeated').tBodies[0].replaceChildren(element('tr', {}, cell));
});

let recommendation = null;

const askRecommended = newestOnly((query) => ask('plan/recommended', query), (answer) => {
  recommendation = answer;
  byId('recommendation').hidden = answer === null;
  if (answer === null) return;
  setText(byId('recommended'), `lots of ${answer.lot}, ${answer.epochs} epochs, ${answer.steps} steps. ${answer.reason}`);
  markRecommendation();
}, () => {
  recommendation = null;
  byId('recommendation').hidden = true;
});

function markRecommendation() {
  if (recommendation === null) return;
  const query = settings();
  const taken = Number(query.lot) === recommendation.lot && Number(query.epochs) === recommendation.epochs;
  byId('recommendation').classList.toggle('taken', taken);
  byId('take').disabled = taken;
  setText(byId('take'), taken ? 'Taken' : 'Take it');
}

function takeRecommendation() {
  if (recommendation === null) return;
  setNumber('lot', recommendation.lot);
  setNumber('epochs', recommendation.epochs);
  moveSlider(KNOBS.lot);
  moveSlider(KNOBS.epochs);
  changed();
}

function togglePlan() {
  const place = byId('plan-text');
  place.hidden = !place.hidden;
  byId('show-plan').setAttribute('aria-expanded', String(!place.hidden));
  setText(byId('show-plan'), place.hidden ? 'Show RUN.toml and command' : 'Hide RUN.toml and command');
}

async function copy(event) {
  const source = byId(event.currentTarget.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    setText(byId('copied'), 'Copied.');
  } catch {
    getSelection().selectAllChildren(source);
    setText(byId('copied'), 'The browser does not allow copying; the text is selected.');
  }
}
