// Programs, processes and threads, by their call stacks; services, containers and labels.
import { useMemo } from "preact/hooks";
import { choose } from "../chooser";
import { useEvent, useShown } from "../facts";
import { amount, Event, Prof, ProfRow, total } from "../model";
import { subjectsOf } from "../only";
import { Command, matcher, Problems, Restricted, Search, Segmented, ShareCell } from "../parts";
import { IMAGE, isOfThreads, useReport } from "../source";
import { change, useStateOfLink } from "../state";
import { Column, Table } from "../table";

/** What rows are of. Of pods and their namespaces only where there are some. */
const SUBJECTS: [string, string][] = [
  ["command", "Programs"], ["pid", "Processes"], ["thread", "Threads"],
  ["unit", "Services and containers"], ["container", "Containers"], ["pod", "Pods"],
  ["namespace", "Namespaces"], ["label", "Labels"],
];

/** Titles of the columns of names, and the words for samples of none. */
export const NAMES: Record<string, [string, string]> = {
  command: ["Program", "not known"], pid: ["Program", "not known"],
  thread: ["Thread", "not known"],
  unit: ["Service or container", "not in a service or container"],
  container: ["Container", "not in a container"],
  pod: ["Pod", "not in a pod"],
  namespace: ["Namespace", "not in a namespace"],
  label: ["Label", "without label"],
};

/** Whether rows are parts of the samples, and not threads by their stacks. */
function isScope(of: string): of is "unit" | "container" | "pod" | "namespace" | "label" {
  return !isOfThreads(of);
}

/** The value that the page can be restricted to, if the row has one. */
function valueOf(row: ProfRow, of: string): string {
  return String(row[of as keyof ProfRow] ?? "");
}

function name(row: ProfRow, of: string): string {
  const name = of === "pid" ? row.command : valueOf(row, of);
  return name || (of === "thread" && row.command) || `[${NAMES[of]![1]}]`;
}

function columns(ofEvent: string, prof: Prof, of: string): Column<ProfRow>[] {
  const event: Event = prof.events.find((one) => one.name === ofEvent) ?? prof.events[0]!;
  const share = (row: ProfRow) => row.share[event.name]?.value ?? 0;
  const most = Math.max(...prof.rows.map((row) => row.share[event.name]?.high ?? 0), 0.01);
  const all: Column<ProfRow>[] = [{
    title: "Share %", width: "120px", narrow: "74px", number: true, key: share, isShare: true,
    cell: (row) => <ShareCell share={row.share[event.name]} most={most} />,
  }, {
    title: event.unit === "ns" ? "Time" : "Count", width: "84px", number: true, key: share,
    cell: (row) => amount(share(row) * total(event), event.unit),
  }, {
    title: isScope(of) ? "Samples" : "Stacks", width: "80px", number: true, spare: 1,
    key: (row) => row.counts[event.name] ?? 0,
    cell: (row) => (row.counts[event.name] ?? 0).toLocaleString("en"),
  }];
  if (of === "pid" || of === "thread") {
    all.push({
      title: "Process", width: "84px", number: true, key: (row) => row.pid ?? 0,
      cell: (row) => row.pid ?? "",
    });
  }
  all.push({
    title: NAMES[of]![0], width: "minmax(110px, 2fr)", key: (row) => name(row, of),
    cell: (row) => <span class="cut name" title={name(row, of)}>{name(row, of)}</span>,
    under: of === "thread" ? (row) => row.command ?? "" : undefined,
  });
  if (of === "thread") {
    all.push({
      title: "Program", width: "minmax(90px, 1fr)", spare: 1, key: (row) => row.command ?? "",
      cell: (row) => <span class="cut">{row.command}</span>,
    });
  }
  return all;
}

export function Threads() {
  const from = useStateOfLink();
  const { event } = useEvent();
  const hasPods = useReport<Prof>(event && ["prof", "--by=pod", `--event=${event.name}`], "time");
  // Rows of services alone can be restricted to an image.
  const first = from[IMAGE] ? "unit" : "command";
  const of = SUBJECTS.some(([subject]) => subject === from["of"]) ? from["of"]! : first;
  const words = event ? ["prof", `--by=${of}`, `--event=${event.name}`] : null;
  const asked = useShown<Prof>(words, subjectsOf);
  const subjects = SUBJECTS.filter(([subject]) =>
    !["pod", "namespace"].includes(subject) || subject === of
    || hasPods.data?.rows.some(({ pod }) => pod));
  const filter = from["q"] ?? "";
  const rows = useMemo(() => {
    const is = matcher(filter);
    const all = asked.data?.rows ?? [];
    return is
      ? all.filter((row) => is(`${name(row, of)} ${row.command ?? ""} ${row.pid ?? ""}`)) : all;
  }, [asked.data, filter, of]);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Processes, services and containers</h2>
      <div class="options">
        <Segmented
          label="Rows" value={of} options={subjects} onChange={(to) => change({ of: to, sort: "" })}
        />
        <Search label="Filter" value={filter} onChange={(q) => change({ q }, true)} />
      </div>
      <Restricted of={asked} what="rows">
        {(prof) => event && (
          <Table
            label={SUBJECTS.find(([subject]) => subject === of)![1]} rows={rows}
            columns={columns(event.name, prof, of)}
            sort={from["sort"] || "Share %"} onSort={(sort) => change({ sort }, true)}
            onOpen={(row) => valueOf(row, of) && choose(of, valueOf(row, of))}
          />
        )}
      </Restricted>
      <p class="hint">
        {asked.unmet.length === 0 && "A row restricts the page to it. "}
        {isScope(of)
          ? "dcpid keeps services and containers apart with --by-unit, and labels of dcpilabel."
          : "Shares are of call stacks."}
      </p>
      {words && (
        <Command of={words} unmet={asked.unmet} without={[filter && `the filter “${filter}”`]} />
      )}
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
