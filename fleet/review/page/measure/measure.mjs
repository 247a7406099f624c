// Measures a review's page in Chromium, and takes pictures of it.
//
//   cargo run --release --example large -- 20000 > /tmp/review.html   (in fleet/review)
//   npm install --prefix /tmp/m playwright-core                       (downloads no browser)
//   NODE_PATH=/tmp/m/node_modules node page/measure/measure.mjs /tmp/review.html /tmp/pictures
//
// CHROMIUM names the browser, by default Debian's. Prints medians of RUNS runs, in milliseconds.
// A filter or a sort takes until its rows are in the document and laid out.
import { createRequire } from "node:module";
import { mkdirSync, statSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { chromium } = createRequire(import.meta.url)("playwright-core");
const RUNS = 7;
const [file, pictures] = process.argv.slice(2);
if (!pictures) {
  console.error("measure.mjs: a page and a folder for pictures are needed");
  process.exit(2);
}
const url = pathToFileURL(file).href;
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM || "/usr/lib/chromium/chromium",
  args: ["--no-sandbox"],
});
const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
const said = [];

const opened = async (hash, options = {}) => {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const tab = await context.newPage();
  tab.on("console", (message) => { if (message.type() === "error") said.push(message.text()); });
  tab.on("pageerror", (error) => said.push(String(error)));
  tab.on("request", (request) => { if (!request.url().startsWith(url)) said.push(request.url()); });
  await tab.goto(url + hash);
  return tab;
};

// First paint, and when the script was through.
const paint = async (hash) => {
  const tab = await opened(hash);
  const times = await tab.evaluate(() => new Promise((done) => {
    const see = (list) => {
      const paint = list.getEntries().find((entry) => entry.name === "first-contentful-paint");
      const { domContentLoadedEventEnd: ready } = performance.getEntriesByType("navigation")[0];
      if (paint) done([paint.startTime, ready]);
    };
    new PerformanceObserver(see).observe({ type: "paint", buffered: true });
  }));
  await tab.context().close();
  return times;
};
// What an action takes until the table's rows are laid out.
const timed = (tab, action, argument) => tab.evaluate(([action, argument]) => {
  const grid = document.getElementById("rows");
  const begin = performance.now();
  if (action === "filter") {
    const filter = document.getElementById("filter");
    filter.value = argument;
    filter.dispatchEvent(new Event("input"));
  } else grid.querySelectorAll(".titles button")[argument].click();
  grid.getBoundingClientRect();
  return performance.now() - begin;
}, [action, argument]);

console.log("file, MB", (statSync(file).size / 1e6).toFixed(2));
for (const hash of ["", "#procedures", "#map"]) {
  const runs = [];
  for (let run = 0; run < RUNS; run += 1) runs.push(await paint(hash));
  const [first, ready] = [0, 1].map((index) => median(runs.map((run) => run[index])).toFixed(0));
  console.log(hash || "#summary", "first paint", first, "ready", ready);
}
const actions = [["filter", "v"], ["filter", "visit rank"], ["filter", "nothing-has-this"],
  ["filter", ""], ["sort", 0], ["sort", 3], ["sort", 4], ["sort", 6]];
const times = actions.map(() => []);
for (let run = 0; run < RUNS; run += 1) {
  const tab = await opened("#procedures");
  for (const [index, [action, argument]] of actions.entries()) {
    times[index].push(await timed(tab, action, argument));
  }
  await tab.context().close();
}
actions.forEach(([action, argument], index) => {
  console.log(action, JSON.stringify(argument), "median", median(times[index]).toFixed(1), "most",
    Math.max(...times[index]).toFixed(1));
});

// The keyboard alone is enough.
const keys = await opened("#summary");
const focused = () => keys.evaluate(() => {
  const { activeElement: element } = document;
  return element.id || (element.tagName === "BUTTON" ? element.textContent : element.tagName);
});
const chosen = () => keys.evaluate(() => {
  const grid = document.getElementById("rows");
  const row = document.getElementById(grid.getAttribute("aria-activedescendant"));
  const [inside, line] = [grid.getBoundingClientRect(), row.getBoundingClientRect()];
  const seen = line.top >= inside.top + 29 && line.bottom <= inside.bottom + 1;
  return row.id + (seen ? "" : " out of sight");
});
const expect = async (what, found, wanted) => {
  if (found !== wanted) said.push(what + ": " + found + ", not " + wanted);
};
for (const [key, element, row] of [
  ["/", "filter", "row-0"], ["v", "filter", "row-0"], ["Enter", "rows", "row-0"],
  ["ArrowDown", "rows", "row-1"], ["PageDown", "rows", null], ["Home", "rows", "row-0"],
  ["Enter", "Copy", "row-0"], ["Escape", "rows", "row-0"], ["End", "rows", null],
  ["Tab", "core-hours ▼", null], ["Enter", "core-hours ▲", "row-0"],
]) {
  await keys.keyboard.press(key);
  await keys.evaluate(() => new Promise(requestAnimationFrame));
  await expect(key + " focuses", await focused(), element);
  if (row) await expect(key + " chooses", await chosen(), row);
  else if ((await chosen()).includes("sight")) said.push(key + " loses the row");
}
for (const [key, says] of [["m", ""], ["ArrowRight", ": "], ["ArrowDown", ": "],
  ["Enter", ": "], ["ArrowRight", ": "], ["Escape", ""], ["t", ""]]) {
  await keys.keyboard.press(key);
  await keys.evaluate(() => new Promise(requestAnimationFrame));
  const box = await keys.textContent("#box");
  if (says && !box.includes(says)) said.push(key + " of the map: " + box);
}
await expect("t of the map focuses", await focused(), "rows");
await keys.context().close();

mkdirSync(pictures, { recursive: true });
for (const [name, options] of Object.entries({
  light: { colorScheme: "light" },
  dark: { colorScheme: "dark" },
  narrow: { colorScheme: "light", viewport: { width: 400, height: 800 } },
})) {
  for (const view of ["summary", "changes", "procedures", "map", "fleet", "hosts"]) {
    const tab = await opened("#" + view, options);
    if (view === "procedures") await tab.keyboard.press("/");
    const wide = await tab.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) said.push(name + " " + view + " is " + wide + " pixels too wide");
    if (view !== "procedures" && view !== "map") {
      await tab.setViewportSize({ width: options.viewport?.width ?? 1280, height: 1500 });
    }
    await tab.screenshot({ path: pictures + "/" + view + "-" + name + ".png" });
    await tab.context().close();
  }
}
const tab = await opened("#procedures");
await expect("the title", await tab.title(), "Fleet review 2026-W47");
await browser.close();
if (said.length > 0) {
  console.error([...new Set(said)].join("\n"));
  process.exit(1);
}
