// Checks a report in headless Chromium: light and dark, on a wide screen and on a phone.
//
//   muffle train
//   npm install --prefix peers/.node playwright
//   node peers/report.mjs muffle-run/report.html shots
//
// Needs Chromium (Debian: apt-get install chromium), found as /usr/bin/chromium or in $CHROMIUM.
// Writes four screenshots. Exits with 1 if a page scrolls sideways, has an error or requests anything
// from a network, or if a text has less contrast than 4.5:1.
import { createRequire } from 'node:module';
import { basename, join, resolve } from 'node:path';
import { mkdirSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const { chromium } = createRequire(new URL('.node/', import.meta.url))('playwright');
const [file, out] = process.argv.slice(2);
if (!file || !out) { console.error('usage: node report.mjs file.html folder'); process.exit(2); }
mkdirSync(out, { recursive: true });
const url = pathToFileURL(resolve(file)).href;
const name = basename(file).replace(/\.[^.]*$/, '');
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
let failures = 0;
const fail = (what) => { failures += 1; console.error(`FAIL ${what}`); };

// Compares every text with the nearest opaque background under it.
const contrast = () => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = (c) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = (c) => { const [r, g, b] = c.map((x) => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const poor = new Map();
  const walker = document.createTreeWalker(document.body ?? document.documentElement, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const e = node.parentElement;
    if (!node.data.trim() || !e.getClientRects().length || e.closest('style,title,desc')) continue;
    const ink = rgb(e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color);
    let under = e, paper;
    for (; under; under = under.parentElement) { paper = rgb(getComputedStyle(under).backgroundColor); if (paper[3] === 255) break; }
    const r = ratio(ink, under ? paper : [255, 255, 255]);
    if (r < 4.5) poor.set(`${r.toFixed(2)} <${e.tagName} class=${e.getAttribute('class')}>`, node.data.trim().slice(0, 40));
  }
  return [...poor].map(([k, v]) => `${k} ${v}`);
};

for (const width of [1200, 360]) {
  for (const scheme of ['light', 'dark']) {
    const page = await browser.newPage({ viewport: { width, height: width === 360 ? 740 : 900 }, colorScheme: scheme, deviceScaleFactor: width === 360 ? 2 : 1 });
    const at = `${name} at ${width} px, ${scheme}`;
    page.on('console', (m) => { if (m.type() === 'error') fail(`${at}: console: ${m.text()}`); });
    page.on('pageerror', (e) => fail(`${at}: ${e}`));
    page.on('request', (r) => { if (r.url() !== url && !r.url().startsWith('data:')) fail(`${at}: request: ${r.url()}`); });
    await page.goto(url);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    if (wide > width) fail(`${at}: ${wide} px wide`);
    if (url.endsWith('.html')) for (const poor of await page.evaluate(contrast)) fail(`${at}: contrast ${poor}`);
    await page.screenshot({ path: join(out, `${name}-${width}-${scheme}.png`), fullPage: url.endsWith('.html') });
    await page.close();
  }
}
await browser.close();
console.log(failures ? `${failures} failures` : `${name}: passed`);
process.exit(failures ? 1 : 0);
