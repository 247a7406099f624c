// What threads waited for: their stacks of the time that they did not run.
import { useMemo } from "preact/hooks";
import { Call } from "../calls";
import { treeWords, useTree } from "../facts";
import { amount, words } from "../model";
import { Command, Name, Problems, Segmented, ShareCell } from "../parts";
import { change, linkTo, useStateOfLink } from "../state";
import { SharesOf, ThatWhole } from "../whole";
import { FlameOf } from "./flames";

interface Sum {
  name: string;
  image: string;
  share: number;
}

function add(to: Map<string, Sum>, name: string, image: string, share: number) {
  const key = `${name}\0${image}`;
  const known = to.get(key) ?? { name, image, share: 0 };
  known.share += share;
  to.set(key, known);
}

/** Time by reason, and by the procedure outside the kernel that waited. */
function sums(calls: Call[]): { reasons: Sum[]; waiters: Sum[] } {
  const reasons = new Map<string, Sum>();
  const waiters = new Map<string, Sum>();
  for (const [at, one] of calls.entries()) {
    if (at === 0 || one.own <= 0) continue;
    add(reasons, one.image ? "not known" : words(one.name.replace(/^\[|\]$/g, "")), "", one.own);
    let frame = one;
    while (frame.depth > 0 && (!frame.image || frame.image === "[kernel]")) {
      frame = calls[frame.parent]!;
    }
    if (frame.depth > 0) add(waiters, frame.name, frame.image, one.own);
    else add(waiters, "[kernel threads]", "", one.own);
  }
  const sorted = (of: Map<string, Sum>) => [...of.values()].sort((a, b) => b.share - a.share);
  return { reasons: sorted(reasons), waiters: sorted(waiters) };
}

function List({ title, rows, total, unit }: {
  title: string;
  rows: Sum[];
  total: number;
  unit: string;
}) {
  const most = rows[0]?.share ?? 1;
  const whole = (value: number) => ({ value, low: value, high: value });
  return (
    <div class="panel">
      <h3>{title}, % of <ThatWhole /></h3>
      <ul class="hottest">
        {rows.slice(0, 14).map((row) => (
          <li>
            <ShareCell share={whole(row.share)} most={most} />
            {row.image
              ? (
                <a href={linkTo({ v: "procedure", proc: row.name, image: row.image, addr: "" })}>
                  <Name name={row.name} image={row.image} />
                </a>
              )
              : <span class="cut">{row.name}</span>}
            <small class="cut">{amount(row.share * total, unit)} {row.image}</small>
          </li>
        ))}
      </ul>
    </div>
  );
}

export function Waits() {
  const from = useStateOfLink();
  const wait = from["wait"] || "off-cpu";
  const { asked, calls, total, unmet } = useTree(wait);
  const of = useMemo(() => (calls ? sums(calls) : null), [calls]);
  const unit = asked.data?.event.unit ?? "ns";
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">Waits</h2>
      <div class="options">
        <Segmented
          label="Which waits" value={wait}
          options={[["off-cpu", "Blocked"], ["runnable", "Ready, without a CPU"]]}
          onChange={(to) => change({ wait: to })}
        />
        <span class="hint">
          Time of threads that did not run, of all threads together: idle ones are among them.
        </span>
      </div>
      {of && unmet.length === 0 && (
        <SharesOf event={wait} isOfAll>
          <div class="two">
            <List title="Waited for" rows={of.reasons} total={total} unit={unit} />
            <List title="Waiting procedure" rows={of.waiters} total={total} unit={unit} />
          </div>
        </SharesOf>
      )}
      <FlameOf event={wait} small />
      <Command of={treeWords(wait)} unmet={unmet} />
      <Problems of={asked.data?.problems ?? []} />
    </section>
  );
}
