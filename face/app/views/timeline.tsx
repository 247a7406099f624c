// Time over time: a range is brushed, and with a server everything follows it.
import { useMemo, useRef, useState } from "preact/hooks";
import { useEvent } from "../facts";
import { amount, moment, Slice, Timeline, TimelineRow } from "../model";
import { Command, Name, Problems, Segmented, ShareCell, Wait } from "../parts";
import { config, useReport } from "../source";
import { change, useStateOfLink } from "../state";
import { Column, Table } from "../table";

/** Layers with a colour of their own. */
const LAYERS = 8;
const HEIGHT = 220;
export const SLICES = "--slices=240";

function quantity(slice: Slice): number {
  return slice.seconds ?? slice.occurrences ?? 0;
}

/** Seconds of the longest slice. */
function longest(timeline: Timeline): number {
  return (timeline.rows[0]?.slices ?? []).reduce((most, one) => Math.max(most, one.covered_s), 0);
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

function layers(timeline: Timeline): { row: TimelineRow | null; rates: number[] }[] {
  const rows = timeline.rows;
  const size = rows[0]?.slices.length ?? 0;
  const most = longest(timeline);
  const rates = (row: TimelineRow) => row.slices.map((slice) => rate(slice, most));
  const top = rows.slice(0, LAYERS).map((row) => ({ row, rates: rates(row) }));
  const others = new Array<number>(size).fill(0);
  for (const row of rows.slice(LAYERS)) {
    rates(row).forEach((one, at) => (others[at]! += one));
  }
  return rows.length > LAYERS ? [...top, { row: null, rates: others }] : top;
}

interface Range {
  since: number;
  until: number;
}

function Chart({ timeline, range, setRange }: {
  timeline: Timeline;
  range: Range | null;
  setRange: (range: Range | null) => void;
}) {
  const svg = useRef<SVGSVGElement>(null);
  const [from, setFrom] = useState<number | null>(null);
  const slices = timeline.rows[0]?.slices ?? [];
  const begin = unix(slices[0]?.start ?? "");
  const end = unix(slices[slices.length - 1]?.end ?? "");
  const stacked = useMemo(() => layers(timeline), [timeline]);
  const sums = slices.map((_, at) => stacked.reduce((sum, layer) => sum + layer.rates[at]!, 0));
  const most = Math.max(...sums, 1e-9);
  const x = (time: number) => (1000 * (time - begin)) / Math.max(end - begin, 1);
  const at = (event: PointerEvent) => {
    const box = svg.current!.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const time = begin + part * (end - begin);
    const slice = slices.find((one) => unix(one.start) <= time && time <= unix(one.end));
    return slice ?? slices[slices.length - 1]!;
  };
  const drag = (event: PointerEvent) => {
    if (from === null || !event.buttons) return;
    const slice = at(event);
    const [since, until] = [Math.min(from, unix(slice.start)), Math.max(from, unix(slice.end))];
    setRange({ since, until });
  };
  const bars = slices.map((slice, number) => {
    let base = HEIGHT;
    const left = x(unix(slice.start));
    const width = Math.max(x(unix(slice.end)) - left - (slices.length > 120 ? 0 : 0.8), 0.5);
    return stacked.map((layer, layerAt) => {
      const height = (layer.rates[number]! / most) * (HEIGHT - 14);
      base -= height;
      const layerClass = layer.row ? `layer-${layerAt}` : "layer-others";
      return height > 0.1 && (
        <rect x={left} y={base} width={width} height={height} class={layerClass} />
      );
    });
  });
  const isTime = slices[0]?.seconds !== undefined;
  const top = isTime ? `${most.toFixed(2)} CPUs` : `${amount(most, "count")}/s`;
  const label = range
    ? `${moment(range.since)} to ${moment(range.until, false)}` : "all of the time";
  return (
    <figure class="chart">
      <svg
        ref={svg}
        viewBox={`0 0 1000 ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`Time by name; chosen: ${label}`}
        onPointerDown={(event) => {
          svg.current!.setPointerCapture(event.pointerId);
          const slice = at(event);
          setFrom(unix(slice.start));
          setRange({ since: unix(slice.start), until: unix(slice.end) });
        }}
        onPointerMove={drag}
        onPointerUp={() => setFrom(null)}
      >
        {bars}
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
      <span class="axis-top">{top}</span>
      <figcaption>
        <span>{moment(begin)}</span>
        <span>{moment((begin + end) / 2, false)}</span>
        <span>{moment(end, false)}</span>
      </figcaption>
    </figure>
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

function within(timeline: Timeline, range: Range | null): Summed[] {
  const is = (slice: Slice) =>
    !range || (unix(slice.start) >= range.since && unix(slice.end) <= range.until);
  const most = longest(timeline);
  const summed = timeline.rows.map((row, at): Summed => {
    const slices = row.slices.filter(is);
    const none: [number, string] = [0, ""];
    const [peak, peakAt] = slices.filter((slice) => !isShort(slice, most))
      .map((slice): [number, string] => [rate(slice, most), slice.start])
      .reduce((best, one) => (one[0] > best[0] ? one : best), none);
    const sum = slices.reduce((all, slice) => all + quantity(slice), 0);
    return { row, at, sum, share: 0, peak, peakAt };
  });
  const all = summed.reduce((sum, one) => sum + one.sum, 0);
  for (const one of summed) one.share = all > 0 ? one.sum / all : 0;
  return summed;
}

function columns(isTime: boolean): Column<Summed>[] {
  const whole = (value: number) => ({ value, low: value, high: value });
  return [{
    title: "Share %", width: "112px", number: true, key: (one) => one.share,
    cell: (one) => <ShareCell share={whole(one.share)} />,
  }, {
    title: isTime ? "Time" : "Count", width: "84px", number: true, key: (one) => one.sum,
    cell: (one) => (isTime ? amount(one.sum * 1e9, "ns") : amount(one.sum, "count")),
  }, {
    title: isTime ? "Peak CPUs" : "Peak/s", width: "92px", number: true, key: (one) => one.peak,
    cell: (one) => one.peak.toFixed(2), spare: 1,
  }, {
    title: "Peak at", width: "88px", key: (one) => one.peakAt,
    cell: (one) => (one.peakAt ? moment(unix(one.peakAt), false) : ""), spare: 1,
  }, {
    title: "Name", width: "minmax(120px, 3fr)", key: (one) => one.row.key,
    cell: (one) => (
      <>
        <i class={`swatch layer-${one.at < LAYERS ? one.at : "others"}`} aria-hidden="true" />
        <Name name={one.row.key} image={one.row.image ?? ""} />
        {one.row.image && <small class="cut">{one.row.image}</small>}
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
  const first = range ? Math.max(0, begins.indexOf(range.since)) : 0;
  const last = range ? Math.max(first, ends.indexOf(range.until)) : slices.length - 1;
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

function iso(unix_s: number): string {
  return new Date(unix_s * 1000).toISOString().replace(/\.\d+Z/, "Z");
}

function Brushed({ timeline }: { timeline: Timeline }) {
  const from = useStateOfLink();
  const range = from["from"] ? { since: Number(from["from"]), until: Number(from["to"]) } : null;
  const setRange = (to: Range | null) =>
    change({ from: to ? String(to.since) : "", to: to ? String(to.until) : "" }, true);
  const slices = timeline.rows[0]?.slices ?? [];
  const rows = useMemo(() => within(timeline, range), [timeline, from["from"], from["to"]]);
  const isTime = slices[0]?.seconds !== undefined;
  const table = useMemo(() => columns(isTime), [isTime]);
  if (slices.length === 0) return <p class="hint">No samples in this time.</p>;
  return (
    <>
      <Chart timeline={timeline} range={range} setRange={setRange} />
      <Ends slices={slices} range={range} setRange={setRange} />
      <p class="options">
        {range && (
          <>
            <span class="hint">
              {moment(range.since)} – {moment(range.until, false)}
            </span>
            {config.live
              ? (
                <button
                  type="button" class="primary"
                  onClick={() =>
                    change({
                      since: iso(range.since), until: iso(range.until), from: "", to: "",
                    })}
                >
                  Show only this time everywhere
                </button>
              )
              : (
                <span class="hint">
                  For a page of this time: <code>dcpi html --since {iso(range.since)} --until
                    {" "}{iso(range.until)} -o part.html</code>
                </span>
              )}
            <button type="button" onClick={() => setRange(null)}>All of the time</button>
          </>
        )}
      </p>
      <Table
        label="Time in the chosen range" rows={rows} columns={table} tall={14}
        sort={from["sort"] || "Share %"} onSort={(sort) => change({ sort }, true)}
      />
      {timeline.omitted > 0 && (
        <p class="hint">{timeline.omitted.toLocaleString("en")} more with less time</p>
      )}
    </>
  );
}

export function TimelineView() {
  const from = useStateOfLink();
  const { event } = useEvent();
  const by = from["of"] || "image";
  const words = event
    ? ["timeline", `--by=${by}`, `--event=${event.name}`, SLICES, "-n40"] : null;
  const asked = useReport<Timeline>(words);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Timeline</h2>
      <div class="options">
        <Segmented
          label="Rows" value={by} onChange={(of) => change({ of, sort: "" })}
          options={[["image", "Images"], ["procedure", "Procedures"], ["command", "Commands"]]}
        />
        <span class="hint">Draw over the chart to choose a range.</span>
      </div>
      <Wait asked={asked} what="timeline">{(timeline) => <Brushed timeline={timeline} />}</Wait>
      {words && <Command of={words} />}
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}

