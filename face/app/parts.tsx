// Small parts that several views have.
import { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { brief, Event, interval, percent, Problem, Prof, Share } from "./model";
import { Shown } from "./only";
import {
  Asked, commandLine, config, IMAGE, PARTS, parts, Reach, takes, useReport,
} from "./source";
import { change, State, useStateOfLink } from "./state";
import { isScript } from "./calls";
import { SharesOf, useWhole } from "./whole";

/** A share as a number, and as a bar with its interval. */
export function ShareCell({ share, most = 1 }: { share: Share | undefined; most?: number }) {
  const of = useWhole();
  if (!share) return <span class="none">–</span>;
  const part = (value: number) => `${Math.min(100, (100 * value) / Math.max(most, 1e-9))}%`;
  const reach = Math.min(most, share.high) - share.low;
  const range = share.high > share.low ? `, ${interval(share)}` : "";
  return (
    <span class="share" title={`${percent(share.value, 2)} % of ${of}${range}`}>
      <span class="share-number">{percent(share.value)}</span>
      <span class="bar" aria-hidden="true">
        <i style={{ width: part(share.value) }} />
        {reach > 0 && <b style={{ left: part(share.low), width: part(reach) }} />}
      </span>
    </span>
  );
}

export function Name({ name, image = "" }: { name: string; image?: string }) {
  const short = brief(name, !isScript(image));
  return <span class="cut name" title={name}>{short}</span>;
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Files have no clipboard in some browsers: a selected text can be copied by hand.
    return false;
  }
}

/**
 * The line that prints what a view shows, to copy. What the view shows and the line does not, it
 * says: filters of the link that its command does not take, and those of the view, `without`.
 * `unmet` are filters that the view itself was not restricted to.
 */
export function Command(
  { of, reach = "page", more = [], unmet = [], without = [] }: {
    of: string[];
    reach?: Reach;
    more?: string[];
    unmet?: string[];
    without?: (string | false | undefined)[];
  },
) {
  const from = useStateOfLink();
  const chosen = reach === "page" ? parts(from) : [];
  const [taken, left] = [chosen.filter((name) => takes(of, name)),
    chosen.filter((name) => !takes(of, name) && !unmet.includes(name))];
  const leaves = [...left.map((name) => `only ${said(name, from)}`), ...without.filter(Boolean)];
  return (
    <>
      <CommandLine line={commandLine(of, reach, taken, more)} />
      {leaves.length > 0 && (
        <p class="hint">The command leaves out: {leaves.join("; ")}.</p>
      )}
    </>
  );
}

/** The filter of a link in words. */
export function said(filter: string, from: State): string {
  const words = PARTS.find(([name]) => name === filter)?.[1] ?? filter;
  return `${words} ${from[filter]}`;
}

/** Why a view does not show what the page is restricted to, and what does. */
export function Unmet({ of, filters }: { of: string[]; filters: string[] }) {
  const from = useStateOfLink();
  const images = useReport<Prof>(["prof", "-i"], "time").data;
  const names = filters.map((name) => said(name, from)).join(", ");
  if (filters.every((name) => takes(of, name))) {
    const page = ["html", "-o", "part.html"];
    return (
      <p class="failed unmet" role="status">
        <strong>This file does not have this of {names} alone.</strong> The command below prints it,
        and <code>{commandLine(page, "page", filters)}</code> makes a page of it.
      </p>
    );
  }
  const command = from["command"] ?? "";
  const program = images?.rows.find((row) => row.image === command);
  return (
    <p class="failed unmet" role="status">
      <strong>This is not known of {names} alone:</strong>{" "}
      {filters.includes(IMAGE)
        ? "it is made from call stacks, which have frames of several images."
        : "it is made from samples, and only call stacks are kept by program, process and thread."}
      {" "}The command below is of all.{" "}
      {program && filters.includes("command") && (
        <button type="button" onClick={() => change({ command: "", [IMAGE]: command })}>
          Only the image {command} instead
        </button>
      )}
    </p>
  );
}

export function CommandLine({ line }: { line: string }) {
  const [says, say] = useState("");
  const copy = async (event: MouseEvent) => {
    const code = (event.currentTarget as HTMLElement).previousElementSibling;
    const done = await copied(line);
    if (!done && code) getSelection()?.selectAllChildren(code);
    say(done ? "copied" : "selected: copy it by keys");
    setTimeout(() => say(""), 2500);
  };
  return (
    <p class="command">
      <span aria-hidden="true" class="prompt">$</span>
      <code class="cut" title={line} tabIndex={0}>{line}</code>
      <button type="button" onClick={copy}>Copy as command</button>
      <span role="status">{says}</span>
    </p>
  );
}

/** What a report says, or that it is awaited, or why there is none. */
export function Wait<T>(
  { asked, what, children }: {
    asked: Asked<T>;
    what: string;
    children: (data: T) => ComponentChildren;
  },
) {
  if (asked.data) {
    return <div class={asked.loading ? "stale" : ""}>{children(asked.data)}</div>;
  }
  if (asked.loading) return <p class="waiting" role="status">Reading {what} …</p>;
  return (
    <p class="failed" role="status">
      <strong>No {what}{config.live ? ":" : "."}</strong>{" "}
      {config.live
        ? asked.error
        : `${asked.error} The database had none when the file was written, or it is not among ` +
          "the hottest, of which the file has listings."}
    </p>
  );
}

/** A report restricted as the page is, or why it cannot be. */
export function Restricted<T>(
  { of, what, children }: {
    of: Shown<T>;
    what: string;
    children: (data: T) => ComponentChildren;
  },
) {
  if (of.unmet.length > 0) return <Unmet of={of.words} filters={of.unmet} />;
  return (
    <>
      <Wait asked={of} what={what}>
        {(data) => <SharesOf isOfAll={of.isOfAll}>{children(data)}</SharesOf>}
      </Wait>
      {of.data && of.note && <p class="hint">{of.note}</p>}
    </>
  );
}

export function Problems({ of }: { of: Problem[] }) {
  if (of.length === 0) return null;
  const serious = of.filter((problem) => problem.serious).length;
  const title = serious > 0 ? `${serious} serious problems, ${of.length} notes` : `Notes`;
  return (
    <details class="notes" open={serious > 0}>
      <summary>{title} ({of.length})</summary>
      <ul>{of.slice(0, 200).map((problem) => <li>{problem.message}</li>)}</ul>
    </details>
  );
}

export function Segmented(
  { label, value, options, onChange }: {
    label: string;
    value: string;
    options: [string, string][];
    onChange: (value: string) => void;
  },
) {
  return (
    <div class="segmented" role="group" aria-label={label}>
      {options.map(([name, title]) => (
        <button type="button" aria-pressed={name === value} onClick={() => onChange(name)}>
          {title}
        </button>
      ))}
    </div>
  );
}

export function Search(
  { value, onChange, label, first = true }: {
    value: string;
    onChange: (value: string) => void;
    label: string;
    first?: boolean;
  },
) {
  return (
    <input
      type="search"
      class="search"
      aria-label={label}
      placeholder={first ? `${label}  ( / )` : label}
      autocomplete="off"
      spellcheck={false}
      value={value}
      onInput={(event) => onChange((event.currentTarget as HTMLInputElement).value)}
      onKeyDown={(event) => {
        if (event.key === "Escape") onChange("");
      }}
    />
  );
}

/** Whether a text in small letters has all words of a filter; an empty filter has none. */
export function matcherOfLower(filter: string): ((lower: string) => boolean) | null {
  const parts = filter.toLowerCase().split(/\s+/).filter(Boolean);
  return parts.length === 0 ? null : (lower) => parts.every((part) => lower.includes(part));
}

/** The same for any text. */
export function matcher(filter: string): ((text: string) => boolean) | null {
  const of = matcherOfLower(filter);
  return of && ((text) => of(text.toLowerCase()));
}

export const WAITS = ["off-cpu", "runnable"];

/** The event that views are of: that of the link, else the first with samples of running code. */
export function mainEvent(events: Event[] | undefined, wanted: string | undefined): Event | null {
  if (!events || events.length === 0) return null;
  return events.find((event) => event.name === wanted)
    ?? events.find((event) => !WAITS.includes(event.name) && event.counted > 0)
    ?? events[0]!;
}
