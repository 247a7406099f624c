// What was read, how it was taken, the keys of the page, and the licence of what it contains.
import { useAbout, useImages } from "../facts";
import { count, duration, moment, ZONE } from "../model";
import { Command, Problems } from "../parts";
import { config } from "../source";

export const KEYS: [string, string][] = [
  ["1–8", "views, from left to right"],
  ["/", "search or filter"],
  ["Arrows", "move between calls or rows"],
  ["Enter", "zoom, or open a row"],
  ["Esc", "all calls; empty the search"],
  ["o", "open the procedure of a call"],
  ["t", "dark or light"],
  ["?", "this page"],
];

export function AboutView() {
  const { epochs } = useAbout();
  const images = useImages().data;
  const template = document.getElementById("licences") as HTMLTemplateElement | null;
  const licences = template?.content.textContent ?? "";
  return (
    <section aria-labelledby="view-title">
      <h2 id="view-title">About this page</h2>
      <div class="two">
        <div class="panel">
          <h3>Samples</h3>
          <dl>
            <dt>Database</dt><dd class="cut">{config.db}</dd>
            {(images?.events ?? []).map((event) => (
              <>
                <dt>{event.name}</dt>
                <dd>
                  {count(event.total)} samples, one every {count(event.period)} {event.unit}
                  {event.notes.map((note) => <p class="hint">{note}</p>)}
                </dd>
              </>
            ))}
          </dl>
        </div>
        <div class="panel">
          <h3>Keys</h3>
          <dl>{KEYS.map(([key, does]) => <><dt><kbd>{key}</kbd></dt><dd>{does}</dd></>)}</dl>
        </div>
      </div>
      <h3>Epochs</h3>
      <ul class="plain">
        {(epochs?.rows ?? []).slice(-50).reverse().map((row) => (
          <li>
            {row.epoch} · {row.host} · {moment(row.started_unix_s)} {ZONE} ·
            {" "}{duration(row.duration_s)}
            {row.label ? ` · ${row.label}` : ""}
            {row.machine?.cpu_model ? ` · ${row.machine.cpu_model}` : ""}
          </li>
        ))}
      </ul>
      <Command of={["epochs"]} reach="database" />
      <Problems of={images?.problems ?? []} />
      <h3>Licences</h3>
      <p class="hint">
        dcpi {config.version}: MIT or Apache-2.0. The page contains no name as markup, opens no
        connection but to its own server, and has this library:
      </p>
      <pre tabIndex={0} role="region" aria-label="Licences">{licences}</pre>
    </section>
  );
}
