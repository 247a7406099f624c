// What takes the time and why, beside the calls: the first view.
import { useEvent, useProf, useWhy, WHY } from "../facts";
import { Finding, interval, percent, Prof, words } from "../model";
import { Command, Name, Problems, ShareCell, Wait } from "../parts";
import { CLASSES } from "../colours";
import { linkTo } from "../state";
import { FlameOf } from "./flames";

/** Findings that are shown before the others are asked for. */
const SHOWN = 5;

function subject(finding: Finding): [string, string] {
  const place = finding.source
    ? `${finding.source.file.split("/").pop()}:${finding.source.line}`
    : finding.procedure ? (finding.address ?? "") : "";
  if (finding.procedure) return [finding.procedure, place];
  return [finding.image || "the whole selection", place];
}

function Card({ finding, number }: { finding: Finding; number: number }) {
  const [name, place] = subject(finding);
  const of = { v: "procedure", proc: finding.procedure ?? "", image: finding.image ?? "", addr: "" };
  const gain = finding.gain.high > 0 && finding.mechanism !== "unknown";
  return (
    <li class={`finding class-${finding.class}`}>
      <div class="finding-share">
        <strong>{percent(finding.share.value)} %</strong>
        <small>{interval(finding.share)}</small>
      </div>
      <div class="finding-text">
        <h3>
          {words(finding.mechanism)}
          <span class={`chip certainty-${finding.certainty}`}>{finding.certainty}</span>
          <span class="chip">{CLASSES[finding.class] ?? finding.class}</span>
        </h3>
        <p class="finding-subject">
          {finding.procedure && finding.image
            ? <a href={linkTo(of)}><Name name={name} image={finding.image} /></a>
            : <Name name={name} />}
          {finding.procedure && <small class="cut">{finding.image} {place}</small>}
        </p>
        {finding.evidence.slice(0, 2).map((one) => <p class="evidence">{one.text}</p>)}
        {gain && (
          <p class="gain">
            To gain: <strong>{percent(finding.gain.value)} %</strong> of the time
            {" "}({interval(finding.gain)})
          </p>
        )}
        {(finding.advice.length > 0 || finding.evidence.length > 2) && (
          <details open={number === 0}>
            <summary>What to try</summary>
            <ul>{finding.advice.map((advice) => <li>{advice}</li>)}</ul>
            {finding.evidence.slice(2).map((one) => <p class="evidence">{one.text}</p>)}
            {finding.alternatives.length > 0 && (
              <p class="evidence">
                Or: {finding.alternatives.map((other) =>
                  `${words(other.mechanism)} (${percent(other.probability, 0)} %)`).join(", ")}
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
  return (
    <div class="panel">
      <h3>Most time of their own</h3>
      <ul class="hottest">
        {own.slice(0, 10).map((row) => (
          <li>
            <ShareCell share={row.share[event]} most={most} />
            <a
              href={linkTo({
                v: "procedure", proc: row.procedure ?? "", image: row.image ?? "",
                addr: row.address ?? "",
              })}
            >
              <Name name={row.procedure ?? ""} image={row.image ?? ""} />
            </a>
            <small class="cut">{row.image}</small>
          </li>
        ))}
      </ul>
    </div>
  );
}

export function Overview() {
  const why = useWhy();
  const prof = useProf();
  const { event } = useEvent();
  return (
    <section class="overview" aria-label="Overview">
      <div class="why">
        <h2>Why</h2>
        <Wait asked={why} what="explanations">
          {(data) => (
            <>
              <ol class="findings">
                {data.findings.slice(0, SHOWN).map((finding, number) => (
                  <Card finding={finding} number={number} />
                ))}
              </ol>
              {data.findings.length > SHOWN && (
                <details class="more">
                  <summary>{data.findings.length - SHOWN} more findings</summary>
                  <ol class="findings">
                    {data.findings.slice(SHOWN).map((finding) => (
                      <Card finding={finding} number={1} />
                    ))}
                  </ol>
                </details>
              )}
              <p class="hint">
                Not explained: {percent(data.unexplained.value)} % of the time.
              </p>
            </>
          )}
        </Wait>
        <Command of={WHY} />
      </div>
      <div class="where">
        <h2>Where</h2>
        {event && <FlameOf event={event.name} small />}
        {event && prof.data && <Hottest prof={prof.data} event={event.name} />}
        <Problems of={why.data?.problems ?? []} />
      </div>
    </section>
  );
}
