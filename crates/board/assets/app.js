// Shows one of three views by the hash of the address, and polls the runs while the page is visible.

import { ask, byId, setText } from './page.js';
import { showRuns } from './runs.js';
import { startPlanner } from './planner.js';
import { showReports } from './report.js';

const VIEWS = ['runs', 'planner', 'report'];
const POLL = 1000;

function currentView() {
  const name = location.hash.slice(1).split('/')[0];
  return VIEWS.includes(name) ? name : 'runs';
}

function route(moved) {
  const shown = currentView();
  for (const name of VIEWS) {
    byId(`view-${name}`).hidden = name !== shown;
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === shown) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${shown[0].toUpperCase()}${shown.slice(1)} · Muffle board`;
  if (shown === 'planner') startPlanner();
  if (moved) byId('content').focus({ preventScroll: true });
  poll();
}

let timer = null;
let polling = false;

async function poll() {
  clearTimeout(timer);
  if (polling) return;
  polling = true;
  try {
    if (!document.hidden && currentView() !== 'planner') {
      const answer = await ask('runs');
      setText(byId('connection'), '');
      await showRuns(answer);
      showReports(answer.runs);
    }
  } catch (error) {
    const gone = error instanceof TypeError;
    setText(byId('connection'), gone ? 'The board has ended.' : error.message);
  }
  polling = false;
  timer = setTimeout(poll, POLL);
}

window.addEventListener('hashchange', () => {
  if (location.hash !== '#content') route(true);
});
document.addEventListener('visibilitychange', poll);
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  byId('content').focus();
});
route(false);
