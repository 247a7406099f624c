// The page of a profile: its head, its views, and what keeps it fresh.
import { useEffect, useState } from "preact/hooks";
import { Chips, Chooser } from "./chooser";
import { useAbout, useEvent } from "./facts";
import { Epochs, moment, ZONE } from "./model";
import { WAITS } from "./parts";
import { config, isRested, renew, report } from "./source";
import { Share } from "./share";
import { show, Theme, View } from "./shell";
import { change, State } from "./state";
import { AboutView } from "./views/about";
import { Compare } from "./views/compare";
import { FlameView } from "./views/flames";
import { Overview } from "./views/overview";
import { Procedure } from "./views/procedure";
import { Procedures } from "./views/procedures";
import { Threads } from "./views/threads";
import { TimelineView } from "./views/timeline";
import { Waits } from "./views/waits";

const VIEWS: View[] = [
  ["overview", "Overview", Overview],
  ["flame", "Flame graph", FlameView],
  ["procedures", "Procedures", Procedures],
  ["timeline", "Timeline", TimelineView],
  ["threads", "Processes and containers", Threads],
  ["waits", "Waits", Waits],
  ["compare", "Compare", Compare],
  ["about", "About", AboutView],
];

/** Filters that are of one view, and would surprise in another. */
const OF_VIEW = { q: "", sort: "", focus: "", zoom: "", of: "", by: "" };

/** Time between two looks at the database, in milliseconds: dcpid merges less often. */
const LOOK_MS = 5000;
/** Age of the newest samples from which on nobody records: dcpid merges within 10 minutes. */
const STALE_S = 900;

/** Looks whether the database has new samples, and asks for everything again where it has. */
function useFresh(): string {
  const [says, say] = useState(config.live ? "live" : "");
  useEffect(() => {
    if (!config.live) return;
    let last = "";
    let isLooking = false;
    const look = async () => {
      if (document.hidden || isLooking) return;
      isLooking = true;
      try {
        const epochs = (await report(["epochs"], "database", true)) as Epochs;
        const now = epochs.rows.map((row) => `${row.epoch}${row.updated_unix_s}`).join();
        if (!last || now === last) last = now;
        else if (isRested()) {
          last = now;
          renew();
        }
        const updated = Math.max(...epochs.rows.map((row) => row.updated_unix_s));
        const isOld = Date.now() / 1000 - updated > STALE_S;
        const until = moment(updated, isOld);
        say(isOld ? `no samples since ${until} ${ZONE}` : `live · samples until ${until} ${ZONE}`);
      } catch (error) {
        say(`no answer: ${(error as Error).message}`);
      } finally {
        isLooking = false;
      }
    };
    void look();
    const timer = setInterval(() => void look(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  return says;
}

/** The epoch that all views are of, for a server. */
function EpochChoice({ from, epochs }: { from: State; epochs: Epochs | undefined }) {
  if (!config.live || !epochs || epochs.rows.length < 2) return null;
  return (
    <label>
      Epoch
      <select
        value={from["epoch"] ?? ""}
        onChange={(event) =>
          change({ epoch: (event.currentTarget as HTMLSelectElement).value, since: "", until: "" })}
      >
        <option value="">default</option>
        <option value="all">all</option>
        {[...epochs.rows].reverse().slice(0, 200).map((row) => (
          <option value={row.epoch}>
            {moment(row.started_unix_s)} {ZONE}{row.label ? ` ${row.label}` : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

function Head({ from, says }: { from: State; says: string }) {
  const about = useAbout();
  const { event, events } = useEvent();
  useEffect(() => {
    document.title = `${about.title} · dcpi`;
  }, [about.title]);
  const choices = events.filter((one) => !WAITS.includes(one.name));
  return (
    <>
      <div class="head-text">
        <h1 class="cut" title={about.title}>{about.title}</h1>
        {config.note && <p class="note">{config.note}</p>}
        <p class="facts">{about.facts.map(([fact, more]) => <span title={more}>{fact}</span>)}</p>
      </div>
      <div class="tools">
        {says && (
          <span class={says.startsWith("live") ? "live" : "hint"} role="status">{says}</span>
        )}
        <Chooser />
        <EpochChoice from={from} epochs={about.epochs} />
        {choices.length > 1 && (
          <label>
            Event
            <select
              value={event?.name}
              onChange={(one) =>
                change({ e: (one.currentTarget as HTMLSelectElement).value, zoom: "" })}
            >
              {choices.map((one) => <option value={one.name}>{one.name}</option>)}
            </select>
          </label>
        )}
        {config.live && <Share />}
        <Theme />
      </div>
    </>
  );
}

function HeadAndFreshness({ from }: { from: State }) {
  return <Head from={from} says={useFresh()} />;
}

show({
  views: VIEWS,
  ofView: { ...OF_VIEW, proc: "", image: "", id: "", addr: "", set: "" },
  head: (from) => <HeadAndFreshness from={from} />,
  filters: () => <Chips />,
  inner: { procedure: ["procedures", Procedure] },
});
