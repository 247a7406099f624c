// Runs the commands that a page offers to copy, and compares what they print with what the page
// shows: restricted to nothing, and to the first program, image, process, service and container
// that its selector offers.
import { execFileSync } from "node:child_process";

/** A timeline of which the later half is chosen, by its slider. */
const RANGE = "timeline&range=1";

/** Views with a command, and what they show of its report. */
const VIEWS = [
  "overview", "flame", "flame&invert=1", "procedures", "procedures&by=image", "timeline", RANGE,
  "timeline&of=command", "timeline&of=procedure", "threads", "threads&of=pid", "threads&of=unit",
  "waits", "compare",
];
/** Points of a percentage by which a report of a file's call stacks may differ, which has no rare
 * calls. */
const RARE = 3;

/** What a view shows, as far as it is compared. */
function shown() {
  const text = (of) => of?.textContent ?? "";
  const hints = [...document.querySelectorAll("main .hint")].map(text);
  const visible = [...document.querySelectorAll("main .command code")].map((code) => code.title);
  const table = document.querySelector("main .table");
  const first = table?.querySelector(".row");
  return {
    commands: visible,
    leaves: hints.find((hint) => hint.startsWith("The command leaves out")) ?? "",
    unmet: !!document.querySelector("main .unmet"),
    // Rows of a file that has not all of them; and shares of all samples, not of the rows.
    isPart: hints.some((hint) => /are left out\.$|Of the rows in this file/.test(hint)),
    isOfAll: hints.some((hint) => /^Shares are of all samples/.test(hint)),
    failed: !!document.querySelector("main .failed:not(.unmet)"),
    rows: table ? Number(table.getAttribute("aria-rowcount")) - 1 : null,
    share: first
      ? parseFloat(text(first.querySelector(".share-number")).replace(/^[+−]/, "")) : null,
    name: first?.querySelector(".name")?.title ?? null,
    findings: document.querySelectorAll("main .finding").length,
    told: text(document.querySelector("main .told")),
  };
}

function run(line, dcpi, problem, where) {
  const [before, after] = line.includes(" -- ") ? line.split(/ -- (.*)/s) : [line, null];
  const typed = `${before} --format=json${after === null ? "" : ` -- ${after}`}`;
  try {
    const out = execFileSync("sh", ["-c", typed.replace(/^dcpi/, '"$DCPI"')], {
      encoding: "utf8", maxBuffer: 1 << 30, stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, DCPI: dcpi },
    });
    return JSON.parse(out);
  } catch (error) {
    // Exit code 1: done, and part of the database could not be read.
    if (error.status === 1 && error.stdout) return JSON.parse(error.stdout);
    if (error.status === 2 && NONE.test(error.stderr)) return null;
    problem(where, `copied command fails: ${line}: ${error.stderr || error.message}`);
    return null;
  }
}

/** A part of the machine may have no samples of an event, or of a set. */
const NONE = /no samples|no image with samples/;

const percent = (value) => {
  const of = 100 * value;
  return of !== 0 && Math.abs(of) < 0.05 ? of.toFixed(2) : of.toFixed(1);
};

/** Share and name of the first row as the page sorts it, of the event that it is of. */
function firstOf(report, view) {
  if (report.schema.name === "dcpi.diff") return [Math.abs(report.rows[0]?.change ?? 0), []];
  const event = report.events?.[0]?.name;
  const share = (row) =>
    report.schema.name === "dcpi.timeline" ? row.share.value : row.share?.[event]?.value ?? 0;
  const most = Math.max(...report.rows.map(share));
  const names = report.rows.filter((row) => percent(share(row)) === percent(most))
    .map((row) => row.procedure ?? row.key ?? row.command ?? row.image);
  return [most, names];
}

function compare(report, page, where, problem) {
  const differ = (what, a, b) => problem(where, `${what}: the page has ${a}, its command ${b}`);
  const name = report.schema.name;
  if (name === "dcpi.why") {
    if (page.isOfAll) return;
    if (page.findings !== report.findings.length) {
      differ("findings", page.findings, report.findings.length);
    }
  } else if (name === "dcpi.tree") {
    // From the root down, rare calls have the time of their callers; from the bottom up they have
    // none, which the page says.
    if (where.includes("invert")) return;
    const share = /, ([0-9.]+) %/.exec(page.told)?.[1];
    if (!page.leaves && share !== "100.0") differ("share of all calls", share, "100.0");
  } else if (page.rows !== null && report.rows) {
    const [most, names] = firstOf(report, where);
    if (page.leaves) return;
    // Of other measures than shares, changes have units of their own.
    if (name === "dcpi.diff" && report.measure !== "share") page.isOfAll = true;
    if (!page.isPart && page.rows !== report.rows.length) {
      differ("rows", page.rows, report.rows.length);
    }
    if (page.rows === 0 || report.rows.length === 0) return;
    const near = page.isPart ? RARE : 0;
    if (!page.isOfAll && Math.abs(page.share - 100 * most) > near + 0.051) {
      differ("share of the first row", page.share, percent(most));
    }
    const known = names.filter((one) => one !== undefined && one !== null);
    if (!page.isPart && known.length > 0 && page.name !== null && name !== "dcpi.diff"
      && !known.some((one) => String(one) === page.name)) {
      differ("first row", page.name, known.join(" or "));
    }
  }
}

async function to(page, state, settled) {
  await page.evaluate((fragment) => (location.hash = fragment), state);
  await settled(page);
}

/** The first choice of each kind that the selector offers; the first of all by the keys. */
async function choices(page, link, problem, settled) {
  await to(page, link("v=about"), settled);
  const kinds = await offered(page);
  const found = [];
  for (const [number, [filter, name]] of kinds.entries()) {
    await to(page, link("v=about"), settled);
    await offered(page);
    if (number === 0) {
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("Enter");
    } else {
      await page.evaluate((of, is) => [...document.querySelectorAll("#choices [data-filter]")]
        .find((one) => one.dataset.filter === of && one.dataset.name === is).click(), filter, name);
    }
    await settled(page);
    // The chip has the name that the choice had once the choices are known.
    const isNamed = (is) => document.querySelector(".chips .chip strong")?.textContent === is;
    await page.waitForFunction(isNamed, { timeout: 5000 }, name).catch(() => {});
    const [chip, hash] = await page.evaluate(() => [
      document.querySelector(".chips .chip strong")?.textContent ?? "", location.hash.slice(1),
    ]);
    if (chip !== name) {
      problem(`the choice of ${name}`, `restricts the page to ${chip || "nothing"}`);
    }
    found.push({ name, hash });
  }
  return found;
}

/** Opens the selector and unfolds all: for each kind of choice the first, by filter and name. */
async function offered(page) {
  await page.evaluate(() => document.activeElement?.blur());
  await page.focus(".chooser input");
  await page.waitForSelector("#choices [data-filter]", { timeout: 60000 });
  // A server gives one kind of choices after the other.
  await page.waitForNetworkIdle({ idleTime: 400, timeout: 300000 });
  await page.evaluate(async () => {
    const folded = () => [...document.querySelectorAll("#choices .fold")]
      .find((one) => one.textContent === "▸");
    for (let fold = folded(); fold; fold = folded()) {
      fold.click();
      await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
    }
  });
  return page.evaluate(() => {
    const all = [...document.querySelectorAll("#choices [data-filter]")];
    const first = new Map(all.reverse().map((one) => [one.dataset.filter, one.dataset.name]));
    // The one that the keys come to first is the first of all.
    const [top] = all.reverse();
    const others = [...first].filter(([filter]) => filter !== top.dataset.filter);
    return [[top.dataset.filter, top.dataset.name], ...others];
  });
}

async function chooseRange(page, settled) {
  const isChosen = await page.evaluate(() => {
    const from = document.querySelector(".ends input");
    if (!from) return false;
    from.value = String(Math.ceil(Number(from.max) / 2));
    from.dispatchEvent(new Event("input", { bubbles: true }));
    return true;
  });
  if (isChosen) await page.waitForFunction(() => location.hash.includes("since="));
  await settled(page);
}

/** A range that is drawn holds in all views, of a server also for their reports, until removed. */
async function keepsRange(page, link, problem, settled) {
  await to(page, link("v=timeline"), settled);
  await chooseRange(page, settled);
  const views = await page.$$eval("nav a", (all) => all.map((one) => one.textContent));
  for (const view of views) {
    await page.evaluate((name) =>
      [...document.querySelectorAll("nav a")].find((one) => one.textContent === name).click(),
    view);
    await settled(page);
    const [chip, isLive, command] = await page.evaluate(() => [
      document.querySelector(".chips .chip")?.textContent ?? "",
      JSON.parse(document.getElementById("config").textContent).live,
      document.querySelector("main .command code")?.title ?? "",
    ]);
    if (!/only from .* UTC/i.test(chip)) problem(`${view} of a range`, "the range has no pill");
    if (isLive && /dcpi (prof|why|tree)/.test(command) && !command.includes("--since=")) {
      problem(`${view} of a range`, `the command is not of it: ${command}`);
    }
  }
  await page.click(".chips .chip");
  await settled(page);
  if (page.url().includes("since=")) problem("a range", "a click on its pill does not remove it");
}

/** A served page gives its selection as one file, with the reader's note in it. */
async function saves(page, link, problem, settled) {
  await to(page, link("v=procedures"), settled);
  const isLive = await page.evaluate(() => !!document.querySelector(".share-file"));
  if (!isLive) return;
  // What would be downloaded is kept here.
  await page.evaluate(() => {
    const make = URL.createObjectURL;
    URL.createObjectURL = (made) => {
      made.text().then((text) => (window.saved = text));
      return make.call(URL, made);
    };
    document.querySelector(".share-file").open = true;
  });
  const note = "a <b>note</b> & 'more'";
  await page.type(".share-file input", note);
  await page.click(".share-file [type=submit]");
  const told = () => /^(Saved|It could)/.test(
    document.querySelector(".share-file [role=status]").textContent);
  await page.waitForFunction(told, { timeout: 300000 });
  const saved = await page.evaluate(() => window.saved ?? "");
  const config = /id="config">(.*?)<\/script>/s.exec(saved)?.[1];
  if (!config || JSON.parse(config).note !== note || !saved.includes('id="report-0"')) {
    problem("the saved file", `is not that of the selection: ${saved.slice(0, 200)}`);
  }
}

/** Looks at each view, restricted and not, and runs what it offers to copy. */
export async function commands(page, { link, dcpi, problem, settled }) {
  await keepsRange(page, link, problem, settled);
  await saves(page, link, problem, settled);
  const all = [{ name: "all", hash: link("") }, ...await choices(page, link, problem, settled)];
  let ran = 0;
  for (const { name, hash } of all) {
    for (const view of VIEWS) {
      const state = hash.replace(/&?v=about/, "");
      const where = `${view} of ${name}`;
      await to(page, [state, `v=${view}`].filter(Boolean).join("&"), settled);
      if (view === RANGE) await chooseRange(page, settled);
      const now = await page.evaluate(shown);
      if (now.failed) continue;
      for (const line of now.commands.slice(0, 1)) {
        const report = run(line, dcpi, problem, where);
        ran += 1;
        if (report && !now.unmet) compare(report, now, where, problem);
      }
    }
  }
  console.log(`${ran} copied commands, for ${all.length - 1} restrictions`);
  await to(page, link("v=overview"), settled);
}
