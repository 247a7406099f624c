// The tree of calls as boxes: shaped (inverted, focused), laid out, searched; callers and callees.
import { brief, Thread, Tree, TreeRow } from "./model";

export interface Call {
  name: string;
  short: string;
  image: string;
  imageId: string;
  address: string;
  inlined: boolean;
  /** Of a tree by thread, the thread that the calls below are of. */
  thread?: Thread;
  /** Share of all time, with all below it. */
  share: number;
  low: number;
  high: number;
  own: number;
  depth: number;
  parent: number;
  children: number[];
  /** Begin, as a share of all time. */
  x: number;
  /** Hash of the names from the root to here: what links name it by. */
  path: number;
}

const FNV_PRIME = 0x01000193;

export function hash(text: string, seed: number): number {
  let value = seed;
  for (let at = 0; at < text.length; at++) {
    value = Math.imul(value ^ text.charCodeAt(at), FNV_PRIME);
  }
  return value >>> 0;
}

const SCRIPT = /\.(py|rb|php|js|mjs|cjs|ts|lua|pl)$|^<|^node:|internal\//;

/** Whether an image is the source or the generated code of a language that is not compiled. */
export function isScript(image: string): boolean {
  return SCRIPT.test(image) || image.startsWith("[jit]");
}

function root(): Call {
  return {
    name: "all", short: "all", image: "", imageId: "", address: "", inlined: false,
    share: 1, low: 1, high: 1, own: 0, depth: 0, parent: 0, children: [], x: 0, path: 0x811c9dc5,
  };
}

function pathOf({ name, image, imageId }: Pick<Call, "name" | "image" | "imageId">, above: Call) {
  return hash(`${name}\0${image}\0${imageId}`, above.path);
}

function call(row: TreeRow, parent: number, above: Call): Call {
  const image = row.image ?? "";
  return {
    name: row.procedure,
    short: brief(row.procedure, row.image !== null && !isScript(image)),
    image,
    imageId: row.image_id ?? "",
    address: row.address ?? "",
    inlined: row.inlined,
    thread: row.thread,
    share: row.share.value,
    low: row.share.low,
    high: row.share.high,
    own: row.own,
    depth: above.depth + 1,
    parent,
    children: [],
    x: 0,
    path: pathOf({ name: row.procedure, image, imageId: row.image_id ?? "" }, above),
  };
}

/** All calls, each before those below it; the first is all time. */
export function topDown(tree: Tree): Call[] {
  const calls = [root()];
  const places: number[] = [];
  for (const row of tree.rows) {
    const parent = row.parent === null ? 0 : (places[row.parent] ?? 0);
    const above = calls[parent]!;
    above.children.push(calls.length);
    places.push(calls.length);
    calls.push(call(row, parent, above));
  }
  return placed(calls);
}

/** Calls from the first one on, the share of the stacks that end there, and its own part of it: the
 * rest is of calls below that are too rare to be drawn. */
export type Way = [Call[], number, number];

/** Sums calls of equal ways. Builds of an image are apart. */
export function grown(ways: Iterable<Way>): Call[] {
  const calls = [root()];
  const next = new Map<string, number>();
  let sum = 0;
  for (const [way, share, own] of ways) {
    sum += share;
    let at = 0;
    for (const frame of way) {
      const key = `${at}\0${frame.name}\0${frame.image}\0${frame.imageId}`;
      let below = next.get(key);
      const above = calls[at]!;
      if (below === undefined) {
        below = calls.length;
        next.set(key, below);
        above.children.push(below);
        const path = pathOf(frame, above);
        const none = { share: 0, low: 0, high: 0, own: 0, children: [], x: 0 };
        calls.push({ ...frame, ...none, depth: above.depth + 1, parent: at, path });
      }
      at = below;
      calls[at]!.share += share;
    }
    calls[at]!.own += own;
  }
  const all = calls[0]!;
  all.share = sum;
  for (const one of calls) one.low = one.high = one.share;
  return placed(calls);
}

function* waysUp(calls: Call[]): Iterable<Way> {
  for (const [at, leaf] of calls.entries()) {
    if (at === 0 || leaf.own <= 0) continue;
    const way: Call[] = [];
    for (let frame = at; frame !== 0; frame = calls[frame]!.parent) way.push(calls[frame]!);
    yield [way, leaf.own, leaf.own];
  }
}

/** The procedures that took the time first; below each are its callers. */
export function bottomUp(calls: Call[]): Call[] {
  return grown(waysUp(calls));
}

/** Only stacks through calls that match, from the first such call on. */
export function focused(calls: Call[], matches: (call: Call) => boolean): Call[] {
  const found = new Uint8Array(calls.length);
  const begin = new Int32Array(calls.length).fill(-1);
  const left = calls.map((call) => call.share);
  for (const [at, one] of calls.entries()) {
    if (at === 0) continue;
    left[one.parent]! -= one.share;
    found[at] = found[one.parent]! || matches(one) ? 1 : 0;
    if (found[at]) begin[at] = found[one.parent] ? begin[one.parent]! : at;
  }
  function* ways(): Iterable<Way> {
    for (let at = 1; at < calls.length; at++) {
      if (!found[at] || left[at]! <= 1e-12) continue;
      const way: Call[] = [];
      for (let frame = at; ; frame = calls[frame]!.parent) {
        way.push(calls[frame]!);
        if (frame === begin[at]) break;
      }
      yield [way.reverse(), left[at]!, calls[at]!.own];
    }
  }
  return grown(ways());
}

/** Gives each call its place, the largest first. */
function placed(calls: Call[]): Call[] {
  for (const above of calls) {
    above.children.sort((a, b) => calls[b]!.share - calls[a]!.share);
    let x = above.x;
    for (const child of above.children) {
      calls[child]!.x = x;
      x += calls[child]!.share;
    }
  }
  return calls;
}

export interface Neighbour {
  name: string;
  short: string;
  image: string;
  share: number;
}

export interface Around {
  share: number;
  own: number;
  callers: Neighbour[];
  callees: Neighbour[];
}

/** Whether a callee runs within another call of it by the same procedure, whose time has its. */
function isNested(calls: Call[], callee: Call, is: (of: Call) => boolean): boolean {
  for (let at = calls[callee.parent]!.parent; at !== 0; at = calls[at]!.parent) {
    const other = calls[at]!;
    const same = other.name === callee.name && other.image === callee.image;
    if (same && is(calls[other.parent]!)) return true;
  }
  return false;
}

/** Callers and callees of a procedure. Recursion counts once: its outermost call has the time. */
export function around(calls: Call[], name: string, image: string): Around {
  const is = (of: Call) => of.name === name && of.image === image;
  const callers = new Map<string, Neighbour>();
  const callees = new Map<string, Neighbour>();
  const add = (to: Map<string, Neighbour>, of: Call, share: number) => {
    const key = `${of.name}\0${of.image}`;
    const known = to.get(key) ?? { name: of.name, short: of.short, image: of.image, share: 0 };
    known.share += share;
    to.set(key, known);
  };
  const inside = new Uint8Array(calls.length);
  let share = 0;
  let own = 0;
  for (const [at, one] of calls.entries()) {
    if (at === 0) continue;
    const above = calls[one.parent]!;
    inside[at] = inside[one.parent]! || is(one) ? 1 : 0;
    if (is(one)) {
      own += one.own;
      if (!inside[one.parent]) {
        share += one.share;
        add(callers, above, one.share);
      }
    } else if (is(above) && one.parent !== 0 && !isNested(calls, one, is)) {
      add(callees, one, one.share);
    }
  }
  const sorted = (of: Map<string, Neighbour>) =>
    [...of.values()].sort((a, b) => b.share - a.share);
  return { share, own, callers: sorted(callers), callees: sorted(callees) };
}

/** Share of all time of the calls that match, each stack once. */
export function foundShare(calls: Call[], matches: (call: Call) => boolean): [number, number] {
  const inside = new Uint8Array(calls.length);
  let number = 0;
  let share = 0;
  for (const [at, one] of calls.entries()) {
    if (at === 0) continue;
    const is = matches(one);
    if (is) number += 1;
    if (is && !inside[one.parent]) share += one.share;
    inside[at] = inside[one.parent]! || is ? 1 : 0;
  }
  return [number, share];
}
