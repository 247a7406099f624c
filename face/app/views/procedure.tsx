// One procedure: who called it, what it called, and its source beside its instructions.
import { useMemo, useState } from "preact/hooks";
import { arrows } from "../arrows";
import { around, isScript, Neighbour } from "../calls";
import { sets, useDiff, useEvent, useProf, useTree, useWhy } from "../facts";
import {
  brief, briefId, buildsOf, count, imageOf, Instruction, interval, Listing, percent, ProfRow,
  SourceLine, words,
} from "../model";
import { Command, Name, Problems, said, Segmented, ShareCell, Wait } from "../parts";
import { config, IMAGE, isOfThreads, ofSet, unmet, useReport } from "../source";
import { SharesOf, useWholeOf } from "../whole";
import { change, linkTo, useStateOfLink } from "../state";
import { Meaning, meaning } from "../terms";
import { measureOf } from "./compare";

/** Instructions that are elements at once; more are asked for. */
const LISTED = 600;

function Neighbours(
  { title, rows, of, none }: { title: string; rows: Neighbour[]; of: number; none: string },
) {
  return (
    <div class="panel">
      <h3>{title}</h3>
      {rows.length === 0 && <p class="hint">{none}</p>}
      <ul class="hottest">
        {rows.slice(0, 12).map((row) => (
          <li>
            <ShareCell share={{ value: row.share / of, low: 0, high: 0 }} />
            {row.image
              ? (
                <a href={linkTo({ proc: row.name, image: row.image, addr: "" })}>
                  <Name name={row.name} image={row.image} />
                </a>
              )
              : <span class="cut">{row.name === "all" ? "[first of its thread]" : row.name}</span>}
            <small class="cut">{row.image}</small>
          </li>
        ))}
      </ul>
      {rows.length > 12 && <p class="hint">{rows.length - 12} more with less</p>}
    </div>
  );
}

function heat(share: number | undefined, most: number): string {
  const part = Math.sqrt(Math.min(1, (share ?? 0) / Math.max(most, 1e-9)));
  return `color-mix(in srgb, var(--heat) ${Math.round(65 * part)}%, transparent)`;
}

function lineKey(of: { file?: string; line?: number } | undefined): string {
  return of?.line === undefined ? "" : `${of.file}:${of.line}`;
}

interface Pane {
  listing: Listing;
  event: string;
  chosen: string;
  choose: (key: string) => void;
}

function SourcePane({ listing, event, chosen, choose }: Pane) {
  const lines = listing.lines ?? [];
  const most = Math.max(...lines.map((line) => line.share[event]?.value ?? 0), 0);
  let file = "";
  const group = (line: SourceLine) => {
    const name = `${line.function ?? ""} · ${line.file ?? ""}`;
    if (name === file) return null;
    file = name;
    return (
      <li class="file">
        <span class="cut" title={name}>
          {brief(line.function ?? "")}{line.inlined ? " (inlined)" : ""}
          {" · "}{(line.file ?? "").split("/").pop()}
        </span>
      </li>
    );
  };
  return (
    <ol class="code" tabIndex={0} aria-label="Source lines">
      {lines.map((line) => (
        <>
          {group(line)}
          <li
            class={lineKey(line) === chosen && chosen ? "code-line linked" : "code-line"}
            style={{ background: heat(line.share[event]?.value, most) }}
            onMouseEnter={() => choose(lineKey(line))}
          >
            <span class="code-share" title={line.share[event] && interval(line.share[event]!)}>
              {line.counts[event] ? percent(line.share[event]?.value ?? 0) : ""}
            </span>
            <span class="code-at">{line.line ?? ""}</span>
            <code>{line.text ?? ""}</code>
          </li>
        </>
      ))}
    </ol>
  );
}

/** The causes that an instruction may have waited for, the likeliest first, with their letters. */
function causes(instruction: Instruction): [string, string][] {
  const named = new Map((instruction.culprits ?? []).map((one) => [one.cause, one.letter]));
  return [...named].slice(0, 3);
}

/** Whether instructions between two are left out: they are far from samples. */
function isGap(before: Instruction, after: Instruction): boolean {
  return Number(before.address) + before.len !== Number(after.address);
}

/** Parts of the lines of jumps in a cell of 8 by 22: M and L of a path. */
const STROKES: Record<string, string> = {
  "│": "M4 0V22", "─": "M0 11H8", "╭": "M8 11H4V22", "╰": "M8 11H4V0", "├": "M4 0V22M4 11H8",
  "┼": "M4 0V22M0 11H8", "▶": "M0 11H3M3 7L8 11L3 15Z",
};

/** The lines of jumps beside an instruction. */
function Jumps({ line }: { line: string }) {
  const cells = [...line];
  return (
    <svg
      class="code-jumps" aria-hidden="true" width={8 * cells.length}
      viewBox={`0 0 ${8 * cells.length} 22`} preserveAspectRatio="none"
    >
      {cells.map((cell, at) =>
        STROKES[cell] && <path d={STROKES[cell]} transform={`translate(${8 * at} 0)`} />)}
    </svg>
  );
}

function AsmPane({ listing, event, chosen, choose }: Pane) {
  const [limit, setLimit] = useState(LISTED);
  const all = listing.instructions;
  const most = Math.max(...all.map((one) => one.share[event]?.value ?? 0), 0);
  const costs = all.some((one) => one.best_cpi !== undefined);
  const lines = useMemo(() => arrows(all), [all]);
  const hot = (one: Instruction) => (one.share[event]?.value ?? 0) > 0.005;
  const cycles = (one: Instruction) =>
    one.cpi != null ? `${one.cpi.toFixed(1)} cy`
      : one.cpi_most ? `≤ ${one.cpi_most.toFixed(0)} cy` : "";
  const times = (one: Instruction) =>
    one.frequency ? `× ${Number(one.frequency.value.toPrecision(3)).toLocaleString("en")}` : "";
  return (
    <ol
      class={lines[0] ? "code asm jumps" : "code asm"} tabIndex={0} aria-label="Instructions"
    >
      {all.slice(0, limit).map((one, at) => (
        <>
        {at > 0 && isGap(all[at - 1]!, one) && <li class="file">…</li>}
        <li
          class={lineKey(one.source) === chosen && chosen ? "code-line linked" : "code-line"}
          style={{ background: heat(one.share[event]?.value, most) }}
          onMouseEnter={() => choose(lineKey(one.source))}
        >
          <span class="code-share" title={one.share[event] && interval(one.share[event]!)}>
            {one.counts[event] ? percent(one.share[event]?.value ?? 0) : ""}
          </span>
          <span class="code-at">{one.address.replace(/^0x/, "")}</span>
          {lines[at] && <Jumps line={lines[at]!} />}
          <code>{one.text}</code>
          {costs && (
            <>
              <span class="code-cycles" title={`Times for each call, ${one.frequency?.confidence
                ? `confidence ${one.frequency.confidence}` : "not known"}`}
              >
                {times(one)}
              </span>
              <span class="code-cycles" title="Processor cycles of one execution">
                {cycles(one)}
              </span>
            </>
          )}
          {costs && hot(one) && causes(one).length > 0 && (
            <span class="code-cause">
              {causes(one).map(([name, letter], number) => (
                <>{number > 0 && ", "}<Meaning of={name} term={letter} /></>
              ))}
            </span>
          )}
        </li>
        </>
      ))}
      {all.length > limit && (
        <li>
          <button type="button" onClick={() => setLimit(all.length)}>
            {count(all.length - limit)} more instructions
          </button>
        </li>
      )}
    </ol>
  );
}

/** What the columns of a listing and the words in them mean. */
function Legend({ listing, event }: { listing: Listing; event: string }) {
  const costs = listing.instructions.some((one) => one.best_cpi !== undefined);
  const found = new Map(listing.instructions.flatMap(causes));
  return (
    <details class="notes">
      <summary>What the columns{costs ? " and words" : ""} mean</summary>
      <dl>
        <dt>%</dt>
        <dd>share of the procedure’s samples of {event}; the darker, the more</dd>
        <dt>number</dt>
        <dd>line of the source; address of the instruction in its image, in hexadecimal</dd>
        <dt>╭─ ▶</dt>
        <dd>a jump, and where it leads: upwards it closes a loop</dd>
        {costs && (
          <>
            <dt>× 59.3</dt>
            <dd>how often it runs for each call of the procedure, an estimate</dd>
            <dt>4.0 cy</dt>
            <dd>
              processor cycles of one execution, an estimate; ≤ 40 cy: no more than this is known
            </dd>
          </>
        )}
        {[...found].map(([name, letter]) => (
          <>
            <dt>{name}</dt>
            <dd>{meaning(letter)?.replace(`${name}: `, "") ?? ""}</dd>
          </>
        ))}
        {found.size > 0 && (
          <>
            <dt>several</dt>
            <dd>suspects, of which each may have stalled the instruction; none is proven</dd>
          </>
        )}
      </dl>
    </details>
  );
}

function Code({ listing, event }: { listing: Listing; event: string }) {
  const [chosen, choose] = useState("");
  const pane = { listing, event, chosen, choose };
  const has = (listing.lines ?? []).length > 0;
  const hasText = listing.lines?.some((line) => line.text);
  return (
    <>
      <p class="hint">
        {listing.address}–{listing.end}, {count(listing.instructions.length)} instructions,
        {" "}{count(listing.counts[event] ?? 0)} samples of {event}.
        {has && " Lines and their instructions are marked together."}
        {listing.why_not && ` Causes are not known: ${listing.why_not}.`}
      </p>
      <Legend listing={listing} event={event} />
      <div class={!has ? "" : hasText ? "panes" : "panes no-text"}>
        {has && <SourcePane {...pane} />}
        <AsmPane {...pane} />
      </div>
      <Problems of={listing.problems} />
    </>
  );
}

/** A listing of one build, or of one side of a comparison. */
interface Choice {
  title: string;
  /** What a command knows the image by. */
  image: string;
  address: string;
  /** Options that replace the page's. */
  options: string[];
}

function CodeOf({ of: { image, address, options }, procedure }: { of: Choice; procedure: string }) {
  const { event } = useEvent();
  // Causes take the longest: the listing without them is the way out where they are refused.
  const of = ["list", image, address || procedure, ...options];
  const full = [...of, "--why"];
  const asked = useReport<Listing>(full);
  const plain = useReport<Listing>(asked.error ? of : null);
  const shown = asked.error ? plain : asked;
  const left = unmet(of).filter((name) => name !== IMAGE);
  const from = useStateOfLink();
  return (
    <>
      {left.length > 0 && (
        <p class="hint" role="status">
          The listing is of all samples of the procedure, not only of those of
          {" "}{left.map((name) => said(name, from)).join(", ")}
          {left.some((name) => isOfThreads(name))
            ? ": samples of instructions are not kept by program, process and thread."
            : ", which this file has none of; the command below prints it."}
        </p>
      )}
      <Wait asked={shown} what="listing">
        {(listing) => <Code listing={listing} event={event?.name ?? ""} />}
      </Wait>
      <Command of={asked.error ? of : full} unmet={[IMAGE, ...left]} />
    </>
  );
}

/** The sides of a comparison, the new one first. */
function sides(image: string): Record<string, Choice | string> {
  const both = sets();
  if (!both) return {};
  const side = (title: string, set: string): Choice | string => {
    const of = ofSet(set);
    const what = `${title}: ${set}`;
    return of ? { title: what, image: of.image || image, address: "", options: of.options } : what;
  };
  return { after: side("After", both[1]), before: side("Before", both[0]) };
}

/** Which listings there are: of each build that has the procedure, or before and after. */
function Listings({ name, image, rows }: { name: string; image: string; rows: ProfRow[] }) {
  const from = useStateOfLink();
  const compared = from["set"] ? sides(image) : {};
  const builds = Object.fromEntries(rows.map((row): [string, Choice] => [
    `${briefId(row.image_id ?? "")} ${row.address}`,
    {
      title: `Build ${briefId(row.image_id ?? "")}`, image: row.image_id ?? image,
      address: row.address ?? "", options: [],
    },
  ]));
  const isCompared = Object.keys(compared).length > 0;
  const choices: Record<string, Choice | string> = isCompared ? compared : builds;
  const wanted = isCompared ? from["set"]! : `${from["id"]} ${from["addr"]}`;
  const keys = Object.keys(choices);
  const key = keys.includes(wanted) ? wanted : keys[0];
  const shown = key === undefined
    ? { title: "", image, address: from["addr"] ?? "", options: [] } : choices[key]!;
  const choose = (to: string) => {
    const [id = "", addr = ""] = to.split(" ");
    change(isCompared ? { set: to } : { id, addr });
  };
  return (
    <>
      <h3>Source and instructions</h3>
      {keys.length > 1 && (
        <div class="options">
          <Segmented
            label="Build" value={key!} onChange={choose}
            options={keys.map((one) => {
              const choice = choices[one]!;
              return [one, typeof choice === "string" ? choice : choice.title];
            })}
          />
          {!isCompared && <span class="hint">Several builds have a procedure of this name.</span>}
        </div>
      )}
      {typeof shown === "string"
        ? <p class="hint">{shown} is another database: dcpi list --db shows it.</p>
        : <CodeOf key={key} of={shown} procedure={name} />}
    </>
  );
}

/** A procedure on both sides of the comparison. */
function Changed({ name, image }: { name: string; image: string }) {
  const diff = useDiff();
  const row = diff.data?.rows.find((one) => one.procedure === name && one.image === image);
  const [unit, , shown] = diff.data ? measureOf(diff.data) : ["", "", percent];
  const none = { v: "compare", proc: "", image: "", id: "", addr: "", set: "" };
  return (
    <>
      <p><a href={linkTo(none)}>All changes</a></p>
      <h2 id="view-title" class="procedure-title" title={name}>{brief(name, !isScript(image))}</h2>
      <p class="facts">
        <span class="cut">{image}</span>
        {row && (
          <>
            <span>before {shown(row.a)}{unit}</span>
            <span>after {shown(row.b)}{unit}</span>
            <span>{row.significant ? "changed" : "may be chance"}</span>
          </>
        )}
        <a href={linkTo({ set: "" })}>In this page’s selection</a>
      </p>
      <Listings name={name} image={image} rows={[]} />
    </>
  );
}

export function Procedure() {
  const from = useStateOfLink();
  const [name, image] = [from["proc"] ?? "", from["image"] ?? ""];
  return (
    <section aria-labelledby="view-title">
      {from["set"] && sets()
        ? <Changed name={name} image={image} /> : <Taken name={name} image={image} />}
    </section>
  );
}

/** A procedure in the page's selection. */
function Taken({ name, image }: { name: string; image: string }) {
  const from = useStateOfLink();
  const { event } = useEvent();
  const tree = useTree(event?.name);
  const calls = tree.unmet.length > 0 ? null : tree.calls;
  const prof = useProf();
  const why = useWhy();
  const all = prof.unmet.length > 0 ? [] : prof.data?.rows ?? [];
  const rows = all.filter((one) => one.procedure === name && one.image === image);
  const row = rows.find((one) =>
    (!from["id"] || briefId(one.image_id ?? "") === from["id"])
    && (!from["addr"] || one.address === from["addr"])) ?? rows[0];
  const neighbours = useMemo(() => calls && around(calls, name, image), [calls, name, image]);
  const findings = why.unmet.length > 0 ? []
    : why.data?.findings.filter((one) => one.procedure === name && one.image === image);
  const severalBuilds = new Set(findings?.map((one) => one.image_id)).size > 1 || rows.length > 1;
  const own = event && row?.share[event.name];
  const withCalls = event && row?.inclusive?.[event.name];
  const of = rows.length > 1 && row?.image_id ? briefId(row.image_id) : image;
  const whole = useWholeOf(prof.isOfAll);
  const isCode = !isScript(image) && image !== "" && !row?.inlined && !name.startsWith("[");
  const builds = useMemo(
    () => new Set(buildsOf(prof.data?.rows ?? []).map((one) => one.name)), [prof.data],
  );
  return (
    <>
      <p>
        <a href={linkTo({ v: "procedures", proc: "", image: "", id: "", addr: "" })}>
          All procedures
        </a>
      </p>
      <h2 id="view-title" class="procedure-title" title={name}>{brief(name, !isScript(image))}</h2>
      <p class="facts">
        <span class="cut">{row ? imageOf(row, builds) : image}</span>
        {own && <span>own {percent(own.value)} % ({interval(own)}) of {whole}</span>}
        {withCalls && <span>with calls {percent(withCalls.value)} % ({interval(withCalls)})</span>}
        <a href={linkTo({ v: "flame", focus: name, q: "", zoom: "" })}>Its stacks</a>
      </p>
      {findings?.map((one) => (
        <p class={`verdict class-${one.class}`}>
          <strong>{words(one.mechanism)}</strong> <Meaning of={one.certainty} chip />
          {severalBuilds && one.image_id && ` build ${briefId(one.image_id)}:`}
          {" "}{one.evidence[0]?.text}
        </p>
      ))}
      {neighbours && neighbours.share > 0 && event && (
        <>
          <SharesOf name={`the time of ${brief(name)} with calls`}><div class="two">
            <Neighbours
              title="Called by" rows={neighbours.callers} of={neighbours.share}
              none="No caller is known."
            />
            <Neighbours
              title="Calls" rows={neighbours.callees} of={neighbours.share}
              none="It calls nothing that took time."
            />
          </div></SharesOf>
          <p class="hint">
            Shares of its time with calls; itself {percent(neighbours.own / neighbours.share)} %.
            {rows.length > 1 && " All builds of the image together; the command is of one."}
          </p>
          <Command of={["callers", of, name, `--event=${event.name}`]} />
        </>
      )}
      {isCode && <Listings name={name} image={image} rows={rows} />}
      {!isCode && (
        <p class="hint">
          {row?.inlined ? "It is inlined: its instructions are in the procedures above." :
            "It has no instructions of its own to show."}
        </p>
      )}
      {!config.live && isCode && !row && (
        <p class="hint">This file lists the hottest procedures.</p>
      )}
    </>
  );
}
