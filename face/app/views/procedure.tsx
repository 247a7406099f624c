// One procedure: who called it, what it called, and its source beside its instructions.
import { useMemo, useState } from "preact/hooks";
import { around, isScript, Neighbour } from "../calls";
import { useEvent, useProf, useTree, useWhy } from "../facts";
import { brief, count, Instruction, interval, Listing, percent, SourceLine, words } from "../model";
import { Command, Name, Problems, ShareCell, Wait } from "../parts";
import { config, useReport } from "../source";
import { linkTo, useStateOfLink } from "../state";

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

function cause(instruction: Instruction): string {
  const culprits = (instruction.culprits ?? []).map((one) => one.cause);
  return [...new Set(culprits)].slice(0, 3).join(", ");
}

/** Whether instructions between two are left out: they are far from samples. */
function isGap(before: Instruction, after: Instruction): boolean {
  return Number(before.address) + before.len !== Number(after.address);
}

function AsmPane({ listing, event, chosen, choose }: Pane) {
  const [limit, setLimit] = useState(LISTED);
  const all = listing.instructions;
  const most = Math.max(...all.map((one) => one.share[event]?.value ?? 0), 0);
  const costs = all.some((one) => one.best_cpi !== undefined);
  const hot = (one: Instruction) => (one.share[event]?.value ?? 0) > 0.005;
  const cycles = (one: Instruction) =>
    one.cpi != null ? one.cpi.toFixed(1) : one.cpi_most ? `≤ ${one.cpi_most.toFixed(0)}` : "";
  return (
    <ol class="code asm" tabIndex={0} aria-label="Instructions">
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
          <code>{one.text}</code>
          {costs && <span class="code-cycles" title="Cycles of one execution">{cycles(one)}</span>}
          {costs && hot(one) && cause(one) && <span class="code-cause">{cause(one)}</span>}
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
      <div class={!has ? "" : hasText ? "panes" : "panes no-text"}>
        {has && <SourcePane {...pane} />}
        <AsmPane {...pane} />
      </div>
      <Problems of={listing.problems} />
    </>
  );
}

function CodeOf({ image, procedure, address }: {
  image: string;
  procedure: string;
  address: string;
}) {
  const { event } = useEvent();
  // Causes take the longest: the listing without them is the way out where they are refused.
  const of = ["list", image, address || procedure];
  const full = [...of, "--why"];
  const asked = useReport<Listing>(full);
  const plain = useReport<Listing>(asked.error ? of : null);
  const shown = asked.error ? plain : asked;
  return (
    <>
      <h3>Source and instructions</h3>
      <Wait asked={shown} what="listing">
        {(listing) => <Code listing={listing} event={event?.name ?? ""} />}
      </Wait>
      <Command of={asked.error ? of : full} />
    </>
  );
}

export function Procedure() {
  const from = useStateOfLink();
  const { event } = useEvent();
  const { calls } = useTree(event?.name);
  const prof = useProf().data;
  const why = useWhy().data;
  const [name, image] = [from["proc"] ?? "", from["image"] ?? ""];
  const row = prof?.rows.find((one) =>
    one.procedure === name && one.image === image &&
    (!from["addr"] || one.address === from["addr"]));
  const neighbours = useMemo(() => calls && around(calls, name, image), [calls, name, image]);
  const findings = why?.findings.filter((one) => one.procedure === name && one.image === image);
  const own = event && row?.share[event.name];
  const withCalls = event && row?.inclusive?.[event.name];
  const isCode = !isScript(image) && image !== "" && !row?.inlined && !name.startsWith("[");
  return (
    <section aria-labelledby="view-title">
      <p><a href={linkTo({ v: "procedures", proc: "", image: "", addr: "" })}>All procedures</a></p>
      <h2 id="view-title" class="procedure-title" title={name}>{brief(name, !isScript(image))}</h2>
      <p class="facts">
        <span class="cut">{image}</span>
        {own && <span>own {percent(own.value)} % ({interval(own)})</span>}
        {withCalls && <span>with calls {percent(withCalls.value)} % ({interval(withCalls)})</span>}
        <a href={linkTo({ v: "flame", focus: name, q: "", zoom: "" })}>Its stacks</a>
      </p>
      {findings?.map((one) => (
        <p class={`verdict class-${one.class}`}>
          <strong>{words(one.mechanism)}</strong> <span class="chip">{one.certainty}</span>
          {" "}{one.evidence[0]?.text}
        </p>
      ))}
      {neighbours && neighbours.share > 0 && event && (
        <>
          <div class="two">
            <Neighbours
              title="Called by" rows={neighbours.callers} of={neighbours.share}
              none="No caller is known."
            />
            <Neighbours
              title="Calls" rows={neighbours.callees} of={neighbours.share}
              none="It calls nothing that took time."
            />
          </div>
          <p class="hint">
            Shares of its time with calls; itself {percent(neighbours.own / neighbours.share)} %.
          </p>
          <Command of={["callers", image, name, `--event=${event.name}`]} />
        </>
      )}
      {isCode && (
        <CodeOf
          image={row?.image_id ?? image}
          procedure={name}
          address={row?.address ?? from["addr"] ?? ""}
        />
      )}
      {!isCode && (
        <p class="hint">
          {row?.inlined ? "It is inlined: its instructions are in the procedures above." :
            "It has no instructions of its own to show."}
        </p>
      )}
      {!config.live && isCode && !row && <p class="hint">This file lists the hottest procedures.</p>}
    </section>
  );
}
