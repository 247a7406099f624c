// Commands, processes and threads, by their call stacks; services, containers and labels.
import { useMemo } from "preact/hooks";
import { useEvent } from "../facts";
import { amount, Event, Prof, ProfRow, total } from "../model";
import { Command, matcher, Problems, Search, Segmented, ShareCell, Wait } from "../parts";
import { config, useReport } from "../source";
import { change, useStateOfLink } from "../state";
import { Column, Table } from "../table";

const SUBJECTS: [string, string][] = [
  ["command", "Commands"], ["pid", "Processes"], ["thread", "Threads"],
  ["unit", "Services"], ["label", "Labels"],
];

const NAMES: Record<string, string> = {
  thread: "Thread", unit: "Service", label: "Label",
};

/** Whether rows are parts of the samples, and not threads by their stacks. */
function isScope(of: string): of is "unit" | "label" {
  return of === "unit" || of === "label";
}

function name(row: ProfRow, of: string): string {
  if (isScope(of)) return row[of] ?? `[no ${of}]`;
  return row.thread ?? row.command ?? "[unknown]";
}

/** What a row leads to: its part of the database, which only a server has, or its threads. */
function open(row: ProfRow, of: string) {
  if (!isScope(of)) {
    change({ v: "flame", threads: "1", q: "", focus: name(row, of), zoom: "" });
  } else if (config.live && row[of]) {
    change({ v: "", q: "", of: "", sort: "", [of]: row[of]! });
  }
}

function columns(event: Event, prof: Prof, of: string): Column<ProfRow>[] {
  const share = (row: ProfRow) => row.share[event.name]?.value ?? 0;
  const most = Math.max(...prof.rows.map((row) => row.share[event.name]?.high ?? 0), 0.01);
  const all: Column<ProfRow>[] = [{
    title: "Share %", width: "120px", number: true, key: share,
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
    title: NAMES[of] ?? "Command", width: "minmax(110px, 2fr)", key: (row) => name(row, of),
    cell: (row) => <span class="cut name" title={name(row, of)}>{name(row, of)}</span>,
  });
  if (of === "thread") {
    all.push({
      title: "Command", width: "minmax(90px, 1fr)", spare: 1, key: (row) => row.command ?? "",
      cell: (row) => <span class="cut">{row.command}</span>,
    });
  }
  return all;
}

export function Threads() {
  const from = useStateOfLink();
  const { event } = useEvent();
  const of = SUBJECTS.some(([subject]) => subject === from["of"]) ? from["of"]! : "command";
  const words = event ? ["prof", `--by=${of}`, `--event=${event.name}`] : null;
  const asked = useReport<Prof>(words);
  const filter = from["q"] ?? "";
  const rows = useMemo(() => {
    const is = matcher(filter);
    const all = asked.data?.rows ?? [];
    return is ? all.filter((row) => is(`${name(row, of)} ${row.command} ${row.pid}`)) : all;
  }, [asked.data, filter, of]);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Processes and threads</h2>
      <div class="options">
        <Segmented
          label="Rows" value={of} options={SUBJECTS} onChange={(to) => change({ of: to, sort: "" })}
        />
        <Search label="Filter" value={filter} onChange={(q) => change({ q }, true)} />
      </div>
      <Wait asked={asked} what="processes and threads">
        {(prof) => event && (
          <Table
            label="Processes and threads" rows={rows} columns={columns(event, prof, of)}
            sort={from["sort"] || "Share %"} onSort={(sort) => change({ sort }, true)}
            onOpen={(row) => open(row, of)}
          />
        )}
      </Wait>
      <p class="hint">
        {isScope(of)
          ? "dcpid keeps services and containers apart with --by-unit, and labels of dcpilabel."
            + (config.live ? " A row opens its part of the database." : "")
          : "A row opens the flame graph of its threads. Shares are of call stacks."}
      </p>
      {words && <Command of={words} />}
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
