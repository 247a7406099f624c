// Procedures, or images, with their own time and that of all that they called.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { choose } from "../chooser";
import { IMAGES, useEvent, useImages, useProf, useShown } from "../facts";
import { amount, briefId, buildsOf, Event, imageOf, Prof, ProfRow, total } from "../model";
import { imageValue, profOf } from "../only";
import {
  Command, matcherOfLower, Name, Problems, Restricted, Search, Segmented, ShareCell,
} from "../parts";
import { IMAGE } from "../source";
import { change, useStateOfLink } from "../state";
import { Column, sorted, Table } from "../table";

function value(row: ProfRow, event: string, inclusive: boolean): number {
  return (inclusive ? row.inclusive : row.share)?.[event]?.value ?? 0;
}

function columns(
  prof: Prof, name: string, byImage: boolean, builds: Set<string>,
): Column<ProfRow>[] {
  const event = prof.events.find((one) => one.name === name) ?? prof.events[0]!;
  const withCalls = prof.rows.some((row) => row.inclusive?.[name]);
  const most = Math.max(...prof.rows.slice(0, 2000).map((row) => row.share[name]?.high ?? 0), 0.01);
  const all: Column<ProfRow>[] = [{
    title: "Own %", hint: "Time of the code itself", width: "112px", narrow: "74px", number: true,
    key: (row) => value(row, name, false), isShare: true,
    cell: (row) => <ShareCell share={row.share[name]} most={most} />,
  }];
  if (withCalls) {
    all.push({
      title: "With calls %", hint: "Time with all that it called", width: "120px",
      narrow: "86px", number: true, isShare: true,
      key: (row) => value(row, name, true),
      cell: (row) => <ShareCell share={row.inclusive?.[name]} />,
    });
  }
  all.push({
    title: event.unit === "ns" ? "Own time" : "Own", width: "84px", number: true, spare: 1,
    key: (row) => value(row, name, false),
    cell: (row) => amount(value(row, name, false) * total(event), event.unit),
  }, {
    title: "Samples", width: "84px", number: true, spare: 2,
    key: (row) => row.counts[name] ?? 0,
    cell: (row) => row.counts[name]?.toLocaleString("en") ?? "–",
  });
  if (!byImage) {
    all.push({
      title: "Procedure", width: "minmax(120px, 3fr)", key: (row) => row.procedure ?? "",
      cell: (row) => (
        <>
          <Name name={row.procedure ?? ""} image={row.image ?? ""} />
          {row.inlined && <span class="chip">inlined</span>}
        </>
      ),
      under: (row) => imageOf(row, builds),
    });
  }
  all.push({
    title: "Image", width: "minmax(90px, 1.4fr)", key: (row) => row.image ?? "",
    spare: byImage ? 0 : 1,
    cell: (row) => <span class="cut" title={row.path ?? row.image}>{imageOf(row, builds)}</span>,
  });
  if (byImage) {
    all.push({
      title: "Kind", width: "100px", key: (row) => row.kind ?? "", cell: (row) => row.kind,
      spare: 1,
    });
  }
  return all;
}

function searched(row: ProfRow): string {
  return `${row.procedure ?? ""} ${row.image ?? ""} ${briefId(row.image_id ?? "")}`.toLowerCase();
}

export function Procedures() {
  const from = useStateOfLink();
  const procedures = useProf();
  const images = useShown<Prof>(IMAGES, profOf);
  const { event } = useEvent();
  const all = useImages().data;
  const builds = useMemo(() => new Set(buildsOf(all?.rows ?? []).map((one) => one.name)), [all]);
  // Call stacks of some threads have no images of their own.
  const canBeImages = !all?.rows[0]?.procedure;
  const byImage = canBeImages && from["by"] === "image";
  const asked = byImage ? images : procedures;
  const filter = from["q"] ?? "";
  const table = useMemo(
    () => (asked.data && event ? columns(asked.data, event.name, byImage, builds) : []),
    [asked.data, event?.name, byImage, builds],
  );
  const sort = from["sort"] || "Own %";
  const inOrder = useMemo(() => sorted(asked.data?.rows ?? [], table, sort), [table, sort]);
  // What filters look into is made ahead: the rows are many, and a filter is typed fast.
  const texts = useRef<{ of: ProfRow[]; lower: string[] }>({ of: [], lower: [] });
  useEffect(() => {
    const ahead = setTimeout(() => {
      texts.current = { of: inOrder, lower: inOrder.map(searched) };
    }, 50);
    return () => clearTimeout(ahead);
  }, [inOrder]);
  const rows = useMemo(() => {
    const is = matcherOfLower(filter);
    if (!is) return inOrder;
    const { of, lower } = texts.current;
    if (of !== inOrder) return inOrder.filter((row) => is(searched(row)));
    return inOrder.filter((_, at) => is(lower[at]!));
  }, [inOrder, filter]);
  const open = (row: ProfRow) => {
    const id = briefId(row.image_id ?? "");
    if (!byImage) {
      change({
        v: "procedure", proc: row.procedure ?? "", image: row.image ?? "", id,
        addr: row.address ?? "",
      });
    } else if (row.image) {
      change({ by: "", sort: "", q: "" }, true);
      choose(IMAGE, imageValue(row.image, id, builds.has(row.image)));
    }
  };
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">{byImage ? "Images" : "Procedures"}</h2>
      <div class="options">
        <Search label="Filter" value={filter} onChange={(q) => change({ q }, true)} />
        {canBeImages && (
          <Segmented
            label="Rows"
            value={byImage ? "image" : ""}
            options={[["", "Procedures"], ["image", "Images"]]}
            onChange={(by) => change({ by, sort: "" })}
          />
        )}
        <span role="status" class="hint">{rows.length.toLocaleString("en")} rows</span>
      </div>
      <Restricted of={asked} what={byImage ? "images" : "procedures"}>
        {(prof) => (
          <>
            <Table
              label={byImage ? "Images" : "Procedures"}
              rows={rows}
              isSorted
              columns={table}
              sort={sort}
              onSort={(sort) => change({ sort }, true)}
              onOpen={open}
              empty="No name has these words."
            />
            {prof.omitted.rows > 0 && (
              <p class="hint">{prof.omitted.rows.toLocaleString("en")} more rows are not here.</p>
            )}
          </>
        )}
      </Restricted>
      <Command
        of={asked.words} unmet={asked.unmet} without={[filter && `the filter “${filter}”`]}
      />
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
