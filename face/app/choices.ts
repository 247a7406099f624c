// The parts of the machine that the page can be restricted to, those of one name together: a
// service, its program, and the builds of the program's file are one choice, with the rest beneath.
import { useMemo } from "preact/hooks";
import { IMAGES, useBuilds, useEvent } from "./facts";
import { Build, buildsOf, imageOf, Prof, ProfRow } from "./model";
import { imageValue, isOfImage } from "./only";
import { matcherOfLower } from "./parts";
import { IMAGE, useReport } from "./source";

/** Groups before one is searched for, and in all. */
const FIRST = 14;
const MOST = 60;
/** Choices beneath a group. */
const MOST_BENEATH = 40;

/** One part of the machine: a value of a filter of the link. */
export interface Choice {
  filter: string;
  value: string;
  name: string;
  share: number;
  lower: string;
  /** Of an image: the build, where its path had several. */
  build?: Build;
  /** What its group is named by. */
  key: string;
  /** Of a control group: it is a container's. */
  isContainer?: boolean;
}

/** Choices of one name. */
export interface Group {
  name: string;
  /** What it is: "service, 1 program, 2 builds". */
  covers: string;
  /** What choosing the group restricts the page to. */
  main: Choice;
  /** All that it covers, the main choice first. */
  choices: Choice[];
}

/**
 * The kinds of choices, with the word for one and for several. The first of them that a group has
 * is what choosing the group means: of a service all samples are known, also of the libraries and
 * the kernel's work for it; of a program its call stacks; of an image the samples in its code.
 */
export const KINDS: [string, string, string][] = [
  ["unit", "service or container", "services or containers"],
  ["container", "container", "containers"],
  ["pod", "pod", "pods"],
  ["namespace", "namespace", "namespaces"],
  ["label", "label", "labels"],
  ["command", "program", "programs"],
  [IMAGE, "image", "images"],
  ["pid", "process", "processes"],
  ["thread", "thread name", "thread names"],
];

/** What a choice restricts the page to, in a few words. */
export const MEANT: Record<string, string> = {
  unit: "all that ran in it", container: "all that ran in it", pod: "all that ran in it",
  namespace: "all that ran in its pods", label: "all that ran with it",
  command: "its processes, with libraries and the kernel", [IMAGE]: "code of this file alone",
  pid: "this process, with libraries and the kernel", thread: "threads of this name",
};

function words(filter: string, event: string): string[] {
  return filter === IMAGE ? IMAGES : ["prof", `--by=${filter}`, `--event=${event}`];
}

/** The parts of one kind with their shares; none that have no name. */
export function useChoices(filter: string, isAsked: boolean): Choice[] {
  const { event } = useEvent();
  const asked = useReport<Prof>(isAsked && event ? words(filter, event.name) : null, "time");
  const builds = useBuilds();
  return useMemo(() => {
    if (!asked.data || !event) return [];
    const several = new Set(buildsOf(asked.data.rows).map((one) => one.name));
    const sums = new Map<string, Choice>();
    for (const row of asked.data.rows) {
      const choice = choiceOf(row, filter, several, builds.flat());
      if (!choice) continue;
      const share = row.share[event.name]?.value ?? 0;
      const known = sums.get(choice.value);
      if (!known) sums.set(choice.value, { ...choice, share });
      else {
        known.share += share;
        // A thread's name is of its program unless others have it, too.
        if (known.key !== choice.key) known.key = keyOf(known.name);
      }
    }
    return [...sums.values()].sort((a, b) => b.share - a.share);
  }, [asked.data, builds, event?.name]);
}

/** The name without what tells a service from its program. */
function keyOf(name: string): string {
  return name.replace(/\.(service|scope|slice)$/, "");
}

function choiceOf(
  row: ProfRow, filter: string, several: Set<string>, builds: Build[],
): Choice | null {
  let [name, value] = ["", ""];
  let build: Build | undefined;
  if (filter === IMAGE) {
    if (!row.image || row.kind === "unresolved" || row.kind === "idle") return null;
    name = imageOf(row, several);
    value = imageValue(row.image, row.image_id ?? "", several.has(row.image));
    build = builds.find((one) => one.path === row.path && isOfImage({ id: row.image_id }, one.id));
  } else {
    value = String(row[filter as keyof ProfRow] ?? "");
    name = filter === "pid" && row.command ? `${row.command} ${value}` : value;
  }
  const owner = filter === IMAGE ? row.image : filter === "pid" || filter === "thread"
    ? row.command : null;
  const key = keyOf(owner || value);
  const lower = name.toLowerCase();
  return value === "" ? null : { filter, value, name, share: 0, lower, build, key };
}

/** What a group covers in words, the main choice first. */
function covered(choices: Choice[]): string {
  return KINDS.flatMap(([filter, , many]) => {
    const of = choices.filter((choice) => choice.filter === filter);
    if (of.length === 0) return [];
    if (filter === IMAGE && of.length > 1) {
      const isBuilds = of.every((choice) => choice.build);
      return [`${of.length} ${isBuilds ? "builds" : many}`];
    }
    // The main thread of a program has the program's name.
    if (filter === "thread" && of.length === 1 && of[0] !== choices[0]) return [];
    if (of.length === 1) return [of[0] === choices[0] ? kindOf(of[0]!) : `1 ${kindOf(of[0]!)}`];
    return [`${of.length} ${many}`];
  }).join(", ");
}

function grouped(choices: Choice[]): Group[] {
  const groups = new Map<string, Choice[]>();
  const of = (filter: string) =>
    new Set(choices.filter((one) => one.filter === filter).map((one) => one.value));
  const [units, containers] = [of("unit"), of("container")];
  for (const choice of choices) {
    // A container is a control group, too: one of both is enough.
    if (choice.filter === "container" && units.has(choice.value)) continue;
    choice.isContainer = choice.filter === "unit" && containers.has(choice.value);
    groups.set(choice.key, [...groups.get(choice.key) ?? [], choice]);
  }
  const rank = (one: Choice) => KINDS.findIndex(([filter]) => filter === one.filter);
  return [...groups].map(([key, all]): Group => {
    all.sort((a, b) => rank(a) - rank(b) || (a.build?.first ?? 0) - (b.build?.first ?? 0)
      || b.share - a.share);
    let main = all[0]!;
    const images = all.filter((one) => one.filter === IMAGE);
    // An image of several builds: all of them together.
    if (main.filter === IMAGE && images.length > 1 && !key.startsWith("-")) {
      const share = images.reduce((sum, one) => sum + one.share, 0);
      main = { ...main, value: key, name: key, share, build: undefined };
    }
    const choices = main === all[0] ? all : [main, ...all];
    return { name: all.length === 1 ? main.name : key, covers: covered(all), main, choices };
  }).sort((a, b) => b.main.share - a.main.share);
}

/** Groups that have the words of a search, the largest first, and how many there are. */
export function useGroups(isAsked: boolean, search: string): [Group[], number] {
  // Hooks are called in the same order each time: KINDS does not change.
  const all = KINDS.map(([filter]) => useChoices(filter, isAsked));
  const groups = useMemo(() => grouped(all.flat()), all);
  const is = matcherOfLower(search);
  const found = is
    ? groups.filter(({ name, choices }) =>
      is(name.toLowerCase()) || choices.some(({ lower }) => is(lower)))
    : groups;
  return [found.slice(0, is ? MOST : FIRST), found.length];
}

/** What is shown beneath a group: of a search, what has its words, if the group's name has not. */
export function beneath(group: Group, search: string): [Choice[], number] {
  const is = matcherOfLower(search);
  const all = group.choices.filter((one) =>
    !is || is(group.name.toLowerCase()) || is(one.lower));
  return [all.slice(0, MOST_BENEATH), all.length];
}

/** The kind of a choice, as the page says it. */
export function kindOf({ filter, value, build, isContainer }: Choice): string {
  // Only services of systemd have this ending.
  if (filter === "unit" && value.endsWith(".service")) return "service";
  if (isContainer) return "container";
  return build ? "build" : KINDS.find(([name]) => name === filter)?.[1] ?? filter;
}
