// The review's data, as `fleet/review` writes it into the page, and how its numbers are written.
import { linkTo, State } from "../state";

export interface Estimate {
  value: number;
  low: number;
  high: number;
}

/** What rows of several tables have. */
export interface Place {
  service: string;
  image: string;
  procedure: string;
}

export interface ChangeRow extends Place {
  kind: "build" | "week";
  build_old: string;
  build_new: string;
  change: Estimate;
  q: number;
  hosts: number;
  cores: number;
  money: number | null;
  owner: string | null;
  same_day: number;
  accepted: string | null;
  moved_with: string[];
}

export interface SeenRow extends Place {
  owner: string | null;
  core_hours: number;
  hosts: number;
  money: number | null;
}

export interface ServiceRow {
  service: string;
  owner: string | null;
  core_hours: number;
  share: number;
  hosts: number;
  money: number | null;
  change: number | null;
}

export interface ImageRow extends ServiceRow {
  image: string;
}

export interface BuildRow {
  build: string;
  hosts: number;
  share: number;
  first_s: number;
  last_s: number;
  not_judged: string | null;
}

export interface FindingRow extends Place {
  id: string;
  what: string;
  week: string;
  promised_cores: number;
  got: (Estimate & { week: string })[];
  state: string;
}

export interface TaxRow {
  kind: string;
  core_hours: number;
  share: number;
  money: number | null;
}

export interface Report {
  week: string;
  event: string;
  currency: string | null;
  drill: string;
  hosts: {
    expected: number;
    heard: number;
    silent: string[];
    half: { host: string; covered: number }[];
    clocks: { host: string; ahead_s: number }[];
  };
  ledger: {
    taken: number;
    facts: number;
    idle: number;
    unresolved: Record<string, number>;
    lost: Record<string, number>;
  };
  fleet: {
    core_hours: number;
    busy_cores: number;
    cpus: number;
    change: number | null;
    money: number | null;
  };
  services: ServiceRow[];
  images: ImageRow[];
  machines: { type: string; hosts: number; cpus: number; core_hours: number; busy: number }[];
  changed: ChangeRow[];
  between_weeks: ChangeRow[];
  new: SeenRow[];
  gone: SeenRow[];
  seldom: SeenRow[];
  skew: { service: string; image: string; builds: BuildRow[] }[];
  tax: TaxRow[];
  unlike: {
    service: string;
    host: string;
    distance: number;
    expected: number;
    procedure: string;
  }[];
  findings: FindingRow[];
}

/** Procedures by column; names are numbers in the list of names. */
interface Columns {
  service: number[];
  image: number[];
  procedure: number[];
  owner: number[];
  core_hours: number[];
  hosts: number[];
  money: (number | null)[];
  weeks: number;
  trend: string;
}

interface Page {
  coverage: [string, string][];
  names: string[];
  words: Record<string, string | null>;
  top: Columns;
  difference: string;
  report: Report;
}

export const page: Page = JSON.parse(document.getElementById("report-0")?.textContent ?? "{}");
export const report = page.report;
export const top = page.top;
/** The numbers of the rows of procedures. */
export const ROWS: number[] = top.core_hours.map((_, row) => row);

export type Named = "service" | "image" | "procedure" | "owner";

export function nameOf(column: Named, row: number): string {
  return page.names[top[column][row] ?? -1] ?? "";
}

const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const digit = new Map([...DIGITS].map((letter, value) => [letter, value]));

/** Core-hours by week as parts of the row's largest week, 0..1; null: no samples. */
export function trendOf(row: number): (number | null)[] {
  return Array.from({ length: top.weeks }, (_, week) => {
    const first = (row * top.weeks + week) * 2;
    const [high, low] = [first, first + 1].map((at) => digit.get(top.trend[at]!) ?? 0);
    const value = 64 * high! + low!;
    return value === 0 ? null : value / 4095;
  });
}

/** Relative change from the week before; null: one of both weeks has no samples. */
export function weekChange(row: number): number | null {
  const [before, now] = trendOf(row).slice(-2);
  return before && now ? now / before - 1 : null;
}

const formats = [0, 1, 2, 3].map((most) => new Intl.NumberFormat("en-US", {
  minimumFractionDigits: most, maximumFractionDigits: most,
}));

export function thousands(value: number): string {
  return formats[0]!.format(value);
}

export function counted(value: number, noun: string): string {
  return `${thousands(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Three digits, as in the text of the review (`fleet/review/src/quantity.rs`). */
export function figure(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (size > 0 && size < 0.0005) return `${value < 0 ? "-" : ""}<0.001`;
  const most = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3;
  return formats[most]!.format(value || 0); // Not -0.
}

export function signed(value: number): string {
  return (value > 0 ? "+" : "") + figure(value);
}

/** A share in percent, with two decimals. */
export function hundredths(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return "";
  const value = 100 * share;
  if (value > 0 && value < 0.005) return "<0.01";
  return Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2);
}

/** A relative change in percent. */
export function change(relative: number | null): string {
  const text = hundredths(relative);
  return (relative ?? 0) > 0 && !text.startsWith("<") && text !== "0.00" ? `+${text}` : text;
}

export function day(seconds: number): string {
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

/** Where the page is served, what leads to the instructions is a link. */
export const isLink = report.drill.startsWith("/");

function word(shown: string): string | null {
  if (shown in page.words) return page.words[shown] ?? null;
  if (isLink) return encodeURIComponent(shown);
  return /^[A-Za-z0-9_.\/:@%+,=-]+$/.test(shown) ? shown : `'${shown.replaceAll("'", "'\\''")}'`;
}

/** The command, or the link, to a procedure's instructions; null: a name is too long for it. */
export function drill({ service, image, procedure }: Place): string | null {
  const names: Record<string, string> = { service, image, procedure };
  let whole = true;
  const line = report.drill.replace(/\{(service|image|procedure)\}/g, (_, of: string) => {
    const one = word(names[of] ?? "");
    if (one === null) whole = false;
    return one ?? "";
  });
  return whole ? line : null;
}

/** The filters of the table of procedures: exact names. */
export const ONLY: ("service" | "image" | "procedure")[] = ["service", "image", "procedure"];
/** Filters that are of one view. */
export const OF_VIEW: State = {
  q: "", sort: "", zoom: "", row: "", service: "", image: "", procedure: "",
};

export function toProcedures(of: Partial<Place>): string {
  return linkTo({ ...OF_VIEW, ...(of as State), v: "procedures" });
}
