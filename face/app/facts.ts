// What was recorded: the reports that the head and most views are made of.
import { useMemo } from "preact/hooks";
import { topDown } from "./calls";
import { Diff, duration, Epochs, Event, moment, percent, Prof, Tree, Why } from "./model";
import { mainEvent } from "./parts";
import { Asked, config, selection, useReport } from "./source";
import { state, useStateOfLink } from "./state";

/** Smallest share of a call that trees have. */
export const MIN = "0.02%";
/** The same of a tree for each thread, of which there may be thousands. */
export const THREADS_MIN = "0.1%";

export const PROF = ["prof", "--inclusive"];
export const FLAT = ["prof"];
export const WHY = ["why", "-n40"];

/** Procedures, with inclusive time where there are call stacks. */
export function useProf(): Asked<Prof> & { words: string[] } {
  const inclusive = useReport<Prof>(PROF);
  const flat = useReport<Prof>(inclusive.error ? FLAT : null);
  return inclusive.error ? { ...flat, words: FLAT } : { ...inclusive, words: PROF };
}

export function useImages(): Asked<Prof> {
  return useReport<Prof>(["prof", "-i"]);
}

export function useWhy(): Asked<Why> {
  return useReport<Why>(WHY);
}

export function useEvent(): { event: Event | null; events: Event[] } {
  const { e } = useStateOfLink();
  const { data } = useImages();
  return { event: mainEvent(data?.events, e), events: data?.events ?? [] };
}

export function treeWords(event: string, byThread = false): string[] {
  const min = byThread ? THREADS_MIN : MIN;
  return ["tree", `--min=${min}`, `--event=${event}`, ...(byThread ? ["--by-thread"] : [])];
}

export function useTree(event: string | undefined, byThread = false) {
  const asked = useReport<Tree>(event ? treeWords(event, byThread) : null);
  const calls = useMemo(() => (asked.data ? topDown(asked.data) : null), [asked.data]);
  return { asked, calls, total: asked.data?.event.total ?? 0 };
}

/** The two sets that are compared, if any. */
export function sets(): [string, string] | null {
  const { a, b } = state();
  if (!config.live) return config.sets;
  return a ? [a, b || "latest"] : null;
}

export function diffWords([a, b]: [string, string]): string[] {
  return ["diff", a, b];
}

export function useDiff(): Asked<Diff> {
  useStateOfLink();
  const both = sets();
  // What the page is of is the default of both sets.
  return useReport<Diff>(both ? diffWords(both) : null);
}

export interface About {
  title: string;
  facts: string[];
  epochs: Epochs | undefined;
}

/** Words for what was recorded: command or host, when, how busy, how many samples. */
export function useAbout(): About {
  const epochs = useReport<Epochs>(["epochs"], true).data;
  const images = useImages().data;
  const { event } = useEvent();
  if (!images) return { title: "Reading …", facts: [], epochs };
  const rows = (epochs?.rows ?? []).filter((row) => images.epochs.includes(row.epoch));
  const labels = [...new Set(rows.flatMap((row) => [row.label, ...row.run_labels]))];
  const named = labels.filter((label): label is string => Boolean(label));
  const hosts = images.hosts.join(", ");
  const title = named.length > 0 && named.length < 4 ? `${named.join(", ")} on ${hosts}` : hosts;
  const facts: string[] = [];
  const begin = images.time?.since_unix_s ?? Math.min(...rows.map((row) => row.started_unix_s));
  const end = images.time?.until_unix_s
    ?? Math.max(...rows.map((row) => row.ended_unix_s ?? row.updated_unix_s));
  if (Number.isFinite(begin) && Number.isFinite(end)) {
    const isOneDay = moment(begin).slice(0, 11) === moment(end).slice(0, 11);
    facts.push(`${moment(begin)} – ${moment(end, !isOneDay)} (${duration(end - begin)})`);
  }
  if (rows.length > 1) facts.push(`${rows.length} epochs`);
  const cpus = rows[0]?.machine?.cpus;
  if (cpus && event?.unit === "ns" && event.count && end > begin && images.hosts.length === 1) {
    const covered = images.time ? end - begin : rows.reduce((sum, row) => sum + row.duration_s, 0);
    const share = event.counted * event.period / (covered * cpus * 1e9);
    const few = cpus === 1 ? "1 CPU" : `${cpus} CPUs`;
    facts.push(`${percent(Math.min(1, share), 0)} % of ${few} busy`);
  }
  if (event) {
    facts.push(`${event.counted.toLocaleString("en")} samples of ${event.name}`);
    if (event.machine_total > event.total && event.total > 0) {
      facts.push(`${percent(event.total / event.machine_total, 0)} % of the machine's samples`);
    }
  }
  const filters = selection().filter((word) => !/^--(epoch|since|until)/.test(word));
  if (filters.length > 0) facts.push(filters.join(" "));
  return { title, facts, epochs };
}
