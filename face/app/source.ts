// Reports, each by the command of dcpi that prints it: from the file, or from the server.
import { useEffect, useState } from "preact/hooks";
import { State, state, useStateOfLink } from "./state";

export interface Config {
  /** Whether a server answers; else all reports are in the page. */
  live: boolean;
  /** What the page's maker says of it. */
  note: string | null;
  /** The database's directory, for commands. */
  db: string;
  /** Options that all of the page's commands have: what was selected when the page was made. */
  selection: string[];
  /** Further options of commands of call stacks. */
  threads: string[];
  /** Images that tables and findings of a file are of; all, without. */
  images: string[];
  /** Version of dcpi. */
  version: string;
  /** The words of each report in the page, in the order of its script elements. */
  reports: string[][];
  /** The rest of each report's command: options of the page, and the images that it is of. */
  more: string[][];
  /** Words of reports, each with its other names and what it means. */
  terms: [string[], string][];
  /** The sets that a page without server compares: before and after. */
  sets: [string, string] | null;
}

const configElement = document.getElementById("config");
export const config: Config = JSON.parse(configElement?.textContent ?? "{}");

const places = new Map(config.reports.map((words, at) => [words.join("\0"), at]));
const known = new Map<string, Promise<unknown>>();
let generation = 0;
const watchers = new Set<() => void>();

/** Reports that were asked for and have not come. */
let coming = 0;
/** When the first of them was asked for, and when the last one came, in milliseconds. */
let begun = 0;
let ended = 0;

/** Rests of this many times as long as the reports took keep the server's work small. */
const REST = 4;

/**
 * Whether everything may be asked for again: a report that has not come would be for nothing, and
 * on a busy host none would ever come.
 */
export function isRested(): boolean {
  return coming === 0 && Date.now() - ended >= REST * (ended - begun);
}

function counted(answer: Promise<unknown>): Promise<unknown> {
  if (coming === 0) begun = Date.now();
  coming += 1;
  return answer.finally(() => {
    coming -= 1;
    ended = Date.now();
  });
}

/** Everything is asked for again: the database has changed. */
export function renew() {
  generation += 1;
  known.clear();
  for (const watcher of watchers) watcher();
}

/** How much of the database a report is of. */
export type Reach =
  /** What the page is restricted to: of its time, and only the chosen program. */
  | "page"
  /** The same, but of all the time that a range of the timeline is drawn in. */
  | "extent"
  /** The page's time, hosts and epochs, of all programs. */
  | "time"
  /** The page's hosts and epochs, of all programs and of all of their time. */
  | "epochs"
  /** The whole database. */
  | "database";

/** The link's filters of time and hosts, for a server. Each is the name of its option, too. */
const TIMES = ["epoch", "since", "until", "host"];
/** Those of them that are a range drawn in the timeline. */
const RANGE = ["since", "until"];
/** Parts that dcpid keeps samples apart by: options of every command. */
const SCOPES = ["unit", "container", "pod", "namespace", "label"];
/** Parts that only call stacks are kept by. */
const THREADS = ["command", "pid", "thread"];
/** The link's key of an image: commands take it as an argument. */
export const IMAGE = "img";

/** The filters of the link that choose a part of the machine, and the words before their values. */
export const PARTS: [string, string][] = [
  ["command", "program"], [IMAGE, "image"], ["unit", "service or container"],
  ["container", "container"], ["pod", "pod"], ["namespace", "namespace"], ["label", "label"],
  ["pid", "process"], ["thread", "thread"],
];

/** Whether only call stacks are kept by what a filter names. */
export function isOfThreads(filter: string): boolean {
  return THREADS.includes(filter);
}

/** Whether a command reads call stacks, which are kept by thread, and not samples by image. */
function isOfStacks([command, ...words]: string[]): boolean {
  if (command === "prof") {
    return words.some((word) => /^--(inclusive|by=(command|pid|thread))$/.test(word));
  }
  if (command === "timeline") return words.some((word) => /^--by=(command|thread)$/.test(word));
  return ["tree", "callers", "callees"].includes(command ?? "");
}

/** Whether a command can be restricted to the part of the machine that a filter names. */
export function takes(of: string[], filter: string): boolean {
  const [command, ...words] = of;
  if (command === "html") return true;
  if (SCOPES.includes(filter)) return command !== "epochs";
  if (isOfThreads(filter)) return isOfStacks(of);
  if (filter !== IMAGE) return true;
  // Sets may be of images of their own.
  if (command === "diff") return !words.some((set) => set.includes("image:"));
  if (command === "why") return words.every((word) => word.startsWith("-"));
  return command === "prof" && words.includes("--inclusive")
    || ["prof", "timeline"].includes(command ?? "") && !isOfStacks(of);
}

/** The filters of a link that choose a part of the machine. */
export function parts(from: State = state()): string[] {
  return PARTS.map(([name]) => name).filter((name) => from[name]);
}

/**
 * A command with the page's options, and with what restricts it to parts of the machine, of which
 * it takes all. Its own options and those of the parts replace the page's.
 */
function restricted(of: string[], page: string[], filters: string[], from: State): string[] {
  const isSet = of[0] === "diff";
  const named = filters.map((name) =>
    name !== IMAGE ? `--${name}=${from[name]}` : isSet ? `--image=${from[name]}` : from[name]!);
  const last = page.indexOf("--");
  const ofPage = overridden(last < 0 ? page : page.slice(0, last), [...of, ...named]);
  const options = ofPage.filter((word) => !isTimed(of) || !OPTION_OF_RANGE.test(word));
  // Images that the page is of.
  const images = last < 0 || (filters.includes(IMAGE) && !isSet) ? [] : page.slice(last);
  return [...of, ...options, ...named, ...images];
}

/** The options for the page's time and hosts. */
function times(from: State, reach: Reach): string[] {
  const isOfAll = reach === "extent" || reach === "epochs";
  const names = TIMES.filter((name) => !isOfAll || !RANGE.includes(name));
  return names.filter((name) => from[name]).map((name) => `--${name}=${from[name]}`);
}

const OPTION_OF_RANGE = /^--(since|until)=/;
const TIME_OF_SET = /(^|,)(since|until):/;

/** Whether a command has a time of its own: one end of it does not go with the page's other end. */
export function isTimed(of: string[]): boolean {
  return of.some((word) =>
    OPTION_OF_RANGE.test(word) || of[0] === "diff" && TIME_OF_SET.test(word));
}

/** A stretch of time, in seconds since 1970. */
export interface Range {
  since: number;
  until: number;
}

/** The range that the link restricts a page to, if it is one of moments. */
export function rangeOf(from: State): Range | null {
  const [since, until] = RANGE.map((name) => Date.parse(from[name] ?? "") / 1000);
  return since! < until! ? { since: since!, until: until! } : null;
}

export function iso(unix_s: number): string {
  return new Date(unix_s * 1000).toISOString().replace(/\.\d+Z/, "Z");
}

/** The parts of a link that restrict a page to a range, or to none. */
export function ofRange(range: Range | null): State {
  return { since: range ? iso(range.since) : "", until: range ? iso(range.until) : "" };
}

/** The options that restrict a command to a range. */
export function rangeOptions(range: Range | null): string[] {
  return range ? RANGE.map((name) => `--${name}=${ofRange(range)[name]}`) : [];
}

/** The words that a server is asked with, of the whole selection. */
function asked(of: string[], reach: Reach, from: State): string[] {
  if (!config.live || reach === "database") return of;
  const isOfParts = reach === "page" || reach === "extent";
  const mine = isOfParts ? parts(from).filter((name) => takes(of, name)) : [];
  const time = times(from, reach);
  return restricted(of, [...overridden(config.selection, time), ...time], mine, from);
}

/**
 * Filters of the link that the report of a command is not restricted to: a file has reports of all
 * that it is of, and some commands cannot be restricted. The view restricts them, or says so.
 */
export function unmet(of: string[], from: State = state()): string[] {
  return parts(from).filter((name) => !config.live || !takes(of, name));
}

/** Whether a report is in the file, of all that the file is of. */
export function isInFile(of: string[]): boolean {
  return places.has(of.join("\0"));
}

function embedded(words: string[]): Promise<unknown> {
  const at = places.get(words.join("\0"));
  const element = at === undefined ? null : document.getElementById(`report-${at}`);
  if (!element) return Promise.reject(new Error("It is not in this file."));
  return new Promise((resolve) => resolve(JSON.parse(element.textContent ?? "null")));
}

/** Pause before a question that the server had no place for is asked again, and how often. */
const AGAIN_MS = 1000;
const AGAIN_MAX = 30;

/** What the server answers to the words of a command. */
async function answered(path: string, words: string[]): Promise<Response> {
  const query = new URLSearchParams(words.map((word) => ["a", word]));
  const headers = { Authorization: `Bearer ${state()["key"] ?? ""}` };
  const ask = () => fetch(`${path}?${query}`, { headers, cache: "no-store" });
  let answer = await ask();
  for (let again = 0; answer.status === 503 && again < AGAIN_MAX; again++) {
    await new Promise((next) => setTimeout(next, AGAIN_MS));
    answer = await ask();
  }
  return answer;
}

async function fetched(words: string[]): Promise<unknown> {
  const [name, ...rest] = words;
  const answer = await answered(`/report/${name}`, rest);
  const body = await answer.json();
  if (body.error) throw new Error(body.error);
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return body;
}

/** The file that a server makes of the page's selection: what `dcpi html` with the words writes. */
export async function file(of: string[]): Promise<Blob> {
  const [, ...words] = asked(of, "page", state());
  const answer = await answered("/file", words);
  // Errors are JSON.
  if (answer.headers.get("content-type") !== "application/json") return answer.blob();
  throw new Error((await answer.json()).error);
}

/** A report; `of` are the words of its command, without the selection. */
export function report(of: string[], reach: Reach = "page", again = false): Promise<unknown> {
  const words = asked(of, reach, state());
  const key = words.join("\0");
  let promise = known.get(key);
  if (!promise || again) {
    if (!config.live) promise = embedded(words);
    else promise = again ? fetched(words) : counted(fetched(words));
    known.set(key, promise);
    promise.catch(() => config.live && known.delete(key));
  }
  return promise;
}

export interface Asked<T> {
  data?: T;
  error?: string;
  loading: boolean;
}

/** The report of a command, asked for when it is shown and again when the database changes. */
export function useReport<T>(of: string[] | null, reach: Reach = "page"): Asked<T> {
  const from = useStateOfLink();
  const [now, setNow] = useState(generation);
  const [answer, setAnswer] =
    useState<Asked<T> & { key: string | null }>({ loading: true, key: "" });
  const key = of && asked(of, reach, from).join("\0");
  useEffect(() => {
    const watcher = () => setNow(generation);
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  }, []);
  useEffect(() => {
    if (!of) return;
    let wanted = true;
    // The last answer to the same question stays until the next one: a page that blinks cannot be
    // read. An answer to another question, of all programs say, would be taken for this one's.
    setAnswer((last) => ({ ...last, loading: true }));
    report(of, reach).then(
      (data) => wanted && setAnswer({ data: data as T, loading: false, key }),
      (error) =>
        wanted && setAnswer({ error: String(error.message ?? error), loading: false, key }),
    );
    return () => void (wanted = false);
  }, [key, now]);
  return answer.key === key ? answer : { loading: true };
}

/** A set of `dcpi diff` as options of other commands; null: it is of another database. */
export function ofSet(set: string): { options: string[]; image: string } | null {
  const options: string[] = [];
  let image = "";
  for (const part of set.replace(/^@/, "").split(",")) {
    const [, key, value] = part.match(/^([a-z-]+):(.*)$/s) ?? [];
    if (key === "db" || (!key && /[/@]/.test(part))) return null;
    if (key === "image") image = value!;
    else if (key) options.push(`--${key}=${value}`);
    else if (part !== "latest") options.push(`--epoch=${part}`);
  }
  return { options, image };
}

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word as a POSIX shell reads it. */
function shellWord(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}

export function shellLine(words: string[]): string {
  return words.map(shellWord).join(" ");
}

/** Options without those that others, which come later, replace. */
function overridden(words: string[], later: string[]): string[] {
  const name = (word: string) => (word.startsWith("--") ? word.split("=")[0]! : "");
  const names = new Set(later.map(name));
  return words.filter((word) => !name(word) || !names.has(name(word)));
}

/**
 * The line that prints a report in a terminal. `filters` are those of the link that it is
 * restricted to, of which it takes all; `more` are further options, which replace the page's.
 */
export function commandLine(
  of: string[], reach: Reach = "page", filters: string[] = [], more: string[] = [],
): string {
  const from = state();
  const made = places.get(of.join("\0"));
  const page = made !== undefined ? config.more[made] ?? []
    : [...config.selection, ...(isOfStacks(of) ? config.threads : [])];
  const time = config.live ? times(from, reach) : [];
  const base = reach === "database" ? [] : [...overridden(page, time), ...time];
  const words = restricted([...of, ...more], base, filters, from);
  const last = words.indexOf("--");
  const options = last < 0 ? words : words.slice(0, last);
  const line = ["dcpi", ...options, `--db=${config.db}`, ...(last < 0 ? [] : words.slice(last))];
  return shellLine(line);
}
