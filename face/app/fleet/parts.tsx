// Tables of the review, and the columns that several of them have.
import { useState } from "preact/hooks";
import { CommandLine } from "../parts";
import { Column, Table } from "../table";
import {
  change, drill, figure, hundredths, isLink, Place, report, thousands, toProcedures,
} from "./data";

/** A table that sorts by itself, with as many rows in sight as there are, up to `tall`. */
export function Rows<Row>(
  { label, rows, columns, tall = 14, onOpen, isChosen }: {
    label: string;
    rows: Row[];
    columns: Column<Row>[];
    tall?: number;
    onOpen?: (row: Row) => void;
    isChosen?: (row: Row) => boolean;
  },
) {
  const [sort, setSort] = useState("");
  if (rows.length === 0) return <p class="hint">None.</p>;
  return (
    <Table
      label={label}
      rows={rows}
      columns={columns}
      sort={sort}
      onSort={setSort}
      onOpen={onOpen}
      isChosen={isChosen}
      tall={tall}
    />
  );
}

export function Titled(
  { title, hint, children }: {
    title: string;
    hint?: string;
    children: preact.ComponentChildren;
  },
) {
  return (
    <section aria-label={title} class="block">
      <h2>{title}</h2>
      {hint && <p class="hint">{hint}</p>}
      {children}
    </section>
  );
}

/** More cost is worse. Signs say the same, for those who see no colours. */
export function Judged({ value, text }: { value: number | null; text: string }) {
  const is = (value ?? 0) > 0 ? "more" : (value ?? 0) < 0 ? "less" : "";
  return <span class={`judged ${is}`}>{text}</span>;
}

/** A trend as a line: gaps are weeks without samples. */
export function Trend({ weeks, width = 104 }: { weeks: (number | null)[]; width?: number }) {
  const height = 22;
  const x = (at: number) => (3 + (at * (width - 6)) / Math.max(1, weeks.length - 1)).toFixed(1);
  const y = (part: number) => (height - 3 - part * (height - 6)).toFixed(1);
  const line = weeks.map((part, at) => {
    if (part === null) return "";
    const begins = at === 0 || weeks[at - 1] === null;
    // A round end makes a dot of a week that stands alone.
    return `${begins ? "M" : "L"}${x(at)} ${y(part)}${begins ? "h0" : ""}`;
  });
  const last = weeks[weeks.length - 1];
  return (
    <svg class="trend" width={width} height={height} viewBox={`0 0 ${width} ${height}`} aria-hidden>
      <path d={line.join("")} />
      {typeof last === "number" && <circle cx={x(weeks.length - 1)} cy={y(last)} r="2" />}
    </svg>
  );
}

function Bar({ part }: { part: number }) {
  return <span class="bar" aria-hidden="true"><i style={{ width: `${100 * part}%` }} /></span>;
}

/** The way from a row to its instructions. */
export function Drill({ of }: { of: Place }) {
  const line = drill(of);
  if (line === null) {
    return <p class="hint">The name is too long for this page; it is in --format json.</p>;
  }
  if (!isLink) return <CommandLine line={line} />;
  const says = of.procedure ? "Instructions, executions and causes" : "The image's page";
  return <p><a href={line}>{says}</a></p>;
}

function link(name: string, of: Partial<Place>, empty = "") {
  if (!name) return <span class="none">{empty}</span>;
  return <a class="cut name" href={toProcedures(of)} title={name}>{name}</a>;
}

export function number<Row>(
  title: string,
  key: (row: Row) => number | null,
  shown: (value: number) => string,
  more: Partial<Column<Row>> = {},
): Column<Row> {
  const cell = (row: Row) => {
    const value = key(row);
    return value === null ? "" : shown(value);
  };
  const order = (row: Row) => key(row) ?? -Infinity;
  return { title, width: "92px", number: true, key: order, cell, ...more };
}

export function text<Row>(
  title: string,
  key: (row: Row) => string,
  width = "minmax(90px, 1fr)",
  spare: 0 | 1 | 2 = 0,
): Column<Row> {
  const cell = (row: Row) => <span class="cut" title={key(row)}>{key(row)}</span>;
  return { title, width, key, cell, spare };
}

/** Columns of the rows of one table. */
export const columnsOf = <Row,>(_: Row[]) => ({ text: text<Row>, number: number<Row> });

interface OfHosts {
  hosts: number;
}
interface Cost {
  core_hours: number;
  money: number | null;
}

export const hosts = <Row extends OfHosts>(): Column<Row> =>
  number("Hosts", (row) => row.hosts, thousands, { width: "64px", spare: 1 });
export const coreHours = <Row extends { core_hours: number }>(): Column<Row> =>
  number("Core-hours", (row) => row.core_hours, figure);
export const share = <Row extends { share: number }>(): Column<Row> =>
  number("%", (row) => row.share, hundredths, { width: "64px" });
export const money = <Row extends { money: number | null }>(
  shown: (value: number) => string = figure,
): Column<Row>[] =>
  report.currency
    ? [number(report.currency, (row) => row.money, shown, { width: "80px", spare: 1 })] : [];
export const bar = <Row,>(of: (row: Row) => number, most: number): Column<Row> => ({
  title: "Part", width: "minmax(40px, 1fr)", spare: 1,
  cell: (row) => <Bar part={most > 0 ? of(row) / most : 0} />,
});
export const weekChange = <Row extends { change: number | null }>(): Column<Row> => ({
  title: "Week %", width: "80px", number: true, spare: 1, key: (row) => row.change ?? -Infinity,
  cell: (row) => <Judged value={row.change} text={change(row.change)} />,
});

export const service = <Row extends { service: string }>(): Column<Row> => ({
  title: "Service", width: "minmax(90px, 1fr)", key: (row) => row.service,
  cell: (row) => link(row.service, { service: row.service }),
});
export const image = <Row extends { service: string; image: string }>(
  spare: 0 | 1 | 2 = 0,
): Column<Row> => ({
  title: "Image", width: "minmax(90px, 1fr)", key: (row) => row.image, spare,
  cell: (row) => link(row.image, { service: row.service, image: row.image }),
});
export const procedure = <Row extends Place>(empty: string): Column<Row> => ({
  title: "Procedure", width: "minmax(120px, 2.4fr)", key: (row) => row.procedure,
  cell: ({ service, image, procedure }) =>
    link(procedure, { service, image, procedure }, empty),
});
export const owner = <Row extends { owner: string | null }>(): Column<Row> =>
  text("Owner", (row) => row.owner ?? "", "minmax(70px, 0.6fr)", 2);

export function largest<Row>(rows: Row[], of: (row: Row) => number): number {
  return rows.reduce((most, row) => Math.max(most, of(row)), 0);
}

export function costs<Row extends Cost & { share: number }>(rows: Row[]): Column<Row>[] {
  return [
    coreHours(), share(), ...money<Row>(), bar((row) => row.core_hours,
      largest(rows, (row) => row.core_hours)),
  ];
}
