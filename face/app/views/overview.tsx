// What takes the time and why, beside the calls: the first view.
import { useEvent, useImages, useOwn, useWhy, WHY } from "../facts";
import {
  briefId, buildsOf, Finding, imageOf, interval, percent, Prof, ProfRow, words,
} from "../model";
import { imageValue } from "../only";
import { Command, Name, Problems, Restricted, ShareCell } from "../parts";
import { CLASSES } from "../colours";
import { IMAGE, parts } from "../source";
import { linkTo, useStateOfLink } from "../state";
import { Meaning } from "../terms";
import { SharesOf, ThatWhole } from "../whole";
import { FlameOf } from "./flames";

/** Findings that are shown before the others are asked for. */
const SHOWN = 5;

/** Names of images of which several builds have findings. */
function named(findings: Finding[]): Set<string> {
  return new Set(buildsOf(findings).map((one) => one.name));
}

function subject(finding: Finding): [string, string] {
  const place = finding.source
    ? `${finding.source.file.split("/").pop()}:${finding.source.line}`
    : finding.procedure ? (finding.address ?? "") : "";
  if (finding.procedure) return [finding.procedure, place];
  return [finding.image || "the whole selection", place];
}

/** What could be gained. Where nothing limits it, a number would be a guess. */
function Gain({ of: { gain, share } }: { of: Finding }) {
  // Nothing is known of it.
  if (gain.low < 0.0005 && gain.high >= 0.99 * share.value) return null;
  return (
    <p class="gain">
      To gain: <strong>{percent(gain.value)} %</strong> of <ThatWhole /> ({interval(gain)})
    </p>
  );
}

function Card(
  { finding, number, builds }: { finding: Finding; number: number; builds: Set<string> },
) {
  const [name, place] = subject(finding);
  const [proc, image] = [finding.procedure ?? "", finding.image ?? ""];
  const of = { v: "procedure", proc, image, id: "", addr: "" };
  const gain = finding.gain.high > 0 && finding.mechanism !== "unknown";
  return (
    <li class={`finding class-${finding.class}`}>
      <div class="finding-share">
        <strong>{percent(finding.share.value)} %</strong>
        <small>{interval(finding.share)}</small>
        <small>of <ThatWhole /></small>
      </div>
      <div class="finding-text">
        <h3>
          <Meaning of={words(finding.mechanism)} term={finding.mechanism} />
          <Meaning of={finding.certainty} chip />
          <span class="chip">{CLASSES[finding.class] ?? finding.class}</span>
        </h3>
        <p class="finding-subject">
          {finding.procedure && finding.image
            ? <a href={linkTo(of)}><Name name={name} image={finding.image} /></a>
            : <Name name={name} />}
          {finding.procedure && (
            <small class="cut">{imageOf(finding, builds)} {place}</small>
          )}
        </p>
        {finding.evidence.slice(0, 2).map((one) => <p class="evidence">{one.text}</p>)}
        {gain && <Gain of={finding} />}
        {(finding.advice.length > 0 || finding.evidence.length > 2) && (
          <details open={number === 0}>
            <summary>What to try</summary>
            <ul>{finding.advice.map((advice) => <li>{advice}</li>)}</ul>
            {finding.evidence.slice(2).map((one) => <p class="evidence">{one.text}</p>)}
            {finding.alternatives.length > 0 && (
              <p class="evidence">
                Other explanations: {finding.alternatives.map((other) =>
                  `${words(other.mechanism)} (probability ${percent(other.probability, 0)} %)`)
                  .join(", ")}
              </p>
            )}
          </details>
        )}
      </div>
    </li>
  );
}

/** Procedures with the most time of their own, for pages without call stacks and narrow ones. */
function Hottest({ prof, event }: { prof: Prof; event: string }) {
  const own = [...prof.rows].sort(
    (a, b) => (b.share[event]?.value ?? 0) - (a.share[event]?.value ?? 0),
  );
  const most = own[0]?.share[event]?.high ?? 1;
  const builds = new Set(buildsOf(prof.rows).map((one) => one.name));
  return (
    <div class="panel">
      <h3>Most time of their own, % of <ThatWhole /></h3>
      <ul class="hottest">
        {own.slice(0, 10).map((row) => (
          <li>
            <ShareCell share={row.share[event]} most={most} />
            <a
              href={linkTo({
                v: "procedure", proc: row.procedure ?? "", image: row.image ?? "",
                id: briefId(row.image_id ?? ""), addr: row.address ?? "",
              })}
            >
              <Name name={row.procedure ?? ""} image={row.image ?? ""} />
            </a>
            <small class="cut">{imageOf(row, builds)}</small>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Images with the most time: the first that a server knows, before the procedures have names. */
function HottestImages({ prof, event }: { prof: Prof; event: string }) {
  const builds = new Set(buildsOf(prof.rows).map((one) => one.name));
  const share = (row: ProfRow) => row.share[event]?.value ?? 0;
  const most = Math.max(...prof.rows.map((row) => row.share[event]?.high ?? 0));
  const value = (row: ProfRow) =>
    imageValue(row.image ?? "", row.image_id ?? "", builds.has(row.image ?? ""));
  return (
    <div class="panel">
      <h3>Most time by image, % of <ThatWhole /></h3>
      <ul class="hottest">
        {[...prof.rows].sort((a, b) => share(b) - share(a)).slice(0, 10).map((row) => (
          <li>
            <ShareCell share={row.share[event]} most={most} />
            {row.kind === "unresolved" ? <span class="cut">{row.image}</span> : (
              <a href={linkTo({ [IMAGE]: value(row) })} title="Only this image">
                <span class="cut name">{imageOf(row, builds)}</span>
              </a>
            )}
          </li>
        ))}
      </ul>
    </div>
  );
}

export function Overview() {
  const why = useWhy();
  const own = useOwn();
  const { event } = useEvent();
  const images = useImages().data;
  const from = useStateOfLink();
  return (
    <section class="overview" aria-label="Overview">
      <div class="why">
        <h2>Why</h2>
        <Restricted of={why} what="explanations">
          {(data) => (
            <>
              <ol class="findings">
                {data.findings.slice(0, SHOWN).map((finding, number) => (
                  <Card finding={finding} number={number} builds={named(data.findings)} />
                ))}
              </ol>
              {data.findings.length > SHOWN && (
                <details class="more">
                  <summary>{data.findings.length - SHOWN} more findings</summary>
                  <ol class="findings">
                    {data.findings.slice(SHOWN).map((finding) => (
                      <Card finding={finding} number={1} builds={named(data.findings)} />
                    ))}
                  </ol>
                </details>
              )}
              {why.note ? data.findings.length === 0 && <p>Nothing is found there.</p> : (
                <p class="hint">
                  Not explained: {percent(data.unexplained.value)} % of <ThatWhole />.
                </p>
              )}
            </>
          )}
        </Restricted>
        <Command of={WHY} unmet={why.unmet} />
      </div>
      <div class="where">
        <h2>Where</h2>
        {event && <FlameOf event={event.name} small />}
        {event && (
          <div class="two">
            <div>
              <Restricted of={own} what="procedures">
                {(data) => <Hottest prof={data} event={event.name} />}
              </Restricted>
            </div>
            {images && !images.rows[0]?.procedure && parts(from).length === 0 && (
              <SharesOf><HottestImages prof={images} event={event.name} /></SharesOf>
            )}
          </div>
        )}
        <Problems of={why.data?.problems ?? []} />
      </div>
    </section>
  );
}
