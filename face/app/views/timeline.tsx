// Time over time: a range is brushed, and with a server everything follows it.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { choose } from "../chooser";
import { useEvent, useShown } from "../facts";
import { useWidth } from "../flame";
import {
  amount, briefId, buildsOf, imageOf, moment, percent, Slice, span, Timeline, TimelineRow, ZONE,
} from "../model";
import { commandOf, imageValue, timelineOf } from "../only";
import { Command, Name, Problems, Restricted, Segmented, ShareCell } from "../parts";
import {
  config, IMAGE, isOfThreads, ofRange, parts, Range, rangeOf, rangeOptions,
} from "../source";
import { change, useStateOfLink } from "../state";
import { Column, Table } from "../table";
import { NAMES } from "./threads";

/** Layers with a colour of their own. */
const LAYERS = 8;
const HEIGHT = 220;
export const SLICES = "--slices=240";

function quantity(slice: Slice): number {
  return slice.seconds ?? slice.occurrences ?? 0;
}

/** Seconds of the longest slice. */
function longest(timeline: Timeline): number {
  return timeline.whole.reduce((most, one) => Math.max(most, one.covered_s), 0);
}

/** Whether a slice is much shorter than the longest one. */
function isShort(slice: Slice, longest_s: number): boolean {
  return slice.covered_s < longest_s / 2;
}

/** Amount in a second. Ends are whole seconds, so that a short slice may be a second longer. */
function rate(slice: Slice, longest_s: number): number {
  const spare = isShort(slice, longest_s) ? 1 : 0;
  return slice.covered_s > 0 ? quantity(slice) / (slice.covered_s + spare) : 0;
}

function unix(text: string): number {
  return Date.parse(text) / 1000;
}

/** A layer of the chart: a row, or all other rows together, those that were left out among them. */
interface Layer {
  name: string;
  swatch: string;
  rates: number[];
}

function layers(timeline: Timeline): Layer[] {
  const most = longest(timeline);
  const builds = new Set(buildsOf(timeline.rows).map((one) => one.name));
  const top = timeline.rows.slice(0, LAYERS).map((row, at): Layer => ({
    name: row.key === row.image ? imageOf(row, builds)
      : builds.has(row.image ?? "") ? `${row.key} · ${imageOf(row, builds)}` : row.key,
    swatch: `layer-${at}`, rates: row.slices.map((slice) => rate(slice, most)),
  }));
  const rest = timeline.rows.length - top.length + timeline.omitted;
  if (rest <= 0) return top;
  const sum = (rows: TimelineRow[], at: number) =>
    rows.reduce((all, row) => all + rate(row.slices[at]!, most), 0);
  const rates = timeline.whole.map((slice, at) => timeline.omitted > 0
    ? Math.max(0, rate(slice, most) - sum(timeline.rows.slice(0, LAYERS), at))
    : sum(timeline.rows.slice(LAYERS), at));
  const name = `all others (${rest.toLocaleString("en")})`;
  return [...top, { name, swatch: "layer-others", rates }];
}

/** Steps of the axis of time, in seconds. */
const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  604800,
];
/** Room that a label of the axis of time takes, in pixels. */
const LABEL = 76;

/** Moments with labels: as many as have room, at full minutes, hours and days. */
function ticks(begin: number, end: number, width: number): [number, string][] {
  const fit = Math.max(1, Math.floor(width / LABEL));
  const step = STEPS.find((one) => (end - begin) / one <= fit)
    ?? Math.ceil((end - begin) / fit / 604800) * 604800;
  const all: [number, string][] = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
    const [day, month] = moment(at).split(" ");
    const time = moment(at, false);
    const isDay = time === "00:00:00";
    all.push([at, isDay ? `${day} ${month}` : step < 60 ? time : time.slice(0, 5)]);
  }
  return all;
}

/** A round number not far below the largest one, for the lines of the axis of amounts. */
function roundStep(most: number): number {
  const size = 10 ** Math.floor(Math.log10(most / 2));
  return [5, 2, 1].map((one) => one * size).find((one) => one <= most / 2) ?? size;
}

interface Pointed {
  slice: number;
  layer: Layer | null;
  x: number;
}

function Chart({ timeline, range, setRange }: {
  timeline: Timeline;
  range: Range | null;
  setRange: (range: Range | null, isDone?: boolean) => void;
}) {
  const svg = useRef<SVGSVGElement>(null);
  const frame = useRef<HTMLElement>(null);
  const width = useWidth(frame);
  const [from, setFrom] = useState<number | null>(null);
  const [pointed, point] = useState<Pointed | null>(null);
  const slices = timeline.whole;
  const begin = unix(slices[0]?.start ?? "");
  const end = unix(slices[slices.length - 1]?.end ?? "");
  const stacked = useMemo(() => layers(timeline), [timeline]);
  const sums = slices.map((_, at) => stacked.reduce((sum, layer) => sum + layer.rates[at]!, 0));
  const most = Math.max(...sums, 1e-9);
  const scale = (HEIGHT - 14) / most;
  const x = (time: number) => (1000 * (time - begin)) / Math.max(end - begin, 1);
  const sliceAt = (event: PointerEvent) => {
    const box = svg.current!.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const time = begin + part * (end - begin);
    const found = slices.findIndex((one) => unix(one.start) <= time && time <= unix(one.end));
    return found < 0 ? slices.length - 1 : found;
  };
  const look = (event: PointerEvent) => {
    const box = svg.current!.getBoundingClientRect();
    const slice = sliceAt(event);
    let left = (HEIGHT - ((event.clientY - box.top) / box.height) * HEIGHT) / scale;
    const layer = stacked.find((one) => (left -= one.rates[slice]!) < 0) ?? null;
    point({ slice, layer, x: event.clientX - box.left });
  };
  const drag = (event: PointerEvent) => {
    look(event);
    if (from === null || !event.buttons) return;
    const slice = slices[sliceAt(event)]!;
    const [since, until] = [Math.min(from, unix(slice.start)), Math.max(from, unix(slice.end))];
    setRange({ since, until });
  };
  const bars = slices.map((slice, number) => {
    let base = HEIGHT;
    const left = x(unix(slice.start));
    const wide = Math.max(x(unix(slice.end)) - left - (slices.length > 120 ? 0 : 0.8), 0.5);
    return stacked.map((layer) => {
      const height = layer.rates[number]! * scale;
      base -= height;
      return height > 0.1 && (
        <rect x={left} y={base} width={wide} height={height} class={layer.swatch} />
      );
    });
  });
  const isTime = slices[0]?.seconds !== undefined;
  const written = (value: number) =>
    isTime ? `${value.toFixed(2)} CPUs` : `${amount(value, "count")}/s`;
  const step = roundStep(most);
  const lines = Array.from({ length: Math.floor(most / step) }, (_, at) => (at + 1) * step);
  const axis = (value: number) =>
    isTime ? `${+value.toPrecision(3)} CPU${value === 1 ? "" : "s"}`
      : `${amount(value, "count")}/s`;
  const label = range ? span(range.since, range.until) : "all of the time";
  return (
    <>
    <ul class="legend" aria-label="Colours">
      {stacked.map((layer) => (
        <li>
          <i class={layer.swatch} />
          <span class="cut" title={layer.name}>{named(layer.name)}</span>
        </li>
      ))}
    </ul>
    <figure class="chart" ref={frame}>
      <svg
        ref={svg}
        viewBox={`0 0 1000 ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Time by name; chosen: ${label}`}
        onPointerDown={(event) => {
          svg.current!.setPointerCapture(event.pointerId);
          const slice = slices[sliceAt(event)]!;
          setFrom(unix(slice.start));
          setRange({ since: unix(slice.start), until: unix(slice.end) });
        }}
        onPointerMove={drag}
        onPointerUp={() => {
          setFrom(null);
          setRange(range, true);
        }}
        onPointerLeave={() => point(null)}
      >
        {bars}
        {lines.map((value) => (
          <line
            class="grid" x1={0} x2={1000} y1={HEIGHT - value * scale} y2={HEIGHT - value * scale}
          />
        ))}
        {range && (
          <>
            <rect class="outside" x={0} y={0} width={x(range.since)} height={HEIGHT} />
            <rect
              class="outside" x={x(range.until)} y={0}
              width={Math.max(0, 1000 - x(range.until))} height={HEIGHT}
            />
          </>
        )}
      </svg>
      {lines.map((value) => (
        <span class="axis-line" style={{ top: `${HEIGHT - value * scale}px` }}>{axis(value)}</span>
      ))}
      {pointed && (
        <Values
          pointed={pointed} slice={slices[pointed.slice]!} sum={sums[pointed.slice]!}
          written={written} width={width}
        />
      )}
      <figcaption>
        {ticks(begin, end, width).map(([time, text]) => (
          <span style={{ left: `${x(time) / 10}%` }}>{text}</span>
        ))}
      </figcaption>
      <p class="hint axis-zone">{span(begin, end)}</p>
    </figure>
    </>
  );
}

/** What the pointer is at: time, name, CPUs used and their share of all that were used then. */
function Values({ pointed, slice, sum, written, width }: {
  pointed: Pointed;
  slice: Slice;
  sum: number;
  written: (value: number) => string;
  width: number;
}) {
  const { layer, x } = pointed;
  const value = layer?.rates[pointed.slice] ?? 0;
  return (
    <div
      class="values panel"
      style={x < width / 2 ? { left: `${x + 14}px` } : { right: `${width - x + 14}px` }}
    >
      <small>{span(unix(slice.start), unix(slice.end))}</small>
      {layer && (
        <div>
          <i class={`swatch ${layer.swatch}`} /> <strong>{named(layer.name)}</strong>{" "}
          {written(value)}, {percent(value / Math.max(sum, 1e-12))} % of all then
        </div>
      )}
      <div>all: {written(sum)}</div>
    </div>
  );
}

interface Summed {
  row: TimelineRow;
  at: number;
  sum: number;
  share: number;
  peak: number;
  peakAt: string;
}

/** The rows within a range, and all others together. Shares are of all time there. */
function within(timeline: Timeline, range: Range | null): Summed[] {
  // Slices of a database that grows are others than those that the range was drawn over.
  const middle = (slice: Slice) => (unix(slice.start) + unix(slice.end)) / 2;
  const is = (slice: Slice) =>
    !range || (middle(slice) >= range.since && middle(slice) <= range.until);
  const most = longest(timeline);
  const all = timeline.whole.filter(is).reduce((sum, slice) => sum + quantity(slice), 0);
  const summed = timeline.rows.map((row, at): Summed => {
    const slices = row.slices.filter(is);
    const none: [number, string] = [0, ""];
    const [peak, peakAt] = slices.filter((slice) => !isShort(slice, most))
      .map((slice): [number, string] => [rate(slice, most), slice.start])
      .reduce((best, one) => (one[0] > best[0] ? one : best), none);
    const sum = slices.reduce((total, slice) => total + quantity(slice), 0);
    return { row, at, sum, share: sum / Math.max(all, 1e-12), peak, peakAt };
  });
  return summed.filter((one) => one.sum > 0);
}

/** Rows of samples of no service, as reports call them, in the words of the page. */
function named(key: string): string {
  const none = key.match(/^\[no (unit|container|pod|namespace|label)\]$/)?.[1];
  return none ? `[${NAMES[none]![1]}]` : key;
}

function columns(isTime: boolean, builds: Set<string>): Column<Summed>[] {
  const whole = (value: number) => ({ value, low: value, high: value });
  const layer = (at: number) => (at < LAYERS ? `layer-${at}` : "layer-others");
  return [{
    title: "Share %", hint: "In the chosen range", width: "112px", narrow: "74px",
    number: true, isShare: true,
    key: (one) => one.share, cell: (one) => <ShareCell share={whole(one.share)} />,
  }, {
    title: isTime ? "Time" : "Count", width: "84px", number: true, key: (one) => one.sum,
    cell: (one) => (isTime ? amount(one.sum * 1e9, "ns") : amount(one.sum, "count")),
  }, {
    title: isTime ? "Peak CPUs" : "Peak/s", hint: "CPUs used in the slice with the most",
    width: "92px", number: true, key: (one) => one.peak, cell: (one) => one.peak.toFixed(2),
    spare: 1,
  }, {
    title: `Peak at, ${ZONE}`, width: "110px", key: (one) => one.peakAt,
    cell: (one) => (one.peakAt ? moment(unix(one.peakAt), false) : ""), spare: 1,
  }, {
    title: "Name", width: "minmax(120px, 3fr)", key: (one) => one.row.key,
    cell: (one) => (
      <>
        <i
          class={`swatch ${layer(one.at)}`} aria-hidden="true"
          title={one.at < LAYERS ? undefined : "In the chart among all others"}
        />
        {one.row.key === one.row.image
          ? <span class="cut name" title={one.row.key}>{imageOf(one.row, builds)}</span>
          : <Name name={named(one.row.key)} image={one.row.image ?? ""} />}
        {one.row.image && one.row.key !== one.row.image
          && <small class="cut">{imageOf(one.row, builds)}</small>}
      </>
    ),
  }];
}

/** Two sliders do what the pointer does, for keys. */
function Ends({ slices, range, setRange }: {
  slices: Slice[];
  range: Range | null;
  setRange: (range: Range | null) => void;
}) {
  const begins = slices.map((slice) => unix(slice.start));
  const ends = slices.map((slice) => unix(slice.end));
  const at = (is: (slice: Slice) => boolean) => Math.max(0, slices.findIndex(is));
  const first = range ? at((slice) => unix(slice.end) > range.since) : 0;
  const last = range && range.until <= ends[ends.length - 1]!
    ? Math.max(first, at((slice) => unix(slice.end) >= range.until)) : slices.length - 1;
  const set = (from: number, to: number) =>
    setRange({ since: begins[Math.min(from, to)]!, until: ends[Math.max(from, to)]! });
  const slider = (name: string, value: number, onInput: (value: number) => void) => (
    <label>
      {name}
      <input
        type="range" min={0} max={slices.length - 1} value={value}
        onInput={(event) => onInput(Number((event.currentTarget as HTMLInputElement).value))}
      />
    </label>
  );
  return (
    <div class="ends">
      {slider("From", first, (value) => set(value, last))}
      {slider("To", last, (value) => set(first, value))}
    </div>
  );
}

/** Pause after which a range holds for the page, in milliseconds: sliders move in steps. */
const DRAWN_MS = 350;

/**
 * The range of the link while another is drawn: the page follows when it is done. A server would
 * be asked for every step.
 */
function useRange(): [Range | null, (range: Range | null, isDone?: boolean) => void] {
  const from = useStateOfLink();
  const [drawn, draw] = useState<Range | null>(null);
  const waits = useRef<ReturnType<typeof setTimeout>>();
  useEffect(() => () => clearTimeout(waits.current), []);
  const set = (range: Range | null, isDone = false) => {
    clearTimeout(waits.current);
    const settle = () => {
      change({ ...ofRange(range), ...(range ? {} : { zoom: "" }) });
      draw(null);
    };
    draw(range);
    if (isDone || !range) settle();
    else waits.current = setTimeout(settle, DRAWN_MS);
  };
  return [drawn ?? rangeOf(from), set];
}

function Brushed({ timeline }: { timeline: Timeline }) {
  const from = useStateOfLink();
  const [range, setRange] = useRange();
  const slices = timeline.whole;
  const rows = useMemo(() => within(timeline, range), [timeline, range?.since, range?.until]);
  const isTime = slices[0]?.seconds !== undefined;
  const omitted = Math.max(0, 1 - rows.reduce((sum, one) => sum + one.share, 0));
  const table = useMemo(() => {
    const builds = buildsOf(timeline.rows).map((one) => one.name);
    return columns(isTime, new Set(builds));
  }, [isTime, timeline]);
  if (timeline.rows.length === 0) return <p class="hint">No samples in this time.</p>;
  return (
    <>
      <Chart timeline={timeline} range={range} setRange={setRange} />
      <Ends slices={slices} range={range} setRange={setRange} />
      <p class="options">
        {range && (
          <>
            <span class="hint">
              {span(range.since, range.until)}
              {config.live ? ": all views are of this time." : ": the table below is of this time."}
            </span>
            <button type="button" onClick={() => setRange(null)}>All of the time</button>
            {config.live && (
              <button type="button" onClick={() => change({ zoom: from["zoom"] ? "" : "range" })}>
                {from["zoom"] ? "Chart of all of the time" : "Chart of this time alone"}
              </button>
            )}
          </>
        )}
      </p>
      <Table
        label="Time in the chosen range" rows={rows} columns={table} tall={14}
        onOpen={({ row }) => open(row, timeline)}
        sort={from["sort"] || "Share %"} onSort={(sort) => change({ sort }, true)}
      />
      {timeline.omitted > 0 && (
        <p class="hint">
          {timeline.omitted.toLocaleString("en")} more with less time, {percent(omitted)} %
          together: they are in the chart, among all others.
        </p>
      )}
    </>
  );
}

/** What a row leads to: a procedure has a view, all else restricts the page to it. */
function open(row: TimelineRow, { by, rows }: Timeline) {
  const name = row.image ?? "";
  const id = buildsOf(rows).some((one) => one.name === name) ? briefId(row.image_id ?? "") : "";
  const value = by === "command" ? commandOf(row)
    : by === "image" ? imageValue(row.key, id, id !== "") : row.key;
  if (by === "procedure") {
    change({ v: "procedure", proc: row.key, image: name, id, addr: "" });
  } else if (by === "command" && row.pid) choose("pid", String(row.pid));
  else if (by === "image" && !row.key.startsWith("[unresolved")) choose(IMAGE, value);
  else if (by !== "image" && !value.startsWith("[")) choose(by, value);
}

export function TimelineView() {
  const from = useStateOfLink();
  const { event } = useEvent();
  // Rows of processes alone can be restricted to a program.
  const by = from["of"] || (parts(from).some(isOfThreads) ? "command" : "image");
  const words = event
    ? ["timeline", `--by=${by}`, `--event=${event.name}`, SLICES, "-n40"] : null;
  const range = rangeOptions(rangeOf(from));
  const reach = config.live && from["zoom"] ? "page" : "extent";
  const asked = useShown<Timeline>(words, timelineOf, undefined, reach);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Timeline</h2>
      <div class="options">
        <Segmented
          label="Rows" value={by} onChange={(of) => change({ of, sort: "" })}
          options={[
            ["image", "Images"], ["procedure", "Procedures"], ["command", "Processes"],
            ["unit", "Services and containers"],
          ]}
        />
        <span class="hint">
          A click on a bar chooses its time, drawing over the chart a range
          {config.live ? ", which then holds for all views" : ""}. A click on a row
          {by === "procedure" ? " opens the procedure." : " restricts the page to it."}
        </span>
      </div>
      <Restricted of={asked} what="timeline">
        {(timeline) => <Brushed timeline={timeline} />}
      </Restricted>
      {words && (
        <Command
          of={words} more={range} unmet={asked.unmet}
          without={[
            range.length > 0 && reach === "extent" && (asked.data?.omitted ?? 0) > 0
              && "that rows are those with the most time in all, not in the range",
          ]}
        />
      )}
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
