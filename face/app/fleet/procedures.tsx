// The procedures of all services, and the map of services, images and procedures.
import { useMemo, useState } from "preact/hooks";
import { Call } from "../calls";
import { isDark } from "../colours";
import { Flame } from "../flame";
import { matcherOfLower, Name, Search } from "../parts";
import { change as turn, State, useStateOfLink } from "../state";
import { Column, sorted, Table } from "../table";
import {
  change, counted, figure, hundredths, nameOf, ONLY, OF_VIEW, page, Place, report, ROWS, thousands,
  top, trendOf, weekChange,
} from "./data";
import { Drill, Judged, money, Trend } from "./parts";

const placeOf = (row: number): Place => ({
  service: nameOf("service", row), image: nameOf("image", row),
  procedure: nameOf("procedure", row),
});

function named(title: string, of: "service" | "image", spare: 0 | 1 | 2): Column<number> {
  return {
    title, width: "minmax(80px, 1fr)", spare, key: (row) => nameOf(of, row),
    cell: (row) => <span class="cut" title={nameOf(of, row)}>{nameOf(of, row)}</span>,
  };
}

const COLUMNS: Column<number>[] = [
  {
    title: "Core-hours", width: "92px", number: true, key: (row) => top.core_hours[row] ?? 0,
    cell: (row) => figure(top.core_hours[row] ?? 0),
  },
  {
    title: "%", width: "58px", number: true, spare: 1,
    cell: (row) => hundredths((top.core_hours[row] ?? 0) / report.fleet.core_hours),
  },
  ...money<{ money: number | null }>().map(({ title }): Column<number> => ({
    title, width: "80px", number: true, spare: 2, key: (row) => top.money[row] ?? -Infinity,
    cell: (row) => figure(top.money[row] ?? null),
  })),
  {
    title: `${top.weeks} weeks`, width: "110px", spare: 1,
    cell: (row) => <Trend weeks={trendOf(row)} />,
  },
  {
    title: "Week %", width: "76px", number: true, spare: 2,
    key: (row) => weekChange(row) ?? -Infinity,
    cell: (row) => <Judged value={weekChange(row)} text={change(weekChange(row))} />,
  },
  {
    title: "Hosts", width: "60px", number: true, spare: 2, key: (row) => top.hosts[row] ?? 0,
    cell: (row) => thousands(top.hosts[row] ?? 0),
  },
  {
    title: "Procedure", width: "minmax(120px, 2.6fr)", key: (row) => nameOf("procedure", row),
    cell: (row) => <Name name={nameOf("procedure", row) || "(no symbol)"} />,
  },
  named("Image", "image", 1),
  named("Service", "service", 0),
];

/** Names in small letters, made once: a filter is typed fast. */
let lower: string[] | null = null;
const lowered = (name: number) =>
  (lower ??= page.names.map((of) => of.toLowerCase()))[name] ?? "";

function searched(row: number): string {
  const names = [top.procedure, top.image, top.service, top.owner];
  return names.map((column) => lowered(column[row] ?? -1)).join(" ");
}

function Chosen({ row }: { row: number }) {
  const of = placeOf(row);
  const owner = nameOf("owner", row);
  return (
    <div class="panel" aria-label="The chosen procedure">
      <h3 class="procedure-title">{of.procedure || "(no symbol)"}</h3>
      <p>
        {of.image} of {of.service}{owner && `; ${owner}`}: {figure(top.core_hours[row] ?? 0)}
        {" "}core-hours on {counted(top.hosts[row] ?? 0, "host")}
      </p>
      <Trend weeks={trendOf(row)} width={320} />
      <Drill of={of} />
    </div>
  );
}

/** The table; with `most` only the first rows, as a part of another view. */
export function Procedures({ most }: { most?: number }) {
  const from = useStateOfLink();
  const [chosen, choose] = useState(-1);
  const filter = most ? "" : (from["q"] ?? "");
  const sort = most ? "" : (from["sort"] ?? "");
  const only = most ? [] : ONLY.filter((name) => from[name]);
  const columns = most ? COLUMNS.filter((column) => column.spare !== 2) : COLUMNS;
  const inOrder = useMemo(() => (sort ? sorted(ROWS, COLUMNS, sort) : ROWS), [sort]);
  const rows = useMemo(() => {
    if (most) return ROWS.slice(0, most);
    const is = matcherOfLower(filter);
    return inOrder.filter((row) =>
      only.every((name) => nameOf(name, row) === from[name]) && (!is || is(searched(row))));
  }, [inOrder, filter, only.map((name) => from[name]).join("\0")]);
  const at = most ? chosen : rows.length === 1 ? rows[0]! : chosen;
  return (
    <>
      {!most && (
        <div class="options">
          <Search label="Filter" value={filter} onChange={(q) => turn({ q }, true)} />
          {only.map((name) => (
            <button type="button" class="chip" onClick={() => turn({ [name]: "" })}>
              {name} {from[name]} ✕
            </button>
          ))}
          <span role="status" class="hint">{counted(rows.length, "row")}</span>
        </div>
      )}
      <Table
        label="Procedures"
        rows={rows}
        isSorted
        columns={columns}
        sort={sort || "Core-hours"}
        onSort={most ? undefined : (sort) => turn({ sort }, true)}
        onOpen={choose}
        isChosen={(row) => row === at}
        empty="No name has these words."
      />
      {at >= 0 && <Chosen row={at} />}
    </>
  );
}

export function ProceduresView() {
  return <section aria-label="Procedures"><h2>Procedures</h2><Procedures /></section>;
}

/** Services, images and procedures as calls: each as wide as its core-hours. */
function boxes(): Call[] {
  const all = report.fleet.core_hours || 1;
  const calls: Call[] = [];
  const add = (name: string, parent: number, hours: number, procedure = ""): number => {
    const above = calls[parent];
    const at = calls.length;
    const share = hours / all;
    calls.push({
      name, short: name, image: procedure || name, imageId: "", address: "", inlined: false,
      share, low: share, high: share, own: 0, depth: above ? above.depth + 1 : 0, parent,
      children: [], x: 0, path: at,
    });
    above?.children.push(at);
    return at;
  };
  add("the fleet", 0, all);
  calls[0]!.image = "";
  const services = new Map<string, number>();
  for (const row of report.services) services.set(row.service, add(row.service, 0, row.core_hours));
  const images = new Map<string, number>();
  for (const row of report.images) {
    const of = services.get(row.service);
    if (of === undefined) continue;
    images.set(`${row.service}\n${row.image}`, add(row.image, of, row.core_hours));
  }
  for (const row of ROWS) {
    const of = images.get(`${nameOf("service", row)}\n${nameOf("image", row)}`);
    const name = nameOf("procedure", row) || "(no symbol)";
    if (of !== undefined) add(name, of, top.core_hours[row] ?? 0);
  }
  const place = (at: number, begin: number) => {
    const one = calls[at]!;
    one.x = begin;
    one.children.sort((a, b) => calls[b]!.share - calls[a]!.share);
    for (const child of one.children) {
      place(child, begin);
      begin += calls[child]!.share;
    }
  };
  place(0, 0);
  return calls;
}

/** The golden angle: hues far from each other. */
const HUE_STEP = 137.508;

export function MapView() {
  const from = useStateOfLink();
  const calls = useMemo(boxes, []);
  const of = (call: Call): string[] => {
    const names: string[] = [];
    for (let one = call; one.depth > 0; one = calls[one.parent]!) names.unshift(one.name);
    return names;
  };
  const hues = new Map(calls[0]!.children.map((at, rank) => [at, (205 + rank * HUE_STEP) % 360]));
  const [light, full] = isDark() ? [34, 38] : [80, 55];
  const colour = (call: Call) => {
    let one = call;
    while (one.depth > 1) one = calls[one.parent]!;
    const hue = hues.get(calls.indexOf(one)) ?? 0;
    return one.depth === 0 ? `hsl(220 6% ${light}%)` : `hsl(${hue} ${full}% ${light}%)`;
  };
  const byCall = useMemo(() => new Map(calls.map((call) => [call, colour(call)])), [isDark()]);
  const zoomed = Number(from["zoom"] || 0);
  const legend = calls[0]!.children.slice(0, 8)
    .map((at): [string, string] => [calls[at]!.name, byCall.get(calls[at]!)!]);
  return (
    <section aria-label="Map">
      <h2>Map</h2>
      <Flame
        calls={calls}
        paint={{ colour: (call) => byCall.get(call) ?? "", legend }}
        total={report.fleet.core_hours}
        unit="core-hours"
        icicle
        row={72}
        matches={null}
        zoomed={calls[zoomed] ? zoomed : 0}
        onZoom={(at) => turn({ zoom: at ? String(at) : "" })}
        onOpen={(call) => {
          const [service = "", image = "", procedure = ""] = of(call);
          const named = procedure === "(no symbol)" ? "" : procedure;
          const is: State = { service, image, procedure: named };
          turn({ ...OF_VIEW, ...is, v: "procedures" });
        }}
        label="Services, below them their images and procedures, as wide as their core-hours"
      />
      <p class="hint">
        A click enlarges; a double click, or o, goes to the table of procedures.
      </p>
    </section>
  );
}
