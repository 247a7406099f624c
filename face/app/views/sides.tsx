// The two sides of a comparison: ready choices of them, what each is in words, and why each takes
// its time where one took more.
import { diffWords, useBuilds } from "../facts";
import {
  Build, Diff, DiffRow, duration, EpochRow, Finding, moment, percent, span, Why, words,
  ZONE,
} from "../model";
import { said, Wait } from "../parts";
import {
  config, IMAGE, iso, isOfThreads, isTimed, ofSet, parts, Range, rangeOf, useReport,
} from "../source";
import { linkTo, State, useStateOfLink } from "../state";
import { Meaning } from "../terms";

/** Procedures that took more time of which causes are shown: `html.rs` has the reports for them. */
const GROWN = 3;
/** Causes of a procedure on one side. */
const CAUSES = 3;

/** Two sets, with the words of the choice. */
interface Ready {
  title: string;
  hint: string;
  a: string;
  b: string;
}

/** Sets of two builds, each in its own time where these do not overlap. */
function ofBuilds([old, young]: [Build, Build]): Ready[] {
  const isApart = old.last <= young.first && young.first < young.last;
  const at = moment(young.first);
  const [until, since] = isApart
    ? [`,until:${iso(old.last)}`, `,since:${iso(young.first)}`] : ["", ""];
  const builds = {
    title: `${old.name}: the build before with the new one`,
    hint: `${old.id} with ${young.id}, of ${at} ${ZONE}: the code of ${old.path} alone`,
    a: `image:${old.id}${until}`, b: `image:${young.id}${since}`,
  };
  if (!isApart || old.first >= old.last) return [builds];
  const time = (one: Build) => `since:${iso(one.first)},until:${iso(one.last)}`;
  return [builds, {
    title: `Everything before and after the new build of ${old.name}`,
    hint: `Before and after ${at} ${ZONE}: all programs, or what the page is restricted to`,
    a: time(old), b: time(young),
  }];
}

/** A range that is drawn in the timeline with as much time before it. */
function ofDrawn({ since, until }: Range): Ready {
  return {
    title: "The time before the drawn range with the range",
    hint: `${span(since, until)} with the ${duration(until - since)} before`,
    a: `since:${iso(2 * since - until)},until:${iso(since)}`,
    b: `since:${iso(since)},until:${iso(until)}`,
  };
}

export function ReadySets() {
  const from = useStateOfLink();
  const builds = useBuilds();
  const range = rangeOf(from);
  const pairs = builds.flatMap((all): [Build, Build][] => {
    const [old, young] = all.slice(-2);
    return old && young ? [[old, young]] : [];
  });
  pairs.sort(([, a], [, b]) => b.first - a.first);
  const all = [...pairs.flatMap(ofBuilds), ...(range ? [ofDrawn(range)] : [])];
  if (all.length === 0) return null;
  return (
    <ul class="ready" aria-label="Ready comparisons">
      {all.slice(0, 8).map(({ title, hint, a, b }) => (
        <li>
          <a
            class="button" title={hint} href={linkTo({ a, b, q: "", sort: "" })}
            aria-current={from["a"] === a && from["b"] === b ? "true" : undefined}
          >
            {title}
          </a>
        </li>
      ))}
    </ul>
  );
}

const TIME = /^(since|until):(.*)$/s;

function inWords(set: string, builds: Build[], epochs: EpochRow[]): string {
  const time: Record<string, string> = {};
  const all = set.replace(/^@/, "").split(",").flatMap((part) => {
    const [, end, at] = part.match(TIME) ?? [];
    if (end) {
      const unix_s = Date.parse(at!) / 1000;
      time[end] = unix_s ? `${moment(unix_s)} ${ZONE}` : at!;
      return [];
    }
    if (part === "latest") return ["the latest epoch"];
    const id = part.match(/^image:(.*)$/s)?.[1];
    const build = builds.find((one) => id?.startsWith(one.id));
    if (id) return [build ? `build ${build.id} of ${build.name}` : `image ${id}`];
    const epoch = epochs.find((one) => one.epoch === part);
    if (epoch) return [`the epoch of ${moment(epoch.started_unix_s)} ${ZONE}`];
    const [, key, value] = part.match(/^([a-z-]+):(.*)$/s) ?? [];
    if (key) return [`${words(key)} ${value}`];
    const back = part.match(/^-(\d+)$/)?.[1];
    return [back ? (back === "1" ? "the epoch before" : `the epoch ${back} before the latest`)
      : `epochs ${part}`];
  });
  const { since, until } = time;
  const stretch = since && until ? `${since} – ${until}` : since ? `from ${since} on`
    : until ? `until ${until}` : "";
  return [...all, stretch].filter(Boolean).join(", ");
}

/** What each side is of, with what the page restricts both to; and what does not restrict them. */
export function Sides({ sets, epochs }: { sets: [string, string]; epochs: EpochRow[] }) {
  const from = useStateOfLink();
  const builds = useBuilds().flat();
  const range = rangeOf(from);
  const isOfRange = range && !isTimed(diffWords(sets));
  const isOfImages = sets.some((set) => set.includes("image:"));
  const both = config.live
    ? parts(from).filter((name) => !isOfThreads(name) && (name !== IMAGE || !isOfImages)) : [];
  const more = both.map((name) => `only ${said(name, from)}`);
  const hasEpochs = sets.some((set) => set.split(",").some((part) => !/^[a-z-]+:/.test(part)));
  for (const name of config.live ? ["host", ...(hasEpochs ? [] : ["epoch"])] : []) {
    if (from[name]) more.push(`${name} ${from[name]}`);
  }
  if (isOfRange && config.live) more.push(span(range.since, range.until));
  return (
    <>
      <dl class="sides">
        {sets.map((set, at) => (
          <>
            <dt>{at === 0 ? "Before" : "After"}</dt>
            <dd>
              {inWords(set, builds, epochs)}
              {more.length > 0 && <strong>; {more.join("; ")}</strong>}
            </dd>
          </>
        ))}
      </dl>
      {range && !isOfRange && (
        <p class="hint">
          The range {span(range.since, range.until)} does not restrict the comparison: its sides
          have times of their own.
        </p>
      )}
    </>
  );
}

/** The report of a side's causes in an image. */
function whyWords(set: string, row: DiffRow): string[] | null {
  const side = ofSet(set);
  return side && ["why", "-n40", side.image || row.image, ...side.options];
}

function Causes({ set, row }: { set: string; row: DiffRow }) {
  const of = whyWords(set, row);
  const asked = useReport<Why>(of);
  if (!of) return <p class="hint">Of another database: its page says why.</p>;
  const isIt = (one: Finding) => one.procedure === row.procedure;
  return (
    <Wait asked={asked} what="explanations">
      {(why) => {
        const found = why.findings.filter(isIt).slice(0, CAUSES);
        if (found.length === 0) return <p class="hint">No cause was found.</p>;
        return (
          <ul class="plain">
            {found.map((one) => (
              <li>
                <strong>{percent(one.share.value)} %</strong> of {row.image}:{" "}
                <Meaning of={words(one.mechanism)} term={one.mechanism} />{" "}
                <Meaning of={one.certainty} chip />
                {one.evidence.slice(0, 2).map(({ text }) => <p class="evidence">{text}</p>)}
              </li>
            ))}
          </ul>
        );
      }}
    </Wait>
  );
}

/** Rows that took more time by more than chance, the most first. */
export function grown(diff: Diff): DiffRow[] {
  return diff.rows.filter((row) => row.significant && row.change > 0)
    .sort((a, b) => b.change - a.change).slice(0, GROWN);
}

/** What the procedures that took more time waited for, before and after. */
export function WhyOfSides({ diff, sets }: { diff: Diff; sets: [string, string] }) {
  const rows = grown(diff).filter((row) => !row.procedure.startsWith("["));
  if (rows.length === 0) return null;
  return (
    <details class="panel" open>
      <summary>Why: the causes of what grew</summary>
      {rows.map((row) => (
        <div class="two">
          {sets.map((set, at) => (
            <div>
              <h3>
                <span class="name">{row.procedure}</span> {at === 0 ? "before" : "after"}
              </h3>
              <Causes key={`${set} ${row.procedure}`} set={set} row={row} />
            </div>
          ))}
        </div>
      ))}
    </details>
  );
}
