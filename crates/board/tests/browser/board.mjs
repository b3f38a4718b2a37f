// The board in a browser, with the program itself: planner, live curves, report, access, layout.
//
//   ./run.sh [FOLDER FOR SCREENSHOTS]

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const MUFFLE = process.env.MUFFLE;
const shots = process.argv[2];
const place = mkdtempSync(join(tmpdir(), 'muffle-board-'));
const children = [];

function start(...arguments_) {
  const child = spawn(MUFFLE, arguments_, { cwd: place, stdio: ['ignore', 'pipe', 'pipe'] });
  child.output = '';
  child.stdout.on('data', (text) => (child.output += text));
  child.stderr.on('data', (text) => (child.output += text));
  child.ended = new Promise((resolve) => child.on('close', resolve));
  children.push(child);
  return child;
}

const json = (...arguments_) => JSON.parse(execFileSync(MUFFLE, [...arguments_, '--json'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));

async function until(what, test, seconds = 60) {
  const end = Date.now() + 1000 * seconds;
  for (;;) {
    const result = await test();
    if (result) return result;
    assert(Date.now() < end, `no ${what} within ${seconds} s`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function check(name, test) {
  const begin = Date.now();
  await test();
  console.log(`ok  ${name} (${((Date.now() - begin) / 1000).toFixed(1)} s)`);
}

const TRAIN = ['--set', 'evaluation.every=1', '--set', 'evaluation.examples=4', '--set',
  'evaluation.test_examples=2', '--set', 'evaluation.samples=1', '--set', 'evaluation.score=false',
  '--set', 'training.checkpoint_every=1', '--set', 'training.threads=1', '--lot-size', '8'];

let browser;
try {
  // So many steps that the run does not end before the test does.
  const live = start('train', '--out', 'live', '--steps', '5000', ...TRAIN);
  const done = start('train', '--out', 'done', '--steps', '2', ...TRAIN);
  const board = start('board', '.', '--port', '0');
  const address = (await until('address', () => board.output.match(/^(http:\S+)\n/)))[1];
  assert.match(address, /^http:\/\/127\.0\.0\.1:\d+\/[0-9a-f]{32}\/$/);
  assert.match(board.output, /Only this machine can reach it/);

  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu'],
  });
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 } });
  const page = await context.newPage();
  const complaints = [];
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('console', (message) => {
    // The planner refuses impossible settings with status 400.
    if (message.type() === 'error' && !/status of 400/.test(message.text())) complaints.push(message.text());
  });
  const text = (selector) => page.locator(selector).textContent();

  await check('the planner shows the number of muffle calibrate', async () => {
    await page.goto(`${address}#planner`);
    await page.waitForFunction(() => document.querySelector('#chart-attacker svg') && document.querySelector('#repeated tbody tr'));
    const compare = async () => {
      await page.waitForFunction(() => document.querySelector('#plan-figures').getAttribute('aria-busy') === 'false');
      const value = (id) => page.locator(`#${id}`).inputValue();
      const [records, epsilon, delta, lot] = await Promise.all(['records', 'epsilon', 'delta', 'lot'].map(value));
      const steps = await text('#plan-steps');
      const sampling = await page.locator('#sampling').inputValue();
      const found = json('calibrate', '-n', records, '-e', epsilon, '-d', delta, '-b', lot, '-t', steps, '--sampling', sampling);
      const shown = Number(await text('#plan-sigma'));
      assert(shown >= found.noise_multiplier && shown < found.noise_multiplier + 1.1e-6, `${shown} ${found.noise_multiplier}`);
      const epsilonShown = Number(await text('#plan-epsilon'));
      assert(epsilonShown >= found.epsilon - 1e-9 && epsilonShown < found.epsilon + 1.1e-4);
      return shown;
    };
    const before = await compare();
    // Drags the slider of ε to the right, in small moves.
    const slider = await page.locator('#epsilon-slider').boundingBox();
    const [y, at] = [slider.y + slider.height / 2, (share) => slider.x + slider.width * share];
    await page.mouse.move(at(0.59), y);
    await page.mouse.down();
    for (let share = 0.6; share <= 0.8; share += 0.01) await page.mouse.move(at(share), y);
    await page.mouse.up();
    await page.waitForTimeout(50);
    const after = await compare();
    assert(after < 0.8 * before, `less noise for a larger ε: ${before}, ${after}`);
    // By keyboard, and with another sampling method.
    await page.locator('#lot-slider').focus();
    for (let i = 0; i < 20; i++) await page.keyboard.press('ArrowLeft');
    await page.locator('#sampling').selectOption('fixed');
    await page.waitForTimeout(50);
    assert.notEqual(await compare(), after);
    const fields = ['records', 'lot'].map((id) => page.locator(`#${id}`));
    const [records, lot] = await Promise.all(fields.map((field) => field.inputValue()));
    assert.match(await text('#account'), new RegExp(`--dataset-size ${records} --lot-size ${lot} .*--sampling fixed`));
    await page.locator('#sampling').selectOption('poisson');
  });

  await check('a recommendation can be taken, and a plan shown', async () => {
    await page.locator('#take').click();
    await page.waitForFunction(() => document.querySelector('#take').disabled);
    const lot = await page.locator('#lot').inputValue();
    assert.match(await text('#recommended'), new RegExp(`lots of ${lot},`));
    await page.locator('#show-plan').click();
    await page.waitForFunction((size) => document.querySelector('#run-toml').textContent.includes(`lot_size = ${size}`), lot);
    assert.equal(await page.locator('#show-plan').getAttribute('aria-expanded'), 'true');
    await page.locator('[data-copy="command"]').click();
    await page.waitForFunction(() => document.querySelector('#copied').textContent !== '');
  });

  await check('an impossible setting is explained', async () => {
    await page.locator('#delta').fill('0.5');
    await page.waitForFunction(() => !document.querySelector('#plan-error').hidden);
    assert.match(await text('#plan-error'), /less than 1\/N/);
    await page.locator('#auto-delta').check();
    await page.waitForFunction(() => document.querySelector('#plan-error').hidden);
  });

  await check('the curve of a live run grows', async () => {
    await page.locator('nav a[href="#runs"]').click();
    const row = page.locator('#runs tbody tr', { hasText: 'live' });
    await row.waitFor({ timeout: 60000 });
    await until('running', async () => (await row.locator('.chip').textContent()) === 'running');
    for (const tick of await page.locator('#runs tbody input').all()) await tick.setChecked(false);
    await row.locator('input').check();
    const markers = () => page.locator('[data-title="NLL"] svg path title').count();
    const first = await until('curve', markers);
    const words = await row.locator('td').nth(1).textContent();
    await until('longer curve', async () => (await markers()) >= first + 2, 90);
    await until('next step', async () => (await row.locator('td').nth(1).textContent()) !== words);
    await until('time left', async () => /left/.test(await row.locator('td').nth(1).textContent()));
    assert.equal(await page.locator('[data-title="Privacy cost"] svg polyline').count(), 1);
    assert.match(await row.locator('td').nth(2).textContent(), /^\d\.\d{3} of 3\.000 at δ/);
  });

  await check('texts of runs are shown as texts', async () => {
    const name = '<img src=x onerror="document.title=1">';
    const folder = join(place, name);
    mkdirSync(folder);
    writeFileSync(join(folder, '.lock'), '');
    writeFileSync(join(folder, 'config.toml'), '[optimizer]\nname = "<script>alert(1)</script>"\n');
    const entry = { step: 0, epsilon: 0, learning_rate: 0, figures: 'NON-PRIVATE', nll: 2, accuracy: null, bleu: null };
    writeFileSync(join(folder, 'history.jsonl'), `${JSON.stringify(entry)}\n`);
    writeFileSync(join(folder, 'samples.json'), JSON.stringify([{ source: '<b>a</b>', text: '<script>b</script>', references: [] }]));
    const row = page.locator('#runs tbody tr', { hasText: '<img' });
    await row.waitFor();
    assert.equal(await row.locator('.chip').textContent(), 'damaged');
    await row.locator('input').check();
    const details = page.locator('.run-details', { hasText: '<img' });
    await details.waitFor();
    assert.match(await details.textContent(), /<b>a<\/b>.*<script>b<\/script>/s);
    await until('mark', async () => (await page.locator('[data-title="NLL"] .badge').count()) === 1);
    assert.equal(await page.locator('main img, main script, main b').count(), 0);
    await row.locator('input').uncheck();
    rmSync(folder, { recursive: true });
  });

  await check('a killed run is interrupted, a resumed one runs', async () => {
    const row = page.locator('#runs tbody tr', { hasText: 'live' });
    const state = (expected, seconds) => until(expected, async () => (await row.locator('.chip').textContent()) === expected, seconds);
    live.kill('SIGKILL');
    await state('interrupted', 60);
    start('resume', 'live');
    await state('running', 60);
  });

  await check('a report is shown and verified', async () => {
    assert.equal(await done.ended, 0, done.output);
    await page.locator('nav a[href="#report"]').click();
    await until('report', async () => /done/.test(await text('#report-run')));
    const frame = page.frameLocator('#report-frame');
    await frame.locator('h1').waitFor();
    assert.match(await frame.locator('.big').textContent(), /ε = 3\.000/);
    await page.locator('#verify').click();
    await page.locator('.verdict').waitFor({ timeout: 60000 });
    assert.match(await text('.verdict .sentence'), /^Consistent: ε = 3\.000/);
    assert((await page.locator('.verdict li.passed').count()) >= 10);
    assert.equal(await page.locator('.verdict li.failed').count(), 0);
  });

  await check('nothing is shown without the token', async () => {
    const { origin } = new URL(address);
    for (const path of ['/', '/runs', `/${'0'.repeat(32)}/`]) {
      const response = await page.request.get(origin + path);
      assert.equal(response.status(), 404);
    }
    // A page of another origin that knows the address can neither read nor start anything.
    const other = await context.newPage();
    await other.goto('data:text/html,<p>other</p>');
    const read = await other.evaluate((url) => fetch(`${url}runs`).then(() => 'read', () => 'refused'), address);
    assert.equal(read, 'refused');
    const framed = await other.evaluate((url) => new Promise((resolve) => {
      const frame = document.createElement('iframe');
      frame.onload = () => setTimeout(() => resolve(frame.contentWindow.length), 200);
      frame.src = url;
      document.body.append(frame);
    }), address);
    assert.equal(framed, 0);
    await other.close();
  });

  await check('no errors on the page', () => assert.deepEqual(complaints, []));

  await check('names, labels and focus', async () => {
    for (const view of ['runs', 'planner', 'report']) {
      await page.goto(`${address}#${view}`);
      await page.waitForTimeout(1500);
      const problems = await page.evaluate(accessibility);
      assert.deepEqual(problems, [], view);
    }
    await page.goto(`${address}#planner`);
    await page.reload();
    await page.waitForFunction(() => document.querySelector('#records'));
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
    await page.keyboard.press('Enter');
    const order = [];
    for (let i = 0; i < 6; i++) {
      await page.keyboard.press('Tab');
      order.push(await page.evaluate(() => document.activeElement.id));
    }
    assert.deepEqual(order, ['records', 'records-slider', 'epsilon', 'epsilon-slider', 'delta', 'delta-slider']);
    const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle);
    assert.notEqual(outline, 'none');
  });

  await check('no view is wider than the window', async () => {
    for (const colorScheme of ['light', 'dark']) {
      for (const width of [360, 800, 1400]) {
        await page.emulateMedia({ colorScheme });
        await page.setViewportSize({ width, height: 900 });
        for (const view of ['runs', 'planner', 'report']) {
          await page.goto(`${address}#${view}`);
          await page.waitForTimeout(view === 'planner' ? 400 : 1300);
          if (view === 'report') await page.frameLocator('#report-frame').locator('h1').waitFor();
          const wide = await page.evaluate(() => document.documentElement.scrollWidth);
          assert(wide <= width, `${view} at ${width}: ${wide}`);
          const contrasts = await page.evaluate(lowContrasts);
          assert.deepEqual(contrasts, [], `${view} ${colorScheme}`);
          await page.screenshot({ path: join(shots, `${view}-${width}-${colorScheme}.png`), fullPage: true });
        }
      }
    }
  });
  console.log(`screenshots: ${shots}`);
} finally {
  await browser?.close();
  for (const child of children) child.kill('SIGKILL');
  await Promise.all(children.map((child) => child.ended));
  rmSync(place, { recursive: true, force: true });
}

/** Controls without a name, images without a text, ids that occur twice, headings out of order. */
function accessibility() {
  const problems = [];
  const visible = (node) => node.checkVisibility();
  const name = (node) => (node.getAttribute('aria-label') ?? '')
    || [...(node.labels ?? [])].map((label) => label.textContent).join(' ') || (node.matches('a, button, summary') ? node.textContent : '') || (node.getAttribute('title') ?? '');
  for (const node of document.querySelectorAll('a, button, input, select, summary, iframe')) {
    if (visible(node) && !name(node).trim()) problems.push(`no name: ${node.outerHTML.slice(0, 80)}`);
  }
  for (const svg of document.querySelectorAll('svg')) {
    if (svg.getAttribute('role') !== 'img' || !svg.querySelector('title')) problems.push('a chart without a title');
  }
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  ids.filter((id, index) => ids.indexOf(id) !== index).forEach((id) => problems.push(`id twice: ${id}`));
  for (const node of document.querySelectorAll('[aria-describedby], [aria-labelledby], [aria-controls]')) {
    for (const attribute of ['aria-describedby', 'aria-labelledby', 'aria-controls']) {
      const id = node.getAttribute(attribute);
      if (id && !document.getElementById(id)) problems.push(`${attribute} of ${id}`);
    }
  }
  let last = 0;
  for (const heading of [...document.querySelectorAll('h1, h2, h3, h4')].filter(visible)) {
    const level = Number(heading.tagName[1]);
    if (level > last + 1) problems.push(`heading ${heading.textContent}: level ${level} after ${last}`);
    last = level;
  }
  if (document.querySelectorAll('h1').length !== 3 || [...document.querySelectorAll('h1')].filter(visible).length !== 1) problems.push('expected one visible h1');
  if (!document.documentElement.lang || !document.title) problems.push('no language or title');
  return problems;
}

/** Texts with a contrast below 4.5:1 against the first opaque background above them. */
function lowContrasts() {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const background = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll('body *:not(svg *):not(button:disabled):not(select:disabled)')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const [a, b] = [luminance(parse(getComputedStyle(node).color)), luminance(background(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${contrast.toFixed(2)}: ${node.textContent.slice(0, 40)}`);
  }
  return found;
}
