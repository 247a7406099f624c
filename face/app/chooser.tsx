// The choice of a part of the machine that all views are restricted to: a program, an image, a
// service or container, a process; and what is chosen.
import { useRef, useState } from "preact/hooks";
import { beneath, Choice, Group, kindOf, MEANT, useChoices, useGroups } from "./choices";
import { localSpan, moment, percent, span, ZONE } from "./model";
import { isOfImage } from "./only";
import { matcher } from "./parts";
import {
  commandLine, config, IMAGE, isOfThreads, ofRange, PARTS, parts, Range, rangeOf, rangeOptions,
} from "./source";
import { change, State, useStateOfLink } from "./state";
import { useAll } from "./whole";

/** Restricts the page to a part, which replaces another of its family: process and program, say. */
export function choose(filter: string, value: string) {
  const family = PARTS.map(([name]) => name).filter((name) =>
    isOfThreads(name) === isOfThreads(filter) && (name === IMAGE) === (filter === IMAGE));
  const none = Object.fromEntries(family.map((name) => [name, ""]));
  change({ ...none, [filter]: value, zoom: "" });
}

/** A line of the list: a group, or a choice beneath one that is unfolded. */
interface Line {
  group: Group;
  /** None of the group's own line. */
  choice: Choice | null;
}

function keyOf({ group, choice }: Line): string {
  return choice ? `${group.name}\0${choice.filter}\0${choice.value}` : group.name;
}

/** When a build was seen first, where there are several. */
function seen({ build }: Choice): string {
  return build ? `, since ${moment(build.first)} ${ZONE}` : "";
}

/** One line of the list, with its share. */
function Option({ line, at, number, isOpen, share, take, turn }: {
  line: Line;
  at: boolean;
  number: number;
  isOpen: boolean;
  share: string;
  take: () => void;
  turn: () => void;
}) {
  const { group, choice } = line;
  const shown = choice ?? group.main;
  const isGroup = !choice && group.choices.length > 1;
  const name = choice ? shown.name : group.name;
  return (
    <div
      id={`choice-${number}`} role="option" aria-selected={at}
      class={`${at ? "at" : ""}${choice ? " beneath" : ""}`}
      data-filter={shown.filter} data-name={shown.name}
      onMouseDown={(event) => event.preventDefault()} onClick={take}
    >
      <span
        class="fold" title={isGroup ? "What it covers (→ and ←)" : undefined}
        onClick={isGroup
          ? (event: MouseEvent) => {
            event.stopPropagation();
            turn();
          }
          : undefined}
      >
        {isGroup ? (isOpen ? "▾" : "▸") : ""}
      </span>
      <span class="cut" title={`${name}: ${MEANT[shown.filter]}`}>
        {choice && <small>{kindOf(shown)} </small>}
        {name}
        <small>
          {choice ? seen(shown) || `: ${MEANT[shown.filter]}` : ` ${group.covers}${seen(shown)}`}
        </small>
      </span>
      <span>{share}</span>
    </div>
  );
}

export function Chooser() {
  const [search, setSearch] = useState("");
  const [isOpen, setOpen] = useState(false);
  // Choices come one kind after the other: the one that is marked stays so.
  const [marked, mark] = useState("");
  const [unfolded, unfold] = useState<string[]>([]);
  const list = useRef<HTMLDivElement>(null);
  const all = useAll();
  const [groups, size] = useGroups(isOpen, search);
  const isUnfolded = ({ name, choices }: Group) => choices.length > 1
    && (unfolded.includes(name) || search !== "" && !matcher(search)?.(name));
  const more = new Map<string, number>();
  const lines = groups.flatMap((group): Line[] => {
    if (!isUnfolded(group)) return [{ group, choice: null }];
    const [choices, all] = beneath(group, search);
    more.set(group.name, all - choices.length);
    return [{ group, choice: null }, ...choices.map((choice) => ({ group, choice }))];
  });
  const at = lines.findIndex((one) => keyOf(one) === marked);
  const close = () => {
    setOpen(false);
    setSearch("");
    mark("");
    unfold([]);
  };
  const take = (line: Line | undefined) => {
    if (!line) return;
    const { filter, value } = line.choice ?? line.group.main;
    choose(filter, value);
    close();
  };
  const turn = (group: Group, to = !unfolded.includes(group.name)) => {
    const others = unfolded.filter((name) => name !== group.name);
    unfold(to ? [...others, group.name] : others);
    if (!to) mark(group.name);
  };
  const move = (to: number) => {
    const next = Math.max(0, Math.min(lines.length - 1, to));
    mark(lines[next] ? keyOf(lines[next]!) : "");
    list.current?.querySelector(`#choice-${next}`)?.scrollIntoView({ block: "nearest" });
  };
  const onKey = (event: KeyboardEvent) => {
    const input = event.currentTarget as HTMLInputElement;
    const isAtEnd = input.selectionStart === input.value.length;
    if (event.key === "ArrowDown") isOpen ? move(at + 1) : setOpen(true);
    else if (event.key === "ArrowUp") move(at - 1);
    else if (event.key === "ArrowRight" && at >= 0 && isAtEnd) turn(lines[at]!.group, true);
    else if (event.key === "ArrowLeft" && at >= 0 && isAtEnd) turn(lines[at]!.group, false);
    else if (event.key === "Enter") take(lines[Math.max(0, at)]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  };
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
        {lines.length > 0 && (
          <div class="kind" aria-hidden="true">
            <span>Programs, services …</span><span>% of {all}</span>
          </div>
        )}
        {lines.map((line, number) => {
          const { group, choice } = line;
          const isLast = choice && lines[number + 1]?.group !== group;
          return (
            <>
              <Option
                key={keyOf(line)} line={line} at={number === at} number={number}
                isOpen={isUnfolded(group)} share={`${percent((choice ?? group.main).share)} %`}
                take={() => take(line)} turn={() => turn(group)}
              />
              {isLast && (more.get(group.name) ?? 0) > 0 && (
                <div class="kind" aria-hidden="true">
                  {more.get(group.name)!.toLocaleString("en")} more: type a part of the name
                </div>
              )}
            </>
          );
        })}
        {size > groups.length && (
          <div class="kind" aria-hidden="true">
            {(size - groups.length).toLocaleString("en")} more: type a part of the name
          </div>
        )}
        {isOpen && lines.length === 0 && (
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
  const all = useAll();
  const value = from[filter] ?? "";
  const choices = useChoices(filter, true);
  const known = choices.filter((one) =>
    one.value === value || filter === IMAGE && isOfImage({ image: one.key }, value));
  const share = known.reduce((sum, one) => sum + one.share, 0);
  const words = PARTS.find(([name]) => name === filter)?.[1] ?? filter;
  const [one] = known;
  const name = known.length === 1 ? one!.name : value;
  return (
    <button
      type="button" class="chip" title="Show all again" onClick={() => change({ [filter]: "" })}
    >
      Only {known.length === 1 && one!.build ? "build" : words} <strong>{name}</strong>
      {known.length === 1 ? seen(one!) : known.length > 1 ? `, ${known.length} builds` : ""}
      {share > 0 && `, ${percent(share)} % of ${all}`} ✕
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
