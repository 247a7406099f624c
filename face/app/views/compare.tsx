// Two selections side by side: what changed, with intervals, and a verdict.
import { useMemo, useState } from "preact/hooks";
import { diffWords, sets, useAbout, useDiff, useImages } from "../facts";
import {
  amount, brief, buildsOf, count, Diff, DiffRow, EpochRow, moment, percent, words, ZONE,
} from "../model";
import { isScript } from "../calls";
import { Command, matcher, Name, Problems, Restricted, Search } from "../parts";
import { config } from "../source";
import { change, useStateOfLink } from "../state";
import { Column, Table } from "../table";
import { ReadySets, Sides, WhyOfSides } from "./sides";

/** A number of a row, in the unit of its column. */
type Shown = (value: number, digits?: number) => string;

/** Of each measure the unit of its columns, what a change is, and how a number is written. */
const MEASURES: Record<string, [string, string, Shown]> = {
  share: [" %", "Percentage points", percent],
  samples: ["", "Samples", (value) => count(value)],
  samples_per_s: ["/s", "Samples a second", (value) => value.toPrecision(3)],
};

/** What the numbers of a side are of, by measure. */
const OF: Record<string, string> = {
  share: "Percent of the samples of that side",
  samples: "Samples of one run or epoch of that side",
  samples_per_s: "In each second of that side: of CPU time, percent of one CPU",
};

function signed(change: number, shown: Shown): string {
  return `${change > 0 ? "+" : change < 0 ? "−" : ""}${shown(Math.abs(change), 2)}`;
}

function Change({ row, most, shown }: { row: DiffRow; most: number; shown: Shown }) {
  const at = (value: number) => `${50 + (50 * Math.max(-most, Math.min(most, value))) / most}%`;
  const width = (from: number, to: number) =>
    `${(50 * Math.abs(Math.min(most, to) - Math.max(-most, from))) / most}%`;
  const side = row.change > 0 ? "more" : "less";
  return (
    <span class={`change ${row.significant ? side : "chance"}`}>
      <span class="share-number">{signed(row.change, shown)}</span>
      <span class="bar both" aria-hidden="true">
        <b style={{ left: at(row.low), width: width(row.low, row.high) }} />
        <u style={{ left: at(row.change) }} />
      </span>
    </span>
  );
}

/** Samples of time in a second are a part of one CPU, whatever their period. */
export function measureOf(diff: Diff): [string, string, Shown] {
  if (diff.measure !== "samples_per_s" || diff.totals.unit !== "ns") {
    return MEASURES[diff.measure] ?? MEASURES["samples"]!;
  }
  const shown: Shown = (value) => ((value * diff.sample) / 1e7).toFixed(2);
  return [" CPU %", "Percent of one CPU", shown];
}

function columns(diff: Diff): Column<DiffRow>[] {
  const all = diff.rows.slice(0, 500);
  const [unit, changes, shown] = measureOf(diff);
  const wide = unit.length > 3 ? "104px" : "84px";
  const most = Math.max(...all.map((row) => Math.max(Math.abs(row.low), Math.abs(row.high))), 1e-4);
  return [{
    title: "Change", hint: `${changes}, with the interval`, width: "150px", narrow: "72px",
    number: true, key: (row) => Math.abs(row.change),
    cell: (row) => <Change row={row} most={most} shown={shown} />,
  }, {
    title: `Before${unit}`, hint: OF[diff.measure], width: wide, number: true, key: (row) => row.a,
    cell: (row) => shown(row.a), spare: 1,
  }, {
    title: `After${unit}`, hint: OF[diff.measure], width: wide, number: true, key: (row) => row.b,
    cell: (row) => shown(row.b), spare: 1,
  }, {
    title: "By %", hint: "Of what it was before", width: "76px", number: true, spare: 2,
    key: (row) => row.relative ?? Infinity,
    cell: (row) => (row.relative === null ? "new" : signed(row.relative, percent)),
  }, {
    title: "Verdict", width: "116px", narrow: "98px", key: (row) => (row.significant ? 1 : 0),
    cell: (row) => (
      <span class={`chip ${row.significant ? (row.change > 0 ? "worse" : "better") : ""}`}>
        {row.significant ? (row.change > 0 ? "more" : "less") : "may be chance"}
      </span>
    ),
  }, {
    title: "Procedure", width: "minmax(110px, 3fr)", key: (row) => row.procedure,
    cell: (row) => <Name name={row.procedure} image={row.image} />,
    under: (row) => row.image,
  }, {
    title: "Image", width: "minmax(80px, 1fr)", key: (row) => row.image, spare: 1,
    cell: (row) => <span class="cut">{row.image}</span>,
  }];
}

const REASONS: Record<string, string> = {
  not_same_work: "both sets ran for times of their own, so only shares compare",
};

/** The row that changed most, in words. */
function most(rows: DiffRow[], diff: Diff): string {
  const [row] = [...rows].sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
  if (!row) return "";
  const [title, , shown] = measureOf(diff);
  const unit = title === "" ? " samples" : title === " CPU %" ? " % of a CPU" : title;
  const times = row.a > 0 && row.b > 0 ? row.b / row.a : 0;
  const by = times >= 1.95 ? ` (${times.toFixed(1)} times as much)`
    : row.relative === null ? "" : ` (${signed(row.relative, percent)} %)`;
  return ` Most: ${brief(row.procedure, !isScript(row.image))} (${row.image}) takes`
    + ` ${row.change > 0 ? "more" : "less"}, ${shown(row.a)}${unit} before and`
    + ` ${shown(row.b)}${unit} after${by}.`;
}

function Verdict({ diff, sets, epochs }: {
  diff: Diff;
  sets: [string, string];
  epochs: EpochRow[];
}) {
  const { totals } = diff;
  const real = diff.rows.filter((row) => row.significant);
  const more = real.filter((row) => row.change > 0).length;
  const isRate = diff.measure === "samples_per_s";
  const total = (of: number) => `${amount(of, totals.unit)}${isRate ? " a second" : ""}`;
  const reason = isRate && totals.why === "not_same_work"
    ? "stretches of time may have had different work" : REASONS[totals.why ?? ""];
  return (
    <div class="panel verdicts">
      <p>
        <strong>
          {real.length === 0
            ? "No procedure changed by more than chance."
            : `${real.length === 1 ? "1 procedure" : `${real.length} procedures`} changed: `
              + `${more} with more time, ${real.length - more} with less.`}
        </strong>
        {most(real, diff)}
      </p>
      <Sides sets={sets} epochs={epochs} />
      <p>
        In all {total(totals.a)} before, {total(totals.b)} after.
        {totals.ratio
          ? ` Ratio ${totals.ratio.value.toFixed(3)} (${totals.ratio.low.toFixed(3)} to ${
            totals.ratio.high.toFixed(3)}): ${words(totals.verdict)}.`
          : ` No verdict on the whole: ${
            reason ?? words(totals.why ?? "not known")}.`}
      </p>
      {diff.rebuilt.length > 0 && (
        <p class="hint">Rebuilt in between: {diff.rebuilt.join(", ")}.</p>
      )}
    </div>
  );
}

function Choose({ epochs: rows }: { epochs: EpochRow[] }) {
  const from = useStateOfLink();
  const [a, setA] = useState(from["a"] || (rows.length > 1 ? "@-1" : ""));
  const [b, setB] = useState(from["b"] || "latest");
  const builds = buildsOf(useImages().data?.rows ?? []);
  const [says, say] = useState("");
  const options = rows.map((row) => {
    const label = row.label ? ` ${row.label}` : "";
    return [row.epoch, `${moment(row.started_unix_s)} ${ZONE}${label} (${row.host})`] as const;
  }).reverse();
  const choice = (name: string, value: string, set: (value: string) => void) => (
    <label>
      {name}
      <input
        list="epochs" value={value} size={30}
        placeholder="since:14:00,until:14:05"
        title="An epoch, a time, label:NAME, container:NAME, image:ID ...: the sets of dcpi diff"
        onInput={(event) => set((event.currentTarget as HTMLInputElement).value)}
      />
    </label>
  );
  return (
    <form
      class="options"
      onSubmit={(event) => {
        event.preventDefault();
        say(a ? ""
          : "Name a set before: an epoch, a time such as since:14:00,until:14:05, a build.");
        change({ a, b });
      }}
    >
      {choice("Before", a, setA)}
      {choice("After", b, setB)}
      <datalist id="epochs">
        <option value="latest">latest</option>
        {options.map(([value, title]) => <option value={value}>{title}</option>)}
        {builds.map((one) => <option value={`image:${one.id}`}>{one.name}</option>)}
      </datalist>
      <button type="submit" class="primary">Compare</button>
      {says && <span role="status" class="hint">{says}</span>}
    </form>
  );
}

export function Compare() {
  const from = useStateOfLink();
  const both = sets();
  const asked = useDiff();
  const epochs = useAbout().epochs?.rows ?? [];
  const filter = from["q"] ?? "";
  const rows = useMemo(() => {
    const is = matcher(filter);
    const all = asked.data?.rows ?? [];
    return is ? all.filter((row) => is(`${row.procedure} ${row.image}`)) : all;
  }, [asked.data, filter]);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Compare</h2>
      {config.live && <ReadySets />}
      {config.live && <Choose key={`${from["a"]} ${from["b"]}`} epochs={epochs} />}
      {!both && !config.live && (
        <p class="hint">
          This file has one selection. <code>dcpi html --diff SET --diff SET -o page.html</code>
          {" "}makes one that compares, and <code>dcpi serve</code> compares any two.
        </p>
      )}
      {both && (
        <Restricted of={asked} what="comparison">
          {(diff) => (
            <>
              <Verdict diff={diff} sets={both} epochs={epochs} />
              <WhyOfSides diff={diff} sets={both} />
              <div class="options">
                <Search label="Filter" value={filter} onChange={(q) => change({ q }, true)} />
                <span class="hint" role="status">
                  {rows.length.toLocaleString("en")} rows; a row opens the procedure, after and
                  before
                </span>
              </div>
              <Table
                label="Changes" rows={rows} columns={columns(diff)} tall={18}
                sort={from["sort"] || "Change"} onSort={(sort) => change({ sort }, true)}
                onOpen={(row) =>
                  change({
                    v: "procedure", proc: row.procedure, image: row.image, id: "", addr: "",
                    set: "after",
                  })}
              />
            </>
          )}
        </Restricted>
      )}
      {both && (
        <Command
          of={diffWords(both)} unmet={asked.unmet} without={[filter && `the filter “${filter}”`]}
        />
      )}
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
