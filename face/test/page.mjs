// Looks at pages as people see them: `node test/page.mjs PAGE... [--shots DIR] [--untimed]
// [--dcpi PROGRAM]`, where a PAGE is a file of `dcpi html` or of `dcpi-fleet review --format html`,
// or the link that `dcpi serve` prints. Every view at five widths, light and dark: no error on the
// console, nothing wider than the window, nothing that axe finds, keys that move in the flame
// graph; and the times until the first picture, a view and a filtered table, which are limited
// without `--untimed`. With `--dcpi`, the commands that the page offers to copy print what it shows
// (commands.mjs). Needs `npm ci` and Chromium.
import puppeteer from "puppeteer-core";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { commands } from "./commands.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const VIEWS = [
  "overview", "flame", "flame&colour=kind", "flame&invert=1&colour=cause", "procedures",
  "procedures&by=image", "procedure", "timeline", "threads", "threads&of=unit", "waits",
  "compare", "about", "selector",
];
const OF_FLEET = ["summary", "changes", "procedures", "map", "fleet", "hosts"];
const SIZES = [[380, 800], [400, 800], [1280, 800], [2000, 1100], [2500, 1200]];
/** Longest times in milliseconds: first picture, another view, a filtered table. */
const LIMITS = { first: 300, view: 200, filter: 100 };

const words = process.argv.slice(2);
const at = words.indexOf("--shots");
const [, shots] = at < 0 ? [] : words.splice(at, 2);
const untimed = words.indexOf("--untimed");
if (untimed >= 0) words.splice(untimed, 1);
const dcpiAt = words.indexOf("--dcpi");
const [, dcpi] = dcpiAt < 0 ? [] : words.splice(dcpiAt, 2);
let problems = 0;
const told = new Set();

/** `what` is told once, with the first place where it is seen. */
function problem(where, what = where) {
  problems += 1;
  if (!told.has(what)) console.log(`PROBLEM ${where}${what === where ? "" : `: ${what}`}`);
  told.add(what);
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
  protocolTimeout: 300000,
});

async function settled(page) {
  const done = () => !document.querySelector(".waiting") && !document.querySelector(".stale");
  await page.waitForFunction(done, { timeout: 300000, polling: 50 });
  await page.evaluate(() => new Promise((next) => requestAnimationFrame(() => setTimeout(next))));
}

/** The link to the hottest procedure of which there is a row. */
async function procedure(page) {
  await page.evaluate(() => (location.hash += "&v=procedures"));
  await settled(page);
  await page.evaluate(() => document.querySelector(".row")?.click());
  await settled(page);
  return page.evaluate(() => location.hash.replace(/^#/, ""));
}

/** Opens the selector in the head, with the first choice marked. */
async function openSelector(page) {
  await page.evaluate(() => document.activeElement?.blur());
  await page.focus(".chooser input");
  await page.waitForSelector("#choices [data-filter]", { timeout: 60000 });
  await page.keyboard.press("ArrowDown");
}

async function look(page, name, state) {
  for (const [width, height] of SIZES) {
    for (const theme of ["light", "dark"]) {
      await page.setViewport({ width, height });
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: theme }]);
      await page.evaluate((to) => (location.hash = to), state);
      await settled(page);
      if (name === "selector") await openSelector(page);
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) problem(`${name} at ${width}: ${wide} px too wide`);
      if (width === 1280 || width === 400) {
        await page.evaluate(axe);
        const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
        for (const one of found.violations) {
          const where = one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join("\n    ");
          problem(`${name} at ${width}, ${theme}`, `${one.id}: ${one.help}\n    ${where}`);
        }
      }
      const plain = name.replace(/[^a-z]+/g, "-");
      if (shots) await page.screenshot({ path: `${shots}/${plain}-${width}-${theme}.png` });
    }
  }
}

/** Keys that go down in the flame graph have the frame told that they come to. */
async function keys(page, state) {
  await page.evaluate((to) => (location.hash = to), state);
  await settled(page);
  const canvas = await page.$("canvas");
  if (!canvas) return;
  await canvas.focus();
  const told = () => document.querySelector(".told")?.textContent ?? "";
  const before = await page.evaluate(told);
  for (const key of ["ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
  await settled(page);
  if ((await page.evaluate(told)) === before) problem("keys move nothing in the flame graph");
}

async function timed(page, name, limit, act) {
  const ms = await act();
  console.log(`${name}: ${ms.toFixed(0)} ms`);
  if (ms > limit && untimed < 0) problem(`${name} took ${ms.toFixed(0)} ms, more than ${limit}`);
}

/** The time from a change of the link to the next picture. */
function changed(page, to) {
  return page.evaluate(async (state) => {
    if (location.hash === `#${state}`) return 0;
    const begun = performance.now();
    location.hash = state;
    await new Promise((next) => addEventListener("hashchange", next, { once: true }));
    await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
    return performance.now() - begun;
  }, to);
}

for (const word of words) {
  const url = /^https?:/.test(word) ? word : `file://${resolve(word)}`;
  const [base, key = ""] = url.split("#");
  const isFile = base.startsWith("file:");
  const page = await browser.newPage();
  page.on("console", (message) => problem(`console: ${message.text()}`));
  page.on("pageerror", (error) => problem(`script: ${error.message}`));
  page.on("request", (request) => {
    const to = request.url();
    if (!to.startsWith(base.replace(/\/$/, "")) && to !== url) problem(`a connection to ${to}`);
  });
  if (shots) mkdirSync(shots, { recursive: true });
  await page.setViewport({ width: 1280, height: 800 });
  await page.goto(`${base}#${key}`);
  await settled(page);
  const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0;
  if (isFile) await timed(page, `${word}: first picture`, LIMITS.first, () => page.evaluate(paint));
  const link = (state) => [key, state].filter(Boolean).join("&");
  const isFleet = await page.evaluate(() => !!document.querySelector('nav a[href*="v=summary"]'));
  if (!isFleet && dcpi) await commands(page, { link, dcpi: resolve(dcpi), problem, settled });
  const hottest = isFleet ? "" : await procedure(page);
  for (const view of isFleet ? OF_FLEET : VIEWS) {
    const state = view === "procedure" ? hottest
      : link(`v=${view === "selector" ? "overview" : view}`);
    await look(page, view, state);
  }
  await page.setViewport({ width: 1280, height: 800 });
  await keys(page, link(isFleet ? "v=map" : "v=flame"));
  const others = ["procedures", "flame", "timeline", "threads", "overview"];
  for (const view of isFleet ? OF_FLEET.slice(0, 5) : others) {
    await changed(page, link(isFleet ? "v=hosts" : "v=about"));
    const act = () => changed(page, link(`v=${view}`));
    if (isFile) await timed(page, `${word}: ${view}`, LIMITS.view, act);
  }
  await changed(page, link("v=procedures"));
  await settled(page);
  for (const filter of ["a", "ma", "main", ""]) {
    const act = () => changed(page, link(`v=procedures&q=${filter}`));
    await timed(page, `${word}: filter "${filter}"`, LIMITS.filter, act);
  }
  const alive = await page.evaluate(() => window.hostile === undefined);
  if (!alive) problem("a name was run as a script");
  await page.close();
}
await browser.close();
console.log(problems === 0 ? "no problems" : `${problems} problems`);
process.exit(problems === 0 ? 0 : 1);
