// A table of any number of rows, of which only those in sight are elements.
import { ComponentChildren } from "preact";
import { useWhole } from "./whole";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

/** Height of a row, and of one whose cells have second lines, in pixels. */
const LINE = 30;
const TWO_LINES = 46;
/** Height of titles of which one says what its shares are of. */
const TITLES = 56;
/** Rows kept as elements beyond both edges, so that scrolling shows no gap. */
const SPARE = 8;

export interface Column<Row> {
  title: string;
  hint?: string;
  /** Whether it has shares: its title says of what. */
  isShare?: boolean;
  /** Width as in `grid-template-columns`; of a share in a narrow table without its bar. */
  width: string;
  narrow?: string;
  /** What the column sorts by; none: it does not sort. */
  key?: (row: Row) => number | string;
  cell: (row: Row) => ComponentChildren;
  number?: boolean;
  /** A second line of the cell where columns are left out for want of room. */
  under?: (row: Row) => string;
  /** 0: always there; 1: from 700 pixels on; 2: from 1100 on. */
  spare?: 0 | 1 | 2;
}

interface Props<Row> {
  label: string;
  rows: Row[];
  /** Whether the rows are in order: many are sorted once for all filters, by `sorted`. */
  isSorted?: boolean;
  columns: Column<Row>[];
  /** Title of the column to sort by, with a minus before it from small to large. */
  sort?: string;
  onSort?: (sort: string) => void;
  onOpen?: (row: Row) => void;
  /** Whether a row is the chosen one. */
  isChosen?: (row: Row) => boolean;
  empty?: string;
  /** Most rows in sight at once. */
  tall?: number;
}

export function sorted<Row>(rows: Row[], columns: Column<Row>[], sort: string): Row[] {
  const column = columns.find((one) => one.title === sort.replace(/^-/, ""));
  const key = column?.key;
  if (!key) return rows;
  const sign = sort.startsWith("-") ? 1 : -1;
  const keyed = rows.map((row): [number | string, Row] => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (typeof a === "string" || typeof b === "string") {
      return -sign * (String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
    }
    return sign * (a - b);
  });
  return keyed.map(([, row]) => row);
}

/** The size of the window, 0 to 2: how many columns there is room for. */
function room(width: number): number {
  return width < 640 ? 0 : width < 1000 ? 1 : 2;
}

export function Table<Row>(props: Props<Row>) {
  const { rows, sort = "" } = props;
  const frame = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [width, setWidth] = useState(1200);
  const [at, setAt] = useState(-1);
  useLayoutEffect(() => {
    const measure = () => setWidth(frame.current?.clientWidth ?? 1200);
    const observer = new ResizeObserver(measure);
    if (frame.current) observer.observe(frame.current);
    measure();
    return () => observer.disconnect();
  }, []);
  const columns = props.columns.filter((column) => (column.spare ?? 0) <= room(width));
  const isUnder = room(width) === 0 && columns.some((column) => column.under);
  const ROW = isUnder ? TWO_LINES : LINE;
  const whole = useWhole();
  const HEAD = columns.some((column) => column.isShare) ? TITLES : LINE;
  const hinted = ({ hint, isShare }: Column<Row>) =>
    [hint, isShare && `% of ${whole}`].filter(Boolean).join("; ") || undefined;
  const shown = useMemo(
    () => (props.isSorted ? rows : sorted(rows, props.columns, sort)), [rows, sort],
  );
  useEffect(() => {
    setAt(-1);
    if (frame.current) frame.current.scrollTop = 0;
  }, [shown]);
  const tall = Math.min(shown.length, props.tall ?? 22);
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  const last = Math.min(shown.length, Math.ceil(top / ROW) + tall + SPARE);
  const isNarrow = room(width) === 0;
  const template = columns.map((column) => (isNarrow && column.narrow) || column.width).join(" ");
  const move = (to: number) => {
    const next = Math.max(0, Math.min(shown.length - 1, to));
    setAt(next);
    const element = frame.current!;
    if (next * ROW < element.scrollTop) element.scrollTop = next * ROW;
    const below = (next + 1) * ROW + HEAD - element.clientHeight;
    if (below > element.scrollTop) element.scrollTop = below;
  };
  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + tall, PageUp: at - tall, Home: 0,
      End: shown.length - 1,
    };
    if (event.key === "Enter" && shown[at] && props.onOpen) props.onOpen(shown[at]!);
    else if (event.key in steps && event.target === frame.current) move(steps[event.key]!);
    else return;
    event.preventDefault();
  };
  const turn = (title: string) => props.onSort?.(sort === title ? `-${title}` : title);
  return (
    <div
      class={isNarrow ? "table narrow" : "table"}
      role="table"
      aria-label={props.label}
      aria-rowcount={shown.length + 1}
      tabIndex={0}
      ref={frame}
      onScroll={() => setTop(frame.current?.scrollTop ?? 0)}
      onKeyDown={onKey}
      style={{ maxHeight: `${tall * ROW + HEAD + 2}px` }}
    >
      <div
        role="rowgroup" class="titles"
        style={{ gridTemplateColumns: template, height: `${HEAD}px` }}
      >
        <div role="row" class="contents">
          {columns.map((column) => {
            const is = column.title !== "" && sort.replace(/^-/, "") === column.title;
            const order = !is ? "none" : sort.startsWith("-") ? "ascending" : "descending";
            return (
              <div role="columnheader" class={column.number ? "number" : ""} aria-sort={order}>
                {column.key && props.onSort ? (
                  <button type="button" title={hinted(column)} onClick={() => turn(column.title)}>
                    {column.title}
                    {is ? (sort.startsWith("-") ? " ▴" : " ▾") : ""}
                  </button>
                ) : (
                  <span title={hinted(column)}>{column.title}</span>
                )}
                {column.isShare && <small title={`% of ${whole}`}>of {whole}</small>}
              </div>
            );
          })}
        </div>
      </div>
      {shown.length === 0 && <p class="empty">{props.empty ?? "No rows."}</p>}
      <div role="rowgroup" class="rows" style={{ height: `${shown.length * ROW}px` }}>
        {shown.slice(first, last).map((row, offset) => {
          const number = first + offset;
          const isChosen = number === at || props.isChosen?.(row);
          return (
            <div
              role="row"
              aria-rowindex={number + 2}
              key={number}
              class={`row${isChosen ? " chosen" : ""}${props.onOpen ? " opens" : ""}`}
              style={{
                gridTemplateColumns: template, top: `${number * ROW}px`, height: `${ROW}px`,
              }}
              onClick={() => props.onOpen?.(row)}
            >
              {columns.map((column) => (
                <div role="cell" class={column.number ? "number" : ""}>
                  {isUnder && column.under
                    ? (
                      <span class="lines">
                        <span class="line">{column.cell(row)}</span>
                        <small class="cut">{column.under(row)}</small>
                      </span>
                    )
                    : column.cell(row)}
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}
