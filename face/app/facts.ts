// What was recorded: the reports that the head and most views are made of.
import { useMemo } from "preact/hooks";
import { Call, topDown } from "./calls";
import {
  Build, buildsOfPaths, Diff, duration, Epochs, Event, Images, localSpan, percent, Prof, span,
  total, Tree, Why,
} from "./model";
import {
  Calls, callsOfThreads, callsThrough, diffOf, isOfThread, Part, proceduresOf, profOf, Shown,
  whyOf,
} from "./only";
import { mainEvent } from "./parts";
import {
  Asked, config, IMAGE, isInFile, isOfThreads, parts, Reach, unmet, useReport,
} from "./source";
import { State, state, useStateOfLink } from "./state";

/** Smallest share of a call that trees have. */
export const MIN = "0.02%";
/** The same of a tree for each thread, of which there may be thousands. */
export const THREADS_MIN = "0.1%";

export const PROF = ["prof", "--inclusive"];
const FLAT = ["prof"];
/** Own times, of inlined functions apart, as those of inclusive times are. */
const OWN = ["prof", "--inlined"];
export const IMAGES = ["prof", "-i"];
export const WHY = ["why", "-n40"];

/** The values of the filters that choose parts of the machine, to tell selections apart. */
function chosen(from: State): string {
  return parts(from).map((name) => `${name}=${from[name]}`).join("\0");
}

/**
 * A report that `part` restricts to the filters that its command does not: in a file, and with
 * `always` also of a server.
 */
export function useShown<T>(
  words: string[] | null,
  part: (data: T, unmet: string[], from: State) => Part<T>,
  always: (filter: string) => boolean = () => false,
  reach: Reach = "page",
): Shown<T> {
  const from = useStateOfLink();
  const left = words ? unmet(words, from) : [];
  // A server restricts all that can be: the rest would be an answer to another question.
  const cannot = config.live && !left.every(always);
  const asked = useReport<T>(cannot ? null : words, reach);
  const made = useMemo(
    () => asked.data && words && part(asked.data, left, from),
    [asked.data, words?.join("\0"), chosen(from)],
  );
  const shown = {
    words: words ?? [], unmet: cannot ? left : made?.unmet ?? [], note: made?.note,
    isOfAll: made?.isOfAll,
  };
  return cannot ? { loading: false, ...shown } : { ...asked, ...shown, data: made?.data };
}

/** Procedures, with inclusive time where there are call stacks. */
export function useProf(isAsked = true): Shown<Prof> {
  const from = useStateOfLink();
  const inclusive = useShown<Prof>(useTurn() && isAsked ? PROF : null, profOf);
  // Samples are not kept by thread: without call stacks there is nothing of one.
  const ofThreads = parts(from).some((name) => isOfThreads(name));
  const flat = useShown<Prof>(inclusive.error && !ofThreads ? FLAT : null, profOf);
  const { event } = useEvent();
  const derive = ofThreads && !config.live;
  const tree = useTree(derive ? event?.name : undefined);
  const base = inclusive.data;
  const made = useMemo(() => {
    if (!derive || !tree.asked.data || !tree.calls || !base || tree.unmet.length > 0) return null;
    const all = proceduresOf({ calls: tree.calls, total: tree.total }, tree.asked.data, base);
    return profOf(all, from[IMAGE] ? [IMAGE] : [], from).data;
  }, [derive, tree.calls, base, chosen(from)]);
  if (made) return { ...inclusive, data: made, unmet: [], note: BY_THREAD };
  return inclusive.error && !ofThreads ? flat : inclusive;
}

/**
 * Procedures with their own time. A server is not asked for inclusive time, for which it would read
 * all call stacks once more beside those of the tree.
 */
export function useOwn(): Shown<Prof> {
  const ofThreads = parts(useStateOfLink()).some(isOfThreads);
  const isFlat = config.live && !ofThreads;
  const isTurn = useTurn();
  const flat = useShown<Prof>(isFlat && isTurn ? OWN : null, profOf);
  const all = useProf(!isFlat);
  return isFlat ? flat : all;
}

/** The samples of the page's time by image, of all programs: what most facts of it are of. */
export function useImages(): Asked<Prof> {
  return useReport<Prof>(IMAGES, "time");
}

/** The builds of each program that had several in the page's epochs. */
export function useBuilds(): Build[][] {
  const images = useReport<Images>(["images"], "epochs").data;
  return useMemo(() => buildsOfPaths(images?.rows ?? []), [images]);
}

export function useWhy(): Shown<Why> {
  return useShown<Why>(useTurn() ? WHY : null, whyOf);
}

/**
 * Whether it is the turn of reports that take long: a server makes few at a time, and the report of
 * images, which most of the page waits for, would come after them.
 */
function useTurn(): boolean {
  return !useImages().loading;
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

const BY_THREAD = "From the call stacks in this file, of which calls of less than "
  + `${THREADS_MIN} of all time are left out.`;

export interface ShownTree {
  asked: Asked<Tree>;
  calls: Call[] | null;
  /** All time of the shares, in the event's unit. */
  total: number;
  words: string[];
  unmet: string[];
  note?: string;
}

/** Calls, only those of the threads and through the image that the link names. */
export function useTree(event: string | undefined, byThread = false): ShownTree {
  const from = useStateOfLink();
  const words = event ? treeWords(event, byThread) : [];
  const left = event ? unmet(words, from) : [];
  const ofThreads = left.filter((name) => isOfThreads(name));
  // The tree of a file tells threads apart where it is one by thread.
  const source = event && (ofThreads.length > 0 ? treeWords(event, true) : words);
  const asked = useReport<Tree>(source || null);
  const through = from[IMAGE];
  const made = useMemo(() => {
    if (!asked.data) return null;
    let all: Calls = { calls: topDown(asked.data), total: asked.data.event.total };
    if (ofThreads.length > 0) {
      all = callsOfThreads(all, (call) => isOfThread(call, ofThreads, from), byThread);
    }
    return through ? callsThrough(all, through) : all;
  }, [asked.data, byThread, chosen(from)]);
  // Threads of short-lived processes are one, and rare ones are left out.
  const isEmpty = made !== null && made.calls.length === 1 && !through;
  const isHere = config.live || isInFile(words);
  const isMissing = isHere && ofThreads.length > 0 && !asked.loading && (!asked.data || isEmpty);
  const met = isMissing ? [IMAGE] : [IMAGE, ...ofThreads];
  return {
    asked: isMissing ? { loading: false } : asked,
    calls: made?.calls ?? null,
    total: made?.total ?? 0,
    words,
    unmet: isHere ? left.filter((name) => !met.includes(name)) : [],
    note: ofThreads.length > 0 && !isMissing ? BY_THREAD : undefined,
  };
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

export function useDiff(): Shown<Diff> {
  useStateOfLink();
  const both = sets();
  // What the page is of is the default of both sets.
  return useShown<Diff>(both ? diffWords(both) : null, diffOf, (name) => name === IMAGE);
}

export interface About {
  title: string;
  /** Facts, some with more to say of them. */
  facts: [string, string?][];
  epochs: Epochs | undefined;
}

/** Words for what was recorded: command or host, when, how busy, how many samples. */
export function useAbout(): About {
  const epochs = useReport<Epochs>(["epochs"], "database").data;
  const images = useImages().data;
  const { event } = useEvent();
  if (!images) return { title: "Reading …", facts: [], epochs };
  const rows = (epochs?.rows ?? []).filter((row) => images.epochs.includes(row.epoch));
  const labels = [...new Set(rows.flatMap((row) => [row.label, ...row.run_labels]))];
  const named = labels.filter((label): label is string => Boolean(label));
  const hosts = images.hosts.join(", ");
  const only = config.images.join(", ");
  const what = only || (named.length > 0 && named.length < 4 ? named.join(", ") : "");
  const title = what ? `${what} on ${hosts}` : hosts;
  const facts: [string, string?][] = [];
  const begin = images.time?.since_unix_s ?? Math.min(...rows.map((row) => row.started_unix_s));
  const end = images.time?.until_unix_s
    ?? Math.max(...rows.map((row) => row.ended_unix_s ?? row.updated_unix_s));
  if (Number.isFinite(begin) && Number.isFinite(end)) {
    facts.push([`${span(begin, end)} (${duration(end - begin)})`, localSpan(begin, end)]);
  }
  if (only) facts.push([`Tables and findings are of ${only}; flame graphs, threads of all`]);
  if (rows.length > 1) facts.push([`${rows.length} epochs`]);
  const cpus = rows[0]?.machine?.cpus;
  if (cpus && event?.unit === "ns" && event.count && end > begin && images.hosts.length === 1) {
    const covered = images.time ? end - begin : rows.reduce((sum, row) => sum + row.duration_s, 0);
    const share = total(event) / (covered * cpus * 1e9);
    const few = cpus === 1 ? "1 CPU" : `${cpus} CPUs`;
    const used = only ? `taken by ${only}` : "busy";
    facts.push([`${percent(Math.min(1, share), 0)} % of ${few} ${used}`]);
  }
  if (event) {
    facts.push([`${event.counted.toLocaleString("en")} samples of ${event.name}`]);
    if (event.machine_total > event.total && event.total > 0) {
      facts.push([`${percent(event.total / event.machine_total, 0)} % of the machine's samples`]);
    }
  }
  const filters = [...config.selection, ...config.threads]
    .filter((word) => !/^--(epoch|since|until)=/.test(word));
  if (filters.length > 0) facts.push([filters.join(" ")]);
  return { title, facts, epochs };
}
