// Reports, each by the command of dcpi that prints it: from the file, or from the server.
import { useEffect, useState } from "preact/hooks";
import { State, state, useStateOfLink } from "./state";

export interface Config {
  /** Whether a server answers; else all reports are in the page. */
  live: boolean;
  /** The database's directory, for commands. */
  db: string;
  /** Options that all of the page's commands have: what was selected when the page was made. */
  selection: string[];
  /** Version of dcpi. */
  version: string;
  /** The words of each report in the page, in the order of its script elements. */
  reports: string[][];
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

/** The link's filters of the database that a server answers for. */
export const FILTERS = ["epoch", "since", "until", "host", "label", "unit"];

/** The options that the link's filters add to each command. */
export function selection(from: State = state()): string[] {
  if (!config.live) return config.selection;
  const words: string[] = [...config.selection];
  for (const name of FILTERS) {
    const value = from[name];
    if (value) words.push(`--${name}=${value}`);
  }
  return words;
}

function embedded(words: string[]): Promise<unknown> {
  const at = places.get(words.join("\0"));
  const element = at === undefined ? null : document.getElementById(`report-${at}`);
  if (!element) return Promise.reject(new Error("It is not in this file."));
  return new Promise((resolve) => resolve(JSON.parse(element.textContent ?? "null")));
}

async function fetched(words: string[]): Promise<unknown> {
  const [name, ...rest] = words;
  const query = new URLSearchParams(rest.map((word) => ["a", word]));
  const key = state()["key"] ?? "";
  const headers = { Authorization: `Bearer ${key}` };
  const answer = await fetch(`/report/${name}?${query}`, { headers, cache: "no-store" });
  const body = await answer.json();
  if (body.error) throw new Error(body.error);
  if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
  return body;
}

/**
 * A report; `of` are the words of its command, without the selection. With `everything` it is of
 * the whole database; `again` asks even where the answer is known.
 */
export function report(of: string[], everything: boolean | "again" = false): Promise<unknown> {
  const words = config.live && !everything ? [...of, ...selection()] : of;
  const key = words.join("\0");
  let promise = known.get(key);
  if (!promise || everything === "again") {
    if (!config.live) promise = embedded(words);
    else promise = everything === "again" ? fetched(words) : counted(fetched(words));
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
export function useReport<T>(of: string[] | null, everything = false): Asked<T> {
  useStateOfLink();
  const [now, setNow] = useState(generation);
  const [asked, setAsked] = useState<Asked<T>>({ loading: true });
  const key = of && [...of, ...(everything ? [] : selection())].join("\0");
  useEffect(() => {
    const watcher = () => setNow(generation);
    watchers.add(watcher);
    return () => void watchers.delete(watcher);
  }, []);
  useEffect(() => {
    if (!of) return;
    let wanted = true;
    // The last answer stays until the next one: a page that blinks cannot be read.
    setAsked((last) => ({ ...last, loading: true }));
    report(of, everything).then(
      (data) => wanted && setAsked({ data: data as T, loading: false }),
      (error) => wanted && setAsked({ error: String(error.message ?? error), loading: false }),
    );
    return () => void (wanted = false);
  }, [key, now]);
  return asked;
}

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word as a POSIX shell reads it. */
function shellWord(word: string): string {
  return PLAIN.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}

/** The line that prints a report in a terminal. */
export function commandLine(of: string[], everything = false): string {
  const words = ["dcpi", ...of, ...(everything ? [] : selection()), `--db=${config.db}`];
  return words.map(shellWord).join(" ");
}
