// The reports' JSON as far as the page reads it, and how its quantities are written.

export interface Share {
  value: number;
  low: number;
  high: number;
}

export interface Problem {
  kind: string;
  serious: boolean;
  message: string;
}

export interface Event {
  name: string;
  unit: string;
  period: number;
  total: number;
  machine_total: number;
  counted: number;
  /** What shares are of, in the event's unit. */
  amount: number;
  notes: string[];
  count: { value: number; low: number; high: number } | null;
}

interface Head {
  db: string;
  epochs: string[];
  hosts: string[];
  events: Event[];
  problems: Problem[];
  time?: { since_unix_s: number; until_unix_s: number };
}

export interface ProfRow {
  procedure?: string;
  image?: string;
  image_id?: string;
  address?: string;
  inlined?: boolean;
  path?: string;
  kind?: string;
  command?: string | null;
  pid?: number | null;
  thread?: string | null;
  unit?: string | null;
  container?: string | null;
  pod?: string | null;
  namespace?: string | null;
  label?: string | null;
  counts: Record<string, number>;
  share: Record<string, Share>;
  inclusive?: Record<string, Share>;
}

export interface Prof extends Head {
  rows: ProfRow[];
  omitted: { rows: number; counts: Record<string, number> };
}

/** A thread, or several of one name: numbers are of those that ran long enough to be kept apart. */
export interface Thread {
  command: string;
  pid: number | null;
  name: string;
  tid: number | null;
}

export interface TreeRow {
  depth: number;
  parent: number | null;
  procedure: string;
  image: string | null;
  image_id: string | null;
  address: string | null;
  inlined: boolean;
  thread?: Thread;
  share: Share;
  own: number;
  time: number;
}

export interface Tree extends Head {
  event: Event & { whole: number; stacks: number };
  rows: TreeRow[];
  omitted: { rows: number; share: number };
}

export interface Finding {
  share: Share;
  gain: Share;
  image?: string;
  image_id?: string;
  procedure?: string;
  address?: string;
  source?: { file: string; line: number };
  class: string;
  mechanism: string;
  certainty: string;
  probability: number;
  evidence: { kind: string; text: string }[];
  advice: string[];
  alternatives: { class: string; mechanism: string; probability: number }[];
}

export interface Why extends Head {
  findings: Finding[];
  unexplained: Share;
  samples: number;
  machine: string;
}

export interface Source {
  function?: string;
  file?: string;
  line?: number;
}

export interface Instruction {
  address: string;
  len: number;
  text: string;
  source?: Source;
  counts: Record<string, number>;
  share: Record<string, Share>;
  best_cpi?: number | null;
  cpi?: number | null;
  cpi_most?: number | null;
  frequency?: { value: number; confidence: string } | null;
  culprits?: { cause: string; letter: string; address?: string }[];
}

export interface SourceLine {
  function?: string;
  file?: string;
  line?: number;
  inlined: boolean;
  text?: string;
  counts: Record<string, number>;
  share: Record<string, Share>;
}

export interface Listing extends Head {
  image: string;
  path: string;
  procedure: string;
  address: string;
  end: string;
  counts: Record<string, number>;
  why_not?: string | null;
  instructions: Instruction[];
  lines?: SourceLine[];
}

export interface Slice {
  start: string;
  end: string;
  covered_s: number;
  seconds?: number;
  occurrences?: number;
}

export interface TimelineRow {
  key: string;
  image?: string;
  image_id?: string;
  pid?: number;
  share: Share;
  slices: Slice[];
}

export interface Timeline extends Head {
  by: string;
  rows: TimelineRow[];
  /** The slices of all rows together, those that were left out among them. */
  whole: Slice[];
  omitted: number;
}

export interface ImageRow {
  image: string;
  image_id: string;
  kind: string;
  path: string;
  first_seen_unix_s: number;
  last_seen_unix_s: number;
}

export interface Images extends Head {
  rows: ImageRow[];
}

export interface EpochRow {
  host: string;
  epoch: string;
  label: string | null;
  run_labels: string[];
  back: number;
  open: boolean;
  started_unix_s: number;
  ended_unix_s: number | null;
  updated_unix_s: number;
  duration_s: number;
  machine?: { cpus?: number; cpu_model?: string; kernel_release?: string; arch?: string };
}

export interface Epochs extends Head {
  rows: EpochRow[];
}

export interface DiffRow {
  procedure: string;
  image: string;
  image_ids?: string[];
  a: number;
  b: number;
  change: number;
  low: number;
  high: number;
  relative: number | null;
  samples: number[];
  p_corrected: number;
  significant: boolean;
}

export interface Diff extends Head {
  names: { a: string; b: string };
  measure: string;
  /** What a sample stands for, in the unit of the totals. */
  sample: number;
  totals: {
    unit: string;
    a: number;
    b: number;
    ratio: Share | null;
    verdict: string;
    why: string | null;
  };
  rows: DiffRow[];
  rebuilt: string[];
}

export function percent(share: number, digits = 1): string {
  const value = 100 * share;
  if (value !== 0 && Math.abs(value) < 0.05 && digits === 1) return value.toFixed(2);
  return value.toFixed(digits);
}

/** `46.2–51.0 %`. */
export function interval(share: Share): string {
  return `${percent(share.low)}–${percent(share.high)} %`;
}

const COUNT = new Intl.NumberFormat("en");

export function count(value: number): string {
  return COUNT.format(Math.round(value));
}

/** An amount of an event: time where it counts nanoseconds, else a number with its unit. */
export function amount(value: number, unit: string): string {
  if (unit !== "ns") {
    const steps: [number, string][] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    // Four digits are as short as a number with a unit.
    const step = value >= 1e4 && steps.find(([size]) => value >= size);
    const number = step ? `${(value / step[0]).toPrecision(3)} ${step[1]}` : count(value);
    return unit === "count" ? number : `${number} ${unit}`;
  }
  if (value === 0) return "0 s";
  if (value >= 6e12) return `${(value / 3.6e12).toFixed(1)} h`;
  if (value >= 6e11) return `${(value / 6e10).toFixed(0)} min`;
  if (value >= 1e9) return `${(value / 1e9).toPrecision(3)} s`;
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)} ms`;
  return `${(value / 1e3).toPrecision(3)} µs`;
}

/** What the samples of an event stand for, in its unit. */
export function total(event: Event): number {
  return event.amount;
}

export function duration(seconds: number): string {
  if (seconds >= 172800) return `${(seconds / 86400).toFixed(1)} days`;
  if (seconds >= 7200) return `${(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 120) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds)} s`;
}

/** The zone of all times of the page, as of all reports of dcpi. */
export const ZONE = "UTC";

/** `29 Nov 2026 18:59:25`, in UTC; without the day `18:59:25`. */
export function moment(unix_s: number, withDay = true): string {
  const date = new Date(1000 * unix_s);
  const time = date.toISOString().slice(11, 19);
  if (!withDay) return time;
  const month = date.toLocaleString("en", { month: "short", timeZone: "UTC" });
  return `${date.getUTCDate()} ${month} ${date.getUTCFullYear()} ${time}`;
}

/** `29 Nov 2026 18:59:25 – 19:01:00 UTC`. */
export function span(begin: number, end: number): string {
  const isOneDay = moment(begin).slice(0, -8) === moment(end).slice(0, -8);
  return `${moment(begin)} – ${moment(end, !isOneDay)} ${ZONE}`;
}

/** The same stretch of time where the reader is, for readers who are elsewhere than in UTC. */
export function localSpan(begin: number, end: number): string {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const text = (at: number) => new Date(1000 * at).toLocaleString("en-GB");
  return `${text(begin)} – ${text(end)} ${zone}`;
}

/** First digits of an image's id: they tell builds apart. */
export function briefId(id: string): string {
  const first = id.split("-")[0] ?? "";
  return /^[0-9a-f]{8,}$/.test(first) ? first.slice(0, 8) : id;
}

/** What is of a build of an image: a row, a finding. */
interface Built {
  kind?: string;
  image?: string | null;
  image_id?: string | null;
}

/** Builds of programs of which rows have several, the images of one name together. */
export function buildsOf(rows: Built[]): { name: string; id: string }[] {
  const ids = new Map<string, Set<string>>();
  for (const row of rows) {
    if ((row.kind ?? "file") !== "file" || !row.image || !row.image_id) continue;
    // Ids of code that no file is known of: it is of no build.
    if (row.image_id.startsWith("none-")) continue;
    const of = ids.get(row.image) ?? new Set<string>();
    ids.set(row.image, of.add(row.image_id));
  }
  return [...ids].filter(([, of]) => of.size > 1)
    .flatMap(([name, of]) => [...of].map((id) => ({ name, id: briefId(id) })));
}

/** A build of a program, in whose place another build of it ran as well. */
export interface Build {
  name: string;
  path: string;
  /** First digits of its id. */
  id: string;
  /** When dcpid first and last wrote samples of it, in seconds since 1970. */
  first: number;
  last: number;
}

/** The builds of each path that had several, in the order in which they came. */
export function buildsOfPaths(images: ImageRow[]): Build[][] {
  const paths = new Map<string, Build[]>();
  for (const { kind, path, image, ...row } of images) {
    if (kind !== "file") continue;
    const build = {
      name: image, path, id: briefId(row.image_id), first: row.first_seen_unix_s,
      last: row.last_seen_unix_s,
    };
    paths.set(path, [...paths.get(path) ?? [], build]);
  }
  return [...paths.values()].filter((builds) => builds.length > 1)
    .map((builds) => builds.sort((a, b) => a.first - b.first || a.last - b.last));
}

/** The name of a row's image, with its build where rows have several of that name. */
export function imageOf(row: Built, builds: Set<string>): string {
  const name = row.image ?? "";
  return builds.has(name) && row.image_id ? `${name} (${briefId(row.image_id)})` : name;
}

export function words(name: string): string {
  return name.replace(/_/g, " ");
}

/** A name without what hides its meaning: parameters, template arguments, suffixes of compilers. */
export function brief(name: string, isCode = true): string {
  if (!isCode || name.startsWith("[")) return name;
  let text = name.replace(/\.(llvm|isra|part|constprop|cold|lto_priv)(\.\d+)*$/, "");
  text = text.replace(/\(anonymous namespace\)/g, "{anonymous}");
  let out = "";
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const character = text[at]!;
    const before = text.slice(0, at);
    if (character === "<" && !before.endsWith("operator")) {
      // `<T as Trait>::f` begins with what it is of.
      if (depth === 0 && out === "") {
        const rest = qualified(text);
        if (rest) return brief(rest);
      }
      depth += 1;
    } else if (character === ">" && depth > 0 && !before.endsWith("-")) {
      depth -= 1;
    } else if (depth === 0) {
      if (character === "(" && out !== "") break;
      out += character;
    }
  }
  return out.replace(/::::/g, "::").replace(/(::)+$/, "").trim() || name;
}

/** `T::f` of `<T as Trait>::f`. */
function qualified(text: string): string | null {
  let depth = 0;
  let end = text.length;
  let as = -1;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === "<") depth += 1;
    if (text[at] === ">" && text[at - 1] !== "-") depth -= 1;
    if (depth === 1 && as < 0 && text.startsWith(" as ", at)) as = at;
    if (depth === 0) {
      end = at;
      break;
    }
  }
  if (end >= text.length - 1) return null;
  const of = text.slice(1, as < 0 ? end : as).replace(/^&?(mut )?/, "");
  return of.startsWith("<") ? null : of + text.slice(end + 1);
}
