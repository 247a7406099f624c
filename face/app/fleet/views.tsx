// Views of the review but procedures and the map.
import { useState } from "preact/hooks";
import { Column } from "../table";
import { linkTo, useStateOfLink } from "../state";
import {
  BuildRow, change, ChangeRow, counted, day, figure, FindingRow, hundredths, OF_VIEW, page, report,
  ROWS, SeenRow, ServiceRow, signed, TaxRow, thousands,
} from "./data";
import {
  bar, columnsOf, coreHours, costs, Drill, hosts, image, Judged, largest, money, number, owner,
  procedure,
  Rows, service, share, text, Titled, Trend, weekChange,
} from "./parts";
import { Procedures } from "./procedures";

/** Rows of a part that the summary shows. */
const MOST = 8;

const build = (id: string) => id.slice(0, 12);

function Notes({ row }: { row: ChangeRow }) {
  const ofBuilds = row.kind === "build";
  return (
    <div class="panel" aria-label="The chosen change">
      <h3 class="procedure-title">{row.procedure || `${row.image} (whole image)`}</h3>
      <p>
        {signed(row.cores)} cores: {change(row.change.value)} % of the time of {row.service}
        {" "}({change(row.change.low)} to {change(row.change.high)} %), on
        {" "}{counted(row.hosts, "host")}
        ; {figure(row.q)} of such marks are false.
      </p>
      {ofBuilds && <p>Build {build(row.build_old)} to {build(row.build_new)}.</p>}
      {ofBuilds && row.same_day > 0.5 && (
        <p>
          {hundredths(row.same_day)} % of the hosts changed on one day: what else happened on that
          day may be the cause.
        </p>
      )}
      {row.moved_with.length > 0 && <p>Perhaps moved from or to: {row.moved_with.join(", ")}.</p>}
      {row.accepted && <p>Accepted: {row.accepted}</p>}
      <Drill of={row} />
    </div>
  );
}

const CHANGES: Column<ChangeRow>[] = [
  {
    title: "Cores", width: "70px", number: true, key: (row) => row.cores,
    cell: (row) => <Judged value={row.cores} text={signed(row.cores)} />,
  },
  ...money<ChangeRow>(signed),
  number("Change %", (row) => row.change.value, change, { width: "84px" }),
  {
    title: "Interval", width: "140px", number: true, spare: 2,
    cell: (row) => `${change(row.change.low)} to ${change(row.change.high)}`,
  },
  hosts(),
  procedure("(whole image)"),
  image(1),
  service(),
  owner(),
  text(
    "Note", (row) => (row.accepted ? "accepted" : row.moved_with.length ? "moved?" : ""), "70px", 2,
  ),
];

function Changes({ label, rows }: { label: string; rows: ChangeRow[] }) {
  const [chosen, choose] = useState<ChangeRow | null>(null);
  return (
    <>
      <Rows
        label={label}
        rows={rows}
        columns={CHANGES}
        onOpen={choose}
        isChosen={(row) => row === chosen}
      />
      {chosen ? <Notes row={chosen} /> : rows.length > 0 && (
        <p class="hint">
          A click, or Enter, shows a change's builds and the way to its instructions.
        </p>
      )}
    </>
  );
}

function Tax() {
  const columns: Column<TaxRow>[] = [
    text("Kind", (row) => row.kind, "minmax(90px, 1fr)"), ...costs(report.tax),
  ];
  return (
    <Titled
      title="The fleet's tax"
      hint="Work below the services' own code, by the names of procedures: a lower bound."
    >
      <Rows label="The fleet's tax" rows={report.tax} columns={columns} />
    </Titled>
  );
}

function Figures() {
  const { fleet, hosts } = report;
  const tax = report.tax.reduce((sum, row) => sum + row.share, 0);
  const all: [string, string][] = [
    ["core-hours in procedures", figure(fleet.core_hours)],
    [`of ${thousands(fleet.cpus)} CPUs busy in the mean`, figure(fleet.busy_cores)],
  ];
  if (fleet.change !== null) all.push(["from the week before", `${change(fleet.change)} %`]);
  if (report.currency) all.push([`${report.currency} a week`, figure(fleet.money)]);
  all.push([`of ${counted(hosts.expected, "host")} heard`, thousands(hosts.heard)]);
  if (report.tax.length > 0) all.push(["the fleet's tax", `${hundredths(tax)} %`]);
  return (
    <dl class="figures">
      {all.map(([title, value]) => <div><dt>{title}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

export function Summary() {
  const more = (count: number, v: string) => count > MOST && (
    <p class="hint"><a href={linkTo({ ...OF_VIEW, v })}>All {thousands(count)}</a></p>
  );
  return (
    <section aria-label="Summary">
      <Figures />
      <Titled title="Changed between builds, on the same hosts in this week">
        <Changes label="Changes" rows={report.changed.slice(0, MOST)} />
        {more(report.changed.length, "changes")}
      </Titled>
      <div class="two">
        <Titled title="Procedures with the most time">
          <Procedures most={MOST} />
          {more(ROWS.length, "procedures")}
        </Titled>
        <Tax />
      </div>
    </section>
  );
}

const SEEN: Column<SeenRow>[] = [
  coreHours(), ...money<SeenRow>(), hosts(), procedure("(no symbol)"), image(1), service(), owner(),
];

const FINDINGS: Column<FindingRow>[] = [
  text("Id", (row) => row.id, "70px"),
  text("Finding", (row) => row.what, "minmax(120px, 2fr)"),
  procedure("(whole image)"),
  text("Since", (row) => row.week, "90px", 1),
  number("Promised", (row) => row.promised_cores, figure, { width: "84px", spare: 1 }),
  {
    title: "Got", width: "160px", number: true,
    key: (row) => row.got[row.got.length - 1]?.value ?? -Infinity,
    cell: (row) => {
      const last = row.got[row.got.length - 1];
      return last && `${figure(last.value)} (${signed(last.low)} to ${signed(last.high)})`;
    },
  },
  {
    title: "By week", width: "110px", spare: 2,
    cell: (row) => {
      const most = Math.max(row.promised_cores, ...row.got.map((week) => week.value));
      const parts = row.got.map((week) => (most > 0 ? Math.max(0, week.value / most) : 0));
      return parts.length > 0 && <Trend weeks={parts} />;
    },
  },
  text("State", (row) => row.state.replaceAll("-", " "), "100px"),
];

export function ChangesView() {
  const parts: [string, SeenRow[]][] = [
    ["New procedures, which no earlier build had", report.new],
    ["Procedures that went away", report.gone],
    ["Procedures seen seldom", report.seldom],
  ];
  return (
    <section aria-label="Changes">
      <Titled title="Between builds, on the same hosts in this week">
        <Changes label="Changes between builds" rows={report.changed} />
      </Titled>
      <Titled title="From the week before, in services that kept their builds">
        <Changes label="Changes between weeks" rows={report.between_weeks} />
      </Titled>
      <Titled title="Accepted findings">
        <Rows label="Accepted findings" rows={report.findings} columns={FINDINGS} />
      </Titled>
      {parts.map(([title, rows]) => (
        <Titled title={title}><Rows label={title} rows={rows} columns={SEEN} /></Titled>
      ))}
    </section>
  );
}

export function FleetView() {
  const builds = report.skew.flatMap(({ service, image, builds }) =>
    builds.map((of) => ({ ...of, service, image })));
  type Build = BuildRow & { service: string; image: string };
  const ofBuilds: Column<Build>[] = [
    service(), image(),
    {
      title: "Build", width: "110px", key: (row) => row.build,
      cell: (row) => <span class="name" title={row.build}>{build(row.build)}</span>,
    },
    hosts(), share(),
    text("First seen", (row) => day(row.first_s), "96px", 1),
    text("Last seen", (row) => day(row.last_s), "96px", 1),
    text("Not judged", (row) => row.not_judged ?? "", "minmax(70px, 1fr)", 2),
    bar((row) => row.share, 1),
  ];
  const machines = columnsOf(report.machines);
  const most = largest(report.services, (row) => row.core_hours);
  return (
    <section aria-label="Fleet">
      <Titled title="Services">
        <Rows
          label="Services"
          rows={report.services}
          columns={[
            service(), owner(), coreHours(), share(), ...money<(typeof report.services)[0]>(),
            weekChange(), hosts(), bar<ServiceRow>((row) => row.core_hours, most),
          ]}
        />
      </Titled>
      <div class="two">
        <Titled title="Machines">
          <Rows
            label="Machines"
            rows={report.machines}
            columns={[
              machines.text("Type", (row) => row.type), hosts(),
              machines.number("CPUs", (row) => row.cpus, thousands, { width: "72px" }),
              coreHours(),
              machines.number("Busy %", (row) => row.busy, hundredths, { width: "72px" }),
            ]}
          />
        </Titled>
        <Tax />
      </div>
      <Titled title="Several builds at once">
        <Rows label="Several builds at once" rows={builds} columns={ofBuilds} />
      </Titled>
      <Titled title="Images">
        <Rows
          label="Images"
          rows={report.images}
          tall={22}
          columns={[
            image(), service(), owner(), coreHours(), share(),
            ...money<(typeof report.images)[0]>(), hosts(),
          ]}
        />
      </Titled>
    </section>
  );
}

type Fate = ReturnType<typeof fates>[0];

function fates() {
  const { ledger } = report;
  const of = (fate: string, reasons: Record<string, number>) =>
    Object.entries(reasons).sort(([, a], [, b]) => b - a)
      .map(([reason, samples]) => ({ fate, reason, samples }));
  return [
    { fate: "in procedures", reason: "", samples: ledger.facts },
    { fate: "idle", reason: "", samples: ledger.idle },
    ...of("unresolved", ledger.unresolved), ...of("lost", ledger.lost),
  ];
}

export function HostsView() {
  useStateOfLink();
  const { ledger, hosts: heard } = report;
  const [samples, unlike] = [columnsOf(fates()), columnsOf(report.unlike)];
  const [half, clocks] = [columnsOf(heard.half), columnsOf(heard.clocks)];
  const closes = page.difference === "0" ? "All are accounted for."
    : `NOT accounted for: ${page.difference}. This is a mistake of the store's.`;
  return (
    <section aria-label="Hosts">
      <Titled
        title="Samples"
        hint={`${counted(ledger.taken, "sample")} taken on all hosts. ${closes}`}
      >
        <Rows
          label="Samples"
          rows={fates()}
          columns={[
            samples.text("Fate", (row) => row.fate, "110px"),
            samples.text("Reason", (row) => row.reason),
            samples.number("Samples", (row) => row.samples, thousands, { width: "130px" }),
            samples.number(
              "%", (row) => row.samples / (ledger.taken || 1), hundredths, { width: "64px" },
            ),
            bar<Fate>((row) => row.samples, ledger.taken),
          ]}
        />
      </Titled>
      <Titled title="Hosts unlike their fellows">
        <Rows
          label="Hosts unlike their fellows"
          rows={report.unlike}
          columns={[
            unlike.text("Host", (row) => row.host), service(),
            unlike.number("Unlike %", (row) => row.distance, hundredths),
            unlike.number("Expected %", (row) => row.expected, hundredths),
            unlike.text("Most by procedure", (row) => row.procedure, "minmax(120px, 2fr)", 1),
          ]}
        />
      </Titled>
      <div class="two">
        <Titled title="Silent"><p class="panel">{heard.silent.join(", ") || "None."}</p></Titled>
        <Titled title="Heard for less than half of the week">
          <Rows
            label="Heard for less than half of the week"
            rows={heard.half}
            columns={[
              half.text("Host", (row) => row.host),
              half.number("Covered %", (row) => row.covered, hundredths),
            ]}
          />
        </Titled>
        <Titled title="Clocks ahead">
          <Rows
            label="Clocks ahead"
            rows={heard.clocks}
            columns={[
              clocks.text("Host", (row) => row.host),
              clocks.number("Seconds", (row) => row.ahead_s, thousands),
            ]}
          />
        </Titled>
      </div>
    </section>
  );
}
