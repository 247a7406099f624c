// Colours of boxes: by image, by kind of code, by cause of its time, by its change.
import { Call, hash, isScript } from "./calls";
import { Diff, Prof, Why } from "./model";

export type By = "image" | "kind" | "cause" | "change";

export const CLASSES: Record<string, string> = {
  memory: "memory",
  front_end: "front end",
  speculation: "speculation",
  core: "core",
  kernel: "kernel's work",
  waiting: "waiting",
  limit: "at its limit",
  runtime: "runtime",
};

const CLASS_HUES: Record<string, number> = {
  memory: 350, front_end: 200, speculation: 270, core: 150, kernel: 25, waiting: 220, limit: 95,
  runtime: 310,
};

export interface Paint {
  colour: (call: Call) => string;
  legend: [string, string][];
}

export function isDark(): boolean {
  const chosen = document.documentElement.dataset["theme"];
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function box(hue: number, saturation = 60, dark = isDark(), lightness = 0): string {
  return dark ? `hsl(${hue} ${saturation * 0.7}% ${34 - 0.6 * lightness}%)`
    : `hsl(${hue} ${saturation}% ${80 - lightness}%)`;
}

function grey(): string {
  return isDark() ? "hsl(220 6% 32%)" : "hsl(220 8% 86%)";
}

/** Frames that are not known: darker than all that is, and without hue. */
function notKnown(): string {
  return isDark() ? "hsl(0 0% 22%)" : "hsl(0 0% 71%)";
}

export type Kind = "native" | "kernel" | "inlined" | "interpreted" | "generated" | "waiting"
  | "thread" | "unknown";

const KINDS: [Kind, string, number][] = [
  ["native", "native code", 210],
  ["inlined", "inlined function", 185],
  ["kernel", "kernel", 28],
  ["interpreted", "interpreted or scripted", 130],
  ["generated", "generated code", 275],
  ["waiting", "waiting", 235],
  ["thread", "thread", 0],
  ["unknown", "not known", 0],
];

/** Names of what threads wait for; other names in brackets say why frames are not known. */
const WAITED = new Set([
  "preempted", "runnable", "futex", "timer", "pipe", "socket", "poll", "disk", "page_fault",
  "child", "signal", "kernel_lock", "terminal", "other_wait",
]);

export function kindOf(call: Call, kinds: Map<string, string>): Kind {
  if (call.thread) return "thread";
  if (!call.image) return WAITED.has(call.name.replace(/^\[|\]$/g, "")) ? "waiting" : "unknown";
  if (call.inlined) return "inlined";
  if (isScript(call.image) && !call.image.startsWith("[jit]")) return "interpreted";
  const kind = kinds.get(call.imageId);
  if (call.image === "[kernel]" || ["kernel", "module", "bpf", "idle"].includes(kind ?? "")) {
    return "kernel";
  }
  if (kind === "jit" || isScript(call.image)) return "generated";
  return kind === "unresolved" ? "unknown" : "native";
}

/** The hues of the kernel and of waits: no image has one near them. */
const KERNEL_HUE = 28;
const WAITING_HUE = 235;
/** Hues and shades of images, so many that of few images two are rarely alike. */
const HUES = Array.from({ length: 36 }, (_, at) => 10 * at)
  .filter((hue) => Math.abs(hue - KERNEL_HUE) > 14 && Math.abs(hue - WAITING_HUE) > 9);
const SHADES = [0, 7, 14];

/** The colour of an image follows from its name: it is the same in each view and selection. */
function imageColour(image: string): string {
  if (image === "[kernel]" || image.endsWith(".ko")) return box(KERNEL_HUE, 75);
  const mixed = hash(image, 0x811c9dc5);
  const number = (mixed ^ (mixed >>> 15)) >>> 0;
  const shade = SHADES[Math.floor(number / HUES.length) % SHADES.length];
  return box(HUES[number % HUES.length]!, 55, isDark(), shade);
}

function byImage(calls: Call[], kinds: Map<string, string>): Paint {
  const own = new Map<string, number>();
  for (const one of calls) own.set(one.image, (own.get(one.image) ?? 0) + one.own + 1e-9);
  const ranked = [...own].filter(([image]) => image).sort((a, b) => b[1] - a[1]);
  const colours = new Map(ranked.map(([image]) => [image, imageColour(image)]));
  const other: Record<string, string> = { waiting: box(WAITING_HUE), unknown: notKnown() };
  const colour = (call: Call) =>
    colours.get(call.image) ?? (call.depth === 0 ? grey() : other[kindOf(call, kinds)] ?? grey());
  const legend = ranked.slice(0, 8).map(([image]): [string, string] => [
    image, colours.get(image)!,
  ]);
  if (ranked.length > 8) legend.push([`${ranked.length - 8} more images, in other colours`, ""]);
  return { colour, legend: [...legend, ...unnamed(calls, kinds)] };
}

/** What the legend says of frames that are of no image. */
function unnamed(calls: Call[], kinds: Map<string, string>): [string, string][] {
  const seen = new Set(calls.slice(1).map((call) => kindOf(call, kinds)));
  const all: [Kind, string, string][] = [
    ["waiting", "waiting", box(WAITING_HUE)], ["unknown", "not known", notKnown()],
  ];
  return all.filter(([kind]) => seen.has(kind)).map(([, name, colour]) => [name, colour]);
}

function byKind(kinds: Map<string, string>, calls: Call[]): Paint {
  const colours = new Map(KINDS.map(([kind, , hue]) => [
    kind, kind === "unknown" ? notKnown() : kind === "thread" ? grey() : box(hue),
  ]));
  const seen = new Set(calls.slice(1).map((call) => kindOf(call, kinds)));
  return {
    colour: (call) => (call.depth === 0 ? grey() : colours.get(kindOf(call, kinds))!),
    legend: KINDS.filter(([kind]) => seen.has(kind)).map(([kind, name]) => [
      name, colours.get(kind)!,
    ]),
  };
}

/** By the class of the mechanism that `dcpi why` finds for the procedure. */
function byCause(why: Why | undefined): Paint {
  const classes = new Map<string, string>();
  for (const finding of [...(why?.findings ?? [])].reverse()) {
    if (finding.mechanism === "unknown" || !finding.image) continue;
    classes.set(`${finding.procedure ?? ""}\0${finding.image ?? ""}`, finding.class);
  }
  const of = (call: Call) =>
    classes.get(`${call.name}\0${call.image}`) ?? classes.get(`\0${call.image}`);
  const used = new Set(classes.values());
  const hue = (name: string) => box(CLASS_HUES[name] ?? 0, 65);
  const legend = [...used].map((name): [string, string] => [CLASSES[name] ?? name, hue(name)]);
  return {
    colour: (call) => {
      const name = call.depth === 0 ? undefined : of(call);
      return name ? hue(name) : grey();
    },
    legend: [...legend, ["no finding", grey()]],
  };
}

/** By the change of the procedure's own share; grey where it may be chance. */
function byChange(diff: Diff | undefined): Paint {
  const changes = new Map<string, number>();
  for (const row of diff?.rows ?? []) {
    if (!row.significant) continue;
    const relative = row.change / Math.max(row.a, row.b, 1e-12);
    changes.set(`${row.procedure}\0${row.image}`, relative);
  }
  const shade = (change: number) => {
    const strength = Math.min(1, Math.abs(change));
    return box(change > 0 ? 5 : 215, 30 + 55 * strength);
  };
  return {
    colour: (call) => {
      const change = changes.get(`${call.name}\0${call.image}`);
      return change === undefined || call.depth === 0 ? grey() : shade(change);
    },
    legend: [["more than before", shade(1)], ["less", shade(-1)], ["may be chance", grey()]],
  };
}

export interface Facts {
  images?: Prof;
  why?: Why;
  diff?: Diff;
}

export function paint(by: By, calls: Call[], facts: Facts): Paint {
  const kinds = new Map<string, string>();
  for (const row of facts.images?.rows ?? []) kinds.set(row.image_id ?? "", row.kind ?? "");
  switch (by) {
    case "kind":
      return byKind(kinds, calls);
    case "cause":
      return byCause(facts.why);
    case "change":
      return byChange(facts.diff);
    default:
      return byImage(calls, kinds);
  }
}
