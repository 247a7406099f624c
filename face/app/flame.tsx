// The flame graph: a canvas, because thousands of boxes are drawn at each movement.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Call } from "./calls";
import { isDark, Paint } from "./colours";
import { useWhole } from "./whole";
import { amount, interval, percent } from "./model";

/** Height of a box, in pixels. */
const BOX = 20;
const FONT = '12px ui-sans-serif, system-ui, "Segoe UI", sans-serif';
/** Narrower boxes than this, in pixels, are not drawn. */
const NARROW = 0.4;

interface View {
  calls: Call[];
  paint: Paint;
  total: number;
  unit: string;
  /** Whether callees hang below their callers. */
  icicle: boolean;
  matches: ((call: Call) => boolean) | null;
  zoomed: number;
  onZoom: (call: number) => void;
  onOpen: (call: Call) => void;
  label: string;
  /** Whether it scrolls within less than the window, so that what follows it is seen. */
  low?: boolean;
  /** Height of a box, in pixels. */
  row?: number;
}

/** Levels of calls, each from left to right, to find the one under the pointer. */
function levels(calls: Call[]): number[][] {
  const all: number[][] = [];
  for (const [at, one] of calls.entries()) (all[one.depth] ??= []).push(at);
  for (const level of all) level.sort((a, b) => calls[a]!.x - calls[b]!.x);
  return all;
}

export function useWidth(of: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!of.current) return;
    const measure = () => setWidth(of.current?.clientWidth ?? 0);
    const observer = new ResizeObserver(measure);
    observer.observe(of.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return width;
}

function describe(call: Call, total: number, unit: string, whole: string): string {
  const place = call.image ? ` (${call.image})` : "";
  const inlined = call.inlined ? ", inlined" : "";
  const range = call.low < call.high ? ` (${interval({ ...call, value: call.share })})` : "";
  const own = call.own > 0 ? `, ${percent(call.own)} % itself` : "";
  const time = amount(call.share * total, unit);
  // The name comes last: it may be cut.
  const share = `${percent(call.share)} % of ${whole}${range}`;
  return `${time}, ${share}${own} · ${call.name}${place}${inlined}`;
}

/** As much of a name as fits. */
function fitted(context: CanvasRenderingContext2D, text: string, width: number): string {
  const most = Math.floor(width / 5);
  let shown = text.length > most ? text.slice(0, most) : text;
  while (shown && context.measureText(shown + (shown === text ? "" : "…")).width > width) {
    shown = shown.slice(0, -1);
  }
  if (shown === text) return text;
  return shown.length < 2 ? "" : `${shown}…`;
}

interface Drawn extends View {
  width: number;
  height: number;
  depth: number;
  chosen: number;
}

function draw(canvas: HTMLCanvasElement, view: Drawn) {
  const { calls, width, height, zoomed } = view;
  const ROW = view.row ?? BOX;
  const context = canvas.getContext("2d");
  const to = calls[zoomed] ?? calls[0];
  if (!context || !to || width === 0) return;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const style = getComputedStyle(canvas);
  const ink = style.getPropertyValue("--box-ink").trim();
  const mark = style.getPropertyValue("--mark").trim();
  const background = style.getPropertyValue("--panel").trim();
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.textBaseline = "middle";
  const scale = width / Math.max(to.share, 1e-12);
  const dim = isDark() ? "hsl(220 5% 24%)" : "hsl(220 10% 93%)";
  const above = new Set<number>();
  for (let at = zoomed; at !== 0; at = calls[at]!.parent) above.add(calls[at]!.parent);
  const todo = [0];
  while (todo.length > 0) {
    const at = todo.pop()!;
    const one = calls[at]!;
    const isAbove = above.has(at);
    const left = isAbove ? 0 : Math.max(0, (one.x - to.x) * scale);
    const right = isAbove ? width : Math.min(width, (one.x + one.share - to.x) * scale);
    if (right - left < NARROW) continue;
    const y = view.icicle ? one.depth * ROW : height - (one.depth + 1) * ROW;
    const isFound = view.matches ? view.matches(one) : true;
    context.globalAlpha = isAbove ? 0.55 : 1;
    context.fillStyle = isFound ? view.paint.colour(one) : dim;
    context.fillRect(left, y + 0.5, Math.max(right - left - 0.6, 0.5), ROW - 1);
    if (view.matches && isFound && one.depth > 0) {
      context.fillStyle = mark;
      context.fillRect(left, y + ROW - 3, Math.max(right - left - 0.6, 0.5), 2.5);
    }
    if (right - left > 22) {
      context.fillStyle = ink;
      const italic = one.inlined ? "italic " : "";
      context.font = italic + FONT;
      const text = fitted(context, one.short, right - left - 8);
      context.fillText(text, left + 4, y + ROW / 2 + 0.5);
    }
    context.globalAlpha = 1;
    if (at === view.chosen) {
      context.strokeStyle = background;
      context.lineWidth = 4;
      context.strokeRect(left + 1, y + 1.5, Math.max(right - left - 2.6, 1), ROW - 3);
      context.strokeStyle = mark;
      context.lineWidth = 2;
      context.strokeRect(left + 1, y + 1.5, Math.max(right - left - 2.6, 1), ROW - 3);
    }
    for (const child of one.children) {
      const below = calls[child]!;
      const isIn = below.x + below.share > to.x && below.x < to.x + to.share;
      if (isIn || above.has(child)) todo.push(child);
    }
  }
}

/** The call that a key moves to from another. */
function moved(calls: Call[], from: number, key: string, icicle: boolean): number {
  const one = calls[from]!;
  const siblings = from === 0 ? [0] : calls[one.parent]!.children;
  const at = siblings.indexOf(from);
  const [down, up] = icicle ? ["ArrowDown", "ArrowUp"] : ["ArrowUp", "ArrowDown"];
  if (key === down) return one.children[0] ?? from;
  if (key === up) return one.parent;
  if (key === "ArrowRight") return siblings[at + 1] ?? from;
  if (key === "ArrowLeft") return siblings[at - 1] ?? from;
  return from;
}

export function Flame(view: View) {
  const { calls, total, unit, icicle, zoomed } = view;
  const whole = useWhole();
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(frame);
  const [chosen, choose] = useState(-1);
  const [hovered, hover] = useState(-1);
  const rows = useMemo(() => levels(calls), [calls]);
  const ROW = view.row ?? BOX;
  const height = rows.length * ROW;
  useEffect(() => choose(-1), [calls]);
  useLayoutEffect(() => {
    if (canvas.current) {
      draw(canvas.current, { ...view, width, height, depth: rows.length, chosen });
    }
  });
  const to = calls[zoomed] ?? calls[0]!;
  const under = (event: MouseEvent): number => {
    const box = canvas.current!.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / ROW);
    const level = rows[icicle ? row : rows.length - 1 - row] ?? [];
    const first = calls[level[0] ?? 0]!;
    if (first.depth < to.depth) {
      let at = zoomed;
      while (at !== 0 && calls[at]!.depth > first.depth) at = calls[at]!.parent;
      return at;
    }
    const x = to.x + ((event.clientX - box.left) / Math.max(width, 1)) * to.share;
    return level.find((at) => calls[at]!.x <= x && x < calls[at]!.x + calls[at]!.share) ?? -1;
  };
  const onKey = (event: KeyboardEvent) => {
    const from = chosen < 0 ? zoomed : chosen;
    if (event.key.startsWith("Arrow")) choose(moved(calls, from, event.key, icicle));
    else if (event.key === "Enter") view.onZoom(from);
    else if (event.key === "Escape" || event.key === "Home") view.onZoom(0);
    else if (event.key === "o" && calls[from]?.image) view.onOpen(calls[from]!);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const told = hovered >= 0 ? hovered : chosen >= 0 ? chosen : zoomed;
  const one = calls[told] ?? calls[0]!;
  return (
    <div class="flame">
      <ul class="legend" aria-label="Colours">
        {view.paint.legend.map(([name, colour]) => (
          <li>
            {colour && <i style={{ background: colour }} />}
            <span class="cut" title={name}>{name}</span>
          </li>
        ))}
      </ul>
      <p class="told" aria-live="polite">
        <span class="cut" title={one.name}>{describe(one, total, unit, whole)}</span>
      </p>
      <div class={view.low ? "flame-frame low" : "flame-frame"} ref={frame}>
        <canvas
          ref={canvas}
          style={{ width: "100%", height: `${height}px` }}
          tabIndex={0}
          role="application"
          aria-roledescription="flame graph"
          aria-label={`${view.label}. Arrow keys move between calls, Enter zooms, Escape shows all,
            o opens the procedure.`}
          onMouseMove={(event) => hover(under(event))}
          onMouseLeave={() => hover(-1)}
          onClick={(event) => {
            const at = under(event);
            if (at < 0) return;
            choose(at);
            view.onZoom(at === zoomed && at !== 0 ? calls[at]!.parent : at);
          }}
          onDblClick={(event) => {
            const at = under(event);
            if (at > 0 && calls[at]!.image) view.onOpen(calls[at]!);
          }}
          onKeyDown={onKey}
        />
      </div>
    </div>
  );
}
