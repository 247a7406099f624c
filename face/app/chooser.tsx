// The choice of a part of the machine that all views are restricted to: a program, an image, a
// service or container, a process; and what is chosen.
import { useMemo, useRef, useState } from "preact/hooks";
import { IMAGES, useEvent } from "./facts";
import { buildsOf, imageOf, localSpan, percent, Prof, ProfRow, span } from "./model";
import { imageValue, isOfImage } from "./only";
import { matcherOfLower } from "./parts";
import {
  commandLine, config, IMAGE, isOfThreads, ofRange, PARTS, parts, Range, rangeOf, rangeOptions,
  useReport,
} from "./source";
import { change, State, useStateOfLink } from "./state";

/** Choices of a kind before one is searched for, and in all. */
const FIRST = 6;
const MOST = 60;

interface Choice {
  filter: string;
  value: string;
  name: string;
  share: number;
  lower: string;
}

/** The kinds of choices: filter, title, and how reports call a row's value. */
const KINDS: [string, string][] = [
  ["command", "Programs, by the name of the process"],
  [IMAGE, "Images: programs, libraries, scripts, the kernel"],
  ["unit", "Services and containers"],
  ["container", "Containers"],
  ["pod", "Pods"],
  ["namespace", "Namespaces of pods"],
  ["label", "Labels"],
  ["pid", "Processes"],
  ["thread", "Threads"],
];

function words(filter: string, event: string): string[] {
  return filter === IMAGE ? IMAGES : ["prof", `--by=${filter}`, `--event=${event}`];
}

/** The parts of one kind with their shares; none that have no name. */
function useChoices(filter: string, isAsked: boolean): Choice[] {
  const { event } = useEvent();
  const asked = useReport<Prof>(isAsked && event ? words(filter, event.name) : null, "time");
  return useMemo(() => {
    if (!asked.data || !event) return [];
    const builds = new Set(buildsOf(asked.data.rows).map((one) => one.name));
    const sums = new Map<string, Choice>();
    for (const row of asked.data.rows) {
      const choice = choiceOf(row, filter, builds);
      if (!choice) continue;
      const share = row.share[event.name]?.value ?? 0;
      const known = sums.get(choice.value);
      if (known) known.share += share;
      else sums.set(choice.value, { ...choice, share });
    }
    return [...sums.values()].sort((a, b) => b.share - a.share);
  }, [asked.data, event?.name]);
}

function choiceOf(row: ProfRow, filter: string, builds: Set<string>): Choice | null {
  let [name, value] = ["", ""];
  if (filter === IMAGE) {
    if (!row.image || row.kind === "unresolved" || row.kind === "idle") return null;
    name = imageOf(row, builds);
    value = imageValue(row.image, row.image_id ?? "", builds.has(row.image));
  } else {
    value = String(row[filter as keyof ProfRow] ?? "");
    name = filter === "pid" && row.command ? `${row.command} ${value}` : value;
  }
  return value === "" ? null : { filter, value, name, share: 0, lower: name.toLowerCase() };
}

/** Kinds with their choices that have the words of a search, the largest first. */
function useFound(isAsked: boolean, search: string): [string, Choice[], number][] {
  // Hooks are called in the same order each time: KINDS does not change.
  const all = KINDS.map(([filter, title]): [string, Choice[]] =>
    [title, useChoices(filter, isAsked)]);
  const is = matcherOfLower(search);
  return all.map(([title, choices]): [string, Choice[], number] => {
    const found = is ? choices.filter((one) => is(one.lower)) : choices;
    return [title, found.slice(0, is ? MOST : FIRST), found.length];
  }).filter(([, found]) => found.length > 0);
}

/** Restricts the page to a part, which replaces another of its family: process and program, say. */
export function choose(filter: string, value: string) {
  const family = PARTS.map(([name]) => name).filter((name) =>
    isOfThreads(name) === isOfThreads(filter) && (name === IMAGE) === (filter === IMAGE));
  const none = Object.fromEntries(family.map((name) => [name, ""]));
  change({ ...none, [filter]: value, zoom: "" });
}

function keyOf({ filter, value }: Choice): string {
  return `${filter} ${value}`;
}

export function Chooser() {
  const [search, setSearch] = useState("");
  const [isOpen, setOpen] = useState(false);
  // Choices come one kind after the other: the one that is marked stays so.
  const [marked, mark] = useState("");
  const list = useRef<HTMLDivElement>(null);
  const found = useFound(isOpen, search);
  const flat = found.flatMap(([, choices]) => choices);
  const at = flat.findIndex((one) => keyOf(one) === marked);
  const close = () => {
    setOpen(false);
    setSearch("");
    mark("");
  };
  const take = (choice: Choice | undefined) => {
    if (!choice) return;
    choose(choice.filter, choice.value);
    close();
  };
  const move = (to: number) => {
    const next = Math.max(0, Math.min(flat.length - 1, to));
    mark(flat[next] ? keyOf(flat[next]!) : "");
    list.current?.querySelector(`#choice-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") isOpen ? move(at + 1) : setOpen(true);
    else if (event.key === "ArrowUp") move(at - 1);
    else if (event.key === "Enter") take(flat[Math.max(0, at)]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  };
  let number = 0;
  return (
    <div
      class="chooser"
      onFocusOut={(event) => {
        const to = event.relatedTarget as Node | null;
        if (!(event.currentTarget as HTMLElement).contains(to)) close();
      }}
    >
      <input
        type="text" role="combobox" class="search" autocomplete="off" spellcheck={false}
        aria-label="Only one program, image, container or process"
        aria-expanded={isOpen} aria-controls="choices" aria-autocomplete="list"
        aria-activedescendant={isOpen && at >= 0 ? `choice-${at}` : undefined}
        placeholder="Only program, image, container …"
        value={search}
        onFocus={() => setOpen(true)}
        onClick={() => setOpen(true)}
        onInput={(event) => {
          setSearch((event.currentTarget as HTMLInputElement).value);
          setOpen(true);
          mark("");
        }}
        onKeyDown={onKey}
      />
      <div id="choices" role="listbox" aria-label="Parts of the machine" class="panel" ref={list}
        hidden={!isOpen} tabIndex={-1}>
        {found.map(([title, choices, size]) => (
          <div role="group" aria-label={title}>
            <div class="kind" aria-hidden="true">{title}</div>
            {choices.map((one) => {
              const mine = number++;
              return (
                <div
                  id={`choice-${mine}`} role="option" aria-selected={mine === at}
                  class={mine === at ? "at" : ""}
                  onMouseDown={(event) => event.preventDefault()}
                  onClick={() => take(one)}
                >
                  <span class="cut" title={one.name}>{one.name}</span>
                  <span>{percent(one.share)} %</span>
                </div>
              );
            })}
            {size > choices.length && (
              <div class="kind" aria-hidden="true">
                {(size - choices.length).toLocaleString("en")} more: type a part of the name
              </div>
            )}
          </div>
        ))}
        {isOpen && found.length === 0 && (
          <div role="option" aria-selected={false} aria-disabled="true" class="kind">
            {search ? "No name has these words." : "Reading …"}
          </div>
        )}
      </div>
    </div>
  );
}

/** What the page is restricted to, with its share of all samples of the page's time. */
function Chip({ filter, from }: { filter: string; from: State }) {
  const value = from[filter] ?? "";
  const choices = useChoices(filter, true);
  const known = choices.filter((one) =>
    one.value === value || filter === IMAGE && isOfImage({ image: one.name.split(" ")[0] }, value));
  const share = known.reduce((sum, one) => sum + one.share, 0);
  const words = PARTS.find(([name]) => name === filter)?.[1] ?? filter;
  const name = known.length === 1 ? known[0]!.name : value;
  return (
    <button
      type="button" class="chip" title="Show all again" onClick={() => change({ [filter]: "" })}
    >
      Only {words} <strong>{name}</strong>
      {share > 0 && `, ${percent(share)} % of ${isOfThreads(filter) ? "call stacks" : "samples"}`} ✕
    </button>
  );
}

/** Other filters of a server's database. */
const OTHERS = ["epoch", "host"];

/** The time that the page is restricted to. A file has reports of all of its time alone. */
function RangeChip({ from, range }: { from: State; range: Range }) {
  const words = config.live ? "Only from" : "In the timeline only from";
  return (
    <>
      <button
        type="button" class="chip" title={`${localSpan(range.since, range.until)}: show all again`}
        onClick={() => change(ofRange(null))}
      >
        {words} <strong>{span(range.since, range.until)}</strong> ✕
      </button>
      {!config.live && from["v"] !== "timeline" && (
        <span class="hint">
          This view is of all of the time: the file has no reports of a part. {"For a file of this "
          + "time alone: "}<code>{commandLine(["html", "-o", "part.html"], "page", parts(from),
            rangeOptions(range))}</code>
        </span>
      )}
    </>
  );
}

export function Chips() {
  const from = useStateOfLink();
  const times = config.live ? OTHERS.filter((name) => from[name]) : [];
  const chosen = parts(from);
  const range = rangeOf(from);
  if (times.length + chosen.length === 0 && !range) return null;
  return (
    <p class="chips" aria-label="Filters">
      {chosen.map((name) => <Chip key={name} filter={name} from={from} />)}
      {range && <RangeChip from={from} range={range} />}
      {times.map((name) => (
        <button
          type="button" class="chip" title="Show all again" onClick={() => change({ [name]: "" })}
        >
          {name} {from[name]} ✕
        </button>
      ))}
    </p>
  );
}
