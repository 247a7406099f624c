// The page: its head, its views, its keys, and what keeps it fresh.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { isDark } from "./colours";
import { useAbout, useEvent } from "./facts";
import { Epochs, moment } from "./model";
import { WAITS } from "./parts";
import { config, renew, report } from "./source";
import { change, linkTo, State, useStateOfLink } from "./state";
import { AboutView } from "./views/about";
import { Compare } from "./views/compare";
import { FlameView } from "./views/flames";
import { Overview } from "./views/overview";
import { Procedure } from "./views/procedure";
import { Procedures } from "./views/procedures";
import { Threads } from "./views/threads";
import { TimelineView } from "./views/timeline";
import { Waits } from "./views/waits";

const VIEWS: [string, string, () => preact.JSX.Element][] = [
  ["overview", "Overview", Overview],
  ["flame", "Flame graph", FlameView],
  ["procedures", "Procedures", Procedures],
  ["timeline", "Timeline", TimelineView],
  ["threads", "Threads", Threads],
  ["waits", "Waits", Waits],
  ["compare", "Compare", Compare],
  ["about", "About", AboutView],
];

/** Filters that are of one view, and would surprise in another. */
const OF_VIEW = { q: "", sort: "", focus: "", zoom: "", of: "", by: "" };

/** Time between two looks at the database, in milliseconds: dcpid merges less often. */
const LOOK_MS = 5000;

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
        const epochs = (await report(["epochs"], "again")) as Epochs;
        const now = epochs.rows.map((row) => `${row.epoch}${row.updated_unix_s}`).join();
        if (last && now !== last) renew();
        last = now;
        const updated = Math.max(...epochs.rows.map((row) => row.updated_unix_s));
        say(`live · samples until ${moment(updated, false)}`);
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

/** Drawings have the colours of the theme: they are drawn anew. */
function drawAnew() {
  dispatchEvent(new Event("hashchange"));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);

function turnTheme() {
  document.documentElement.dataset["theme"] = isDark() ? "light" : "dark";
  drawAnew();
}

function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  return /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

function useKeys() {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      const view = VIEWS[Number(event.key) - 1];
      if (view) change({ ...OF_VIEW, v: view[0] });
      else if (event.key === "/") document.querySelector<HTMLElement>("input[type=search]")?.focus();
      else if (event.key === "t") turnTheme();
      else if (event.key === "?") change({ ...OF_VIEW, v: "about" });
      else if (event.key === "Escape") change({ zoom: "" });
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

function Filters({ from }: { from: State }) {
  const names = ["epoch", "since", "until", "host", "label"].filter((name) => from[name]);
  if (!config.live || names.length === 0) return null;
  return (
    <p class="chips" aria-label="Filters">
      {names.map((name) => (
        <button type="button" class="chip" onClick={() => change({ [name]: "" })}>
          {name} {from[name]} ✕
        </button>
      ))}
    </p>
  );
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
            {moment(row.started_unix_s)}{row.label ? ` ${row.label}` : ""}
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
    <header>
      <div class="head-text">
        <h1 class="cut" title={about.title}>{about.title}</h1>
        <p class="facts">{about.facts.map((fact) => <span>{fact}</span>)}</p>
      </div>
      <div class="tools">
        {says && <span class="live" role="status">{says}</span>}
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
        <button type="button" onClick={turnTheme} title="Dark or light (t)">◐ Theme</button>
      </div>
    </header>
  );
}

function App() {
  const from = useStateOfLink();
  const says = useFresh();
  useKeys();
  const name = from["v"] || "overview";
  const View = name === "procedure"
    ? Procedure : (VIEWS.find(([view]) => view === name)?.[2] ?? Overview);
  const current = name === "procedure" ? "procedures" : name;
  return (
    <>
      <Head from={from} says={says} />
      <nav aria-label="Views">
        {VIEWS.map(([view, title]) => (
          <a
            href={linkTo({ ...OF_VIEW, proc: "", image: "", addr: "", v: view })}
            aria-current={view === current ? "page" : undefined}
          >
            {title}
          </a>
        ))}
      </nav>
      <Filters from={from} />
      <main tabIndex={-1}><View key={name} /></main>
    </>
  );
}

const place = document.getElementById("app");
if (place) {
  place.textContent = "";
  render(<App />, place);
}
