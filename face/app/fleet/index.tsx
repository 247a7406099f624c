// The page of a fleet's review: its head and its views.
import { useEffect } from "preact/hooks";
import { show, Theme } from "../shell";
import { State } from "../state";
import { OF_VIEW, page, report } from "./data";
import { MapView, ProceduresView } from "./procedures";
import { ChangesView, FleetView, HostsView, Summary } from "./views";

function Head({ from }: { from: State }) {
  // All that was missed is on the first view: the others need the room.
  const isFirst = (from["v"] || "summary") === "summary";
  const facts = page.coverage.filter(([word]) => word || isFirst);
  const title = `Fleet review, week ${report.week}, event ${report.event}`;
  useEffect(() => {
    document.title = `${title} · dcpi`;
  }, []);
  return (
    <>
      <div class="head-text">
        <h1 class="cut" title={title}>{title}</h1>
        <p class="facts">
          {facts.map(([word, says]) => <span>{word ? `${word}: ` : ""}{says}</span>)}
        </p>
      </div>
      <div class="tools"><Theme /></div>
    </>
  );
}

show({
  views: [
    ["summary", "Summary", Summary],
    ["changes", "Changes", ChangesView],
    ["procedures", "Procedures", ProceduresView],
    ["map", "Map", MapView],
    ["fleet", "Fleet", FleetView],
    ["hosts", "Hosts", HostsView],
  ],
  ofView: OF_VIEW,
  head: (from) => <Head from={from} />,
});
