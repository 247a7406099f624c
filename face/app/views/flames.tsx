// The flame graph with what it takes to read it: search, focus, direction, colours.
import { useMemo } from "preact/hooks";
import { bottomUp, Call, focused, foundShare } from "../calls";
import { By, isDark, paint } from "../colours";
import {
  MIN, sets, THREADS_MIN, treeWords, useDiff, useEvent, useImages, useTree, useWhy,
} from "../facts";
import { Flame } from "../flame";
import { percent } from "../model";
import { Command, matcher, Problems, Search, Segmented, Unmet, Wait } from "../parts";
import { change, State, useStateOfLink } from "../state";
import { SharesOf, ThatWhole } from "../whole";

const COLOURS: [string, string][] = [
  ["image", "Image"], ["kind", "Kind"], ["cause", "Cause"], ["change", "Change"],
];

function matches(filter: string | undefined): ((call: Call) => boolean) | null {
  const of = matcher(filter ?? "");
  return of && ((call) => call.depth > 0 && of(`${call.name} ${call.image}`));
}

/** The tree as the link asks for it: inverted, focused. */
function useShaped(calls: Call[] | null, from: State): Call[] | null {
  return useMemo(() => {
    if (!calls) return null;
    const focus = matches(from["focus"]);
    const part = focus ? focused(calls, focus) : calls;
    return from["invert"] ? bottomUp(part) : part;
  }, [calls, from["focus"], from["invert"]]);
}

function zoomedCall(calls: Call[], path: string | undefined): number {
  if (!path) return 0;
  const wanted = Number(path);
  const at = calls.findIndex((call) => call.path === wanted);
  return at < 0 ? 0 : at;
}

export function openProcedure(call: { name: string; image: string; address?: string }) {
  const { name, image } = call;
  change({ v: "procedure", proc: name, image, addr: call.address ?? "" });
}

/** The graph of an event; `small` leaves its options to the view of flame graphs. */
export function FlameOf({ event, small = false }: { event: string; small?: boolean }) {
  const from = useStateOfLink();
  const byThread = !small && Boolean(from["threads"]);
  const shown = useTree(event, byThread);
  const { asked, calls, total } = shown;
  const shaped = useShaped(calls, small ? { focus: from["focus"] ?? "" } : from);
  const images = useImages().data;
  const by = (from["colour"] ?? "image") as By;
  const why = useWhy().data;
  const diff = useDiff().data;
  // Colours are those of the theme, which the link does not hold.
  const theme = isDark();
  const colours = useMemo(
    () => shaped && paint(by, shaped, { images, why, diff } as Parameters<typeof paint>[2]),
    [shaped, by, images, why, diff, theme],
  );
  const found = matches(from["q"]);
  const number = useMemo(
    () => (shaped && found ? foundShare(shaped, found) : null), [shaped, from["q"]],
  );
  if (shown.unmet.length > 0) {
    return <Unmet of={shown.words} filters={shown.unmet} />;
  }
  return (
    <SharesOf event={event} isOfAll>
    <Wait asked={asked} what="call stacks">
      {(tree) => shaped && colours && (
        <>
          {shaped.length === 1 && <p class="hint" role="status">No call stack has this.</p>}
          {number && (
            <p class="hint" role="status">
              {number[0]} calls found, with {percent(number[1])} % of <ThatWhole />
            </p>
          )}
          <Flame
            calls={shaped}
            paint={colours}
            total={total}
            unit={tree.event.unit}
            icicle={!from["up"]}
            matches={found}
            zoomed={zoomedCall(shaped, from["zoom"])}
            onZoom={(at) => change({ zoom: at === 0 ? "" : String(shaped[at]!.path) })}
            onOpen={openProcedure}
            label={`Calls by ${event}`}
            low={small}
          />
          {shown.note && <p class="hint">{shown.note}</p>}
          {!shown.note && tree.omitted.share > 0.005 && (
            <p class="hint">
              Not drawn: {tree.omitted.rows.toLocaleString("en")} calls of less than
              {" "}{byThread ? THREADS_MIN : MIN} each,
              {" "}{percent(tree.omitted.share)} % of <ThatWhole /> together.
              {!small && from["invert"] && " The command counts them in."}
            </p>
          )}
        </>
      )}
    </Wait>
    </SharesOf>
  );
}

function Options({ from }: { from: State }) {
  const turn = (name: string) => change({ [name]: from[name] ? "" : "1", zoom: "" });
  const choice = (name: string, title: string, hint: string) => (
    <label class="choice" title={hint}>
      <input type="checkbox" checked={Boolean(from[name])} onChange={() => turn(name)} />
      {title}
    </label>
  );
  const colours = COLOURS.filter(([name]) => name !== "change" || sets());
  return (
    <div class="options">
      <Search label="Search" value={from["q"] ?? ""} onChange={(q) => change({ q }, true)} />
      <Search
        label="Only stacks through"
        first={false}
        value={from["focus"] ?? ""}
        onChange={(focus) => change({ focus, zoom: "" }, true)}
      />
      {choice("invert", "Invert", "What took the time first, and its callers below")}
      {choice("up", "Grow up", "Callees above their callers")}
      {choice("threads", "By thread", "A tree for each thread")}
      <Segmented
        label="Colour by"
        value={from["colour"] ?? "image"}
        options={colours}
        onChange={(colour) => change({ colour })}
      />
      {from["zoom"] && (
        <button type="button" onClick={() => change({ zoom: "" })}>Show all (Esc)</button>
      )}
    </div>
  );
}

export function FlameView() {
  const from = useStateOfLink();
  const { event } = useEvent();
  const byThread = Boolean(from["threads"]);
  const { asked, unmet } = useTree(event?.name, byThread);
  if (!event) return <p class="waiting">Reading …</p>;
  const words = treeWords(event.name, byThread);
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Flame graph</h2>
      <Options from={from} />
      <FlameOf event={event.name} />
      <p class="hint">
        A box is a call, as wide as its share of all time; below it is what it called. Boxes are
        sorted by time, not by when they ran. Names of inlined functions are slanted. A click zooms,
        a double click opens the procedure.
      </p>
      <Command
        of={from["invert"] ? [...words, "--bottom-up"] : words}
        unmet={unmet}
        without={[
          from["focus"] && `only stacks through “${from["focus"]}”`,
          from["q"] && `the search for “${from["q"]}”`,
          from["zoom"] && "the zoom",
        ]}
      />
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
