// Reports of a file restricted to a part of the machine, as far as what they have allows; and calls
// restricted to an image, which no command does.
import { Call, focused, grown, Way } from "./calls";
import {
  briefId, Diff, Event, Prof, ProfRow, Share, Slice, Timeline, TimelineRow, total,
  Tree, Why,
} from "./model";
import { Asked, IMAGE } from "./source";
import { State } from "./state";

/** A report with the filters of the link that it is not restricted to. */
export interface Part<T> {
  data: T;
  unmet: string[];
  /** What a reader must know of how it was restricted. */
  note?: string;
  /** Whether shares stay those of the samples of all images. */
  isOfAll?: boolean;
}

/** A report as a view shows it: restricted to the parts of the machine that the link names. */
export interface Shown<T> extends Asked<T> {
  /** The words of its command, without those that restrict it. */
  words: string[];
  /** Filters of the link that it could not be restricted to. */
  unmet: string[];
  note?: string;
  isOfAll?: boolean;
}

/** Of reports of all programs, parts of which are shown. */
const OF_ALL = "Shares are of all samples, not of those of the image alone.";
/** Of reports of a file that has no rows of little time. */
const OF_ROWS = "Of the rows in this file, which has those with the most time.";

/** The standard normal quantile of 95 %. */
const Z = 1.959964;

/** Wilson's interval of a share that was seen in a number of call stacks. */
export function wilson(value: number, size: number): Share {
  if (size <= 0) return { value, low: 0, high: 1 };
  const square = (Z * Z) / size;
  const middle = (value + square / 2) / (1 + square);
  const reach = (Z * Math.sqrt((value * (1 - value)) / size + square / size / 4)) / (1 + square);
  return { value, low: Math.max(0, middle - reach), high: Math.min(1, middle + reach) };
}

/** Whether something is of the image that a filter names: by name, or by the begin of its id. */
export function isOfImage(
  of: { image?: string | null; id?: string | null }, wanted: string,
): boolean {
  return of.image === wanted || (wanted.length >= 8 && Boolean(of.id?.startsWith(wanted)));
}

function without(unmet: string[], met: string[]): string[] {
  return unmet.filter((name) => !met.includes(name));
}

/** Rows of images and procedures. Shares stay those of all samples. */
export function profOf(data: Prof, unmet: string[], from: State): Part<Prof> {
  const image = from[IMAGE];
  if (!unmet.includes(IMAGE) || !image) return { data, unmet };
  const rows = data.rows.filter((row) => isOfImage({ image: row.image, id: row.image_id }, image));
  const note = data.omitted.rows > 0 ? `${OF_ALL} ${OF_ROWS}` : OF_ALL;
  const omitted = { rows: 0, counts: {} };
  return { data: { ...data, rows, omitted }, unmet: without(unmet, [IMAGE]), note, isOfAll: true };
}

/** Rows of commands, processes and threads, and of units and labels. Shares are of these rows. */
export function subjectsOf(data: Prof, unmet: string[], from: State): Part<Prof> {
  const has = (name: string) => data.rows.some((row) => name in row);
  const met = unmet.filter((name) => name !== IMAGE && has(name));
  if (met.length === 0) return { data, unmet };
  const is = (row: ProfRow) =>
    met.every((name) => String(row[name as keyof ProfRow] ?? "") === from[name]);
  const rows = data.rows.filter(is);
  const parts = data.events.map((event): [Event, number, number] => {
    const share = rows.reduce((sum, row) => sum + (row.share[event.name]?.value ?? 0), 0);
    const counted = rows.reduce((sum, row) => sum + (row.counts[event.name] ?? 0), 0);
    return [event, share, counted];
  });
  const shares = (row: ProfRow) => Object.fromEntries(parts.map(([{ name }, share, counted]) =>
    [name, wilson((row.share[name]?.value ?? 0) / Math.max(share, 1e-12), counted)]));
  const events = parts.map(([event, share, counted]) =>
    scaled(event, share * total(event), counted));
  const shown = { ...data, events, rows: rows.map((row) => ({ ...row, share: shares(row) })) };
  return { data: shown, unmet: without(unmet, met) };
}

/** An event of a part of its samples. */
function scaled(event: Event, value: number, counted: number): Event {
  return { ...event, counted, amount: value };
}

/** Findings in an image. */
export function whyOf(data: Why, unmet: string[], from: State): Part<Why> {
  const image = from[IMAGE];
  if (!unmet.includes(IMAGE) || !image) return { data, unmet };
  const findings = data.findings.filter((one) =>
    isOfImage({ image: one.image, id: one.image_id }, image));
  const left = without(unmet, [IMAGE]);
  return { data: { ...data, findings }, unmet: left, note: OF_ALL, isOfAll: true };
}

/** The command of a timeline's row, which has the number of its process behind its name. */
export function commandOf(row: TimelineRow): string {
  const number = ` ${row.pid ?? ""}`;
  return row.pid && row.key.endsWith(number) ? row.key.slice(0, -number.length) : row.key;
}

/** Rows of a timeline: shares are of these where all of them are there, else of all time. */
export function timelineOf(data: Timeline, unmet: string[], from: State): Part<Timeline> {
  const image = from[IMAGE] ?? "";
  const is: Record<string, Record<string, (row: TimelineRow) => boolean>> = {
    command: {
      command: (row) => commandOf(row) === from["command"],
      pid: (row) => String(row.pid ?? "") === from["pid"],
    },
    unit: { unit: (row) => row.key === from["unit"] },
    image: { [IMAGE]: (row) => isOfImage({ image: row.key, id: row.image_id }, image) },
    procedure: { [IMAGE]: (row) => isOfImage({ image: row.image, id: row.image_id }, image) },
  };
  const met = unmet.filter((name) => is[data.by]?.[name]);
  if (met.length === 0) return { data, unmet };
  const rows = data.rows.filter((row) => met.every((name) => is[data.by]![name]!(row)));
  const left = without(unmet, met);
  // A process may have had several names, of which one has nearly all of its time.
  const isOne = data.by === "unit" || data.by === "image";
  const isNearlyOne = met.includes("pid");
  if (data.omitted > 0 && !((isOne || isNearlyOne) && rows.length > 0)) {
    const note = "Shares are of all samples. " + OF_ROWS;
    return { data: { ...data, rows, omitted: 0 }, unmet: left, note, isOfAll: true };
  }
  const whole = data.whole.map((slice, at): Slice => {
    const sum = (of: "seconds" | "occurrences") =>
      slice[of] === undefined ? undefined
        : rows.reduce((all, row) => all + (row.slices[at]?.[of] ?? 0), 0);
    return { ...slice, seconds: sum("seconds"), occurrences: sum("occurrences") };
  });
  const note = data.omitted > 0 && isNearlyOne ? OF_ROWS : undefined;
  return { data: { ...data, rows, whole, omitted: 0 }, unmet: left, note };
}

export function diffOf(data: Diff, unmet: string[], from: State): Part<Diff> {
  const image = from[IMAGE];
  if (!unmet.includes(IMAGE) || !image) return { data, unmet };
  const rows = data.rows.filter((row) =>
    row.image === image || row.image_ids?.some((id) => isOfImage({ id }, image)));
  return { data: { ...data, rows }, unmet: without(unmet, [IMAGE]), note: OF_ALL };
}

/** Calls, with what their shares are of. */
export interface Calls {
  calls: Call[];
  /** All time of the shares, in the event's unit. */
  total: number;
}

/**
 * The calls of some threads, of a tree by thread: shares are of their time. The threads are calls
 * of it only where they are to be told apart.
 */
export function callsOfThreads(all: Calls, is: (call: Call) => boolean, apart: boolean): Calls {
  const inside = new Uint8Array(all.calls.length);
  const left = all.calls.map((call) => call.share);
  let share = 0;
  for (const [at, one] of all.calls.entries()) {
    if (at === 0) continue;
    left[one.parent]! -= one.share;
    inside[at] = one.parent === 0 ? Number(is(one)) : inside[one.parent]!;
    if (one.parent === 0 && inside[at]) share += one.share;
  }
  const scale = 1 / Math.max(share, 1e-12);
  function* ways(): Iterable<Way> {
    for (let at = 1; at < all.calls.length; at++) {
      if (!inside[at] || left[at]! <= 1e-12) continue;
      const way: Call[] = [];
      let frame = at;
      for (; all.calls[frame]!.parent !== 0; frame = all.calls[frame]!.parent) {
        way.push(all.calls[frame]!);
      }
      if (apart) way.push(all.calls[frame]!);
      yield [way.reverse(), left[at]! * scale, all.calls[at]!.own * scale];
    }
  }
  return { calls: grown(ways()), total: all.total * share };
}

/** Only stacks through an image, from its first frame on; shares stay those of all time. */
export function callsThrough(all: Calls, image: string): Calls {
  const is = (call: Call) =>
    call.image !== "" && isOfImage({ image: call.image, id: call.imageId }, image);
  return { ...all, calls: focused(all.calls, is) };
}

/** Whether a call of a tree by thread is of the threads that filters name. */
export function isOfThread(call: Call, filters: string[], from: State): boolean {
  return filters.every((name) =>
    name === "command" ? call.thread?.command === from["command"]
      : name === "pid" ? String(call.thread?.pid ?? "") === from["pid"]
      : name === "thread" ? (call.thread?.name || call.thread?.command) === from["thread"]
      : false);
}

/** The procedures of calls, with their own time and that with calls; shares are of these calls. */
export function proceduresOf(all: Calls, tree: Tree, head: Prof): Prof {
  const { calls } = all;
  const name = tree.event.name;
  const stacks = (tree.event.stacks * all.total) / Math.max(tree.event.total, 1e-12);
  const rows = new Map<string, { call: Call; own: number; share: number }>();
  const keyOf = (call: Call) => `${call.name}\0${call.image}\0${call.imageId}\0${call.inlined}`;
  const keys = calls.map(keyOf);
  for (const [at, call] of calls.entries()) {
    if (at === 0) continue;
    const row = rows.get(keys[at]!) ?? { call, own: 0, share: 0 };
    row.own += call.own;
    // Of a procedure that calls itself, the outermost call has the time of those within.
    let above = call.parent;
    while (above !== 0 && keys[above] !== keys[at]) above = calls[above]!.parent;
    if (above === 0) row.share += call.share;
    rows.set(keys[at]!, row);
  }
  const whole = head.events.find((one) => one.name === name) ?? tree.event;
  const event = scaled(whole, all.total, Math.round(stacks));
  const made = [...rows.values()].map(({ call, own, share }): ProfRow => ({
    procedure: call.name, image: call.image, image_id: call.imageId, address: call.address,
    inlined: call.inlined, counts: {},
    share: { [name]: wilson(own, stacks) },
    inclusive: { [name]: wilson(Math.min(1, share), stacks) },
  }));
  return { ...head, events: [event], rows: made, omitted: { rows: 0, counts: {} } };
}

/** An image as links name it: a name that looks like an option cannot be an argument. */
export function imageValue(name: string, id: string, isAmbiguous: boolean): string {
  return isAmbiguous || name.startsWith("-") ? briefId(id) : name;
}
