// A file of what a server shows, for people without access to the host.
import { useState } from "preact/hooks";
import { sets } from "./facts";
import { Command } from "./parts";
import { file } from "./source";

/** Most characters of a note, as `dcpi html --note` takes them. */
const NOTE_MAX = 500;

/** The browser keeps it as a download. */
function keep(made: Blob, name: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(made);
  link.download = name;
  link.click();
  // Browsers read it after the click.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** Saves one file of the page's selection, and has the command that writes the same. */
export function Share() {
  const [note, setNote] = useState("");
  const [says, say] = useState("");
  const [isMade, make] = useState(false);
  const both = sets();
  const diff = both ? both.map((set) => `--diff=${set}`) : [];
  const said = note.trim() ? [`--note=${note.trim()}`] : [];
  const save = async (event: Event) => {
    event.preventDefault();
    make(true);
    say("The server makes it: this may take a minute …");
    try {
      const made = await file(["html", ...diff, ...said]);
      const day = new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-");
      keep(made, `dcpi-${day}.html`);
      say(`Saved: ${(made.size / 1e6).toFixed(1)} MB. It needs no network and no other file.`);
    } catch (error) {
      say(`It could not be made: ${(error as Error).message}`);
    }
    make(false);
  };
  return (
    <details class="share-file">
      <summary>Share</summary>
      <form class="panel" onSubmit={save}>
        <p>One file of this selection{both && " and comparison"}, to keep and to send:</p>
        <label>
          What it is about
          <input
            type="text" class="search" maxLength={NOTE_MAX} value={note}
            placeholder="shown in the head of the file"
            onInput={(event) => setNote((event.currentTarget as HTMLInputElement).value)}
          />
        </label>
        <button type="submit" class="primary" disabled={isMade}>Save as one file</button>
        <p role="status" class="hint">{says}</p>
        <p class="hint">The command that writes the same file:</p>
        <Command of={["html", "-o", "report.html", ...diff, ...said]} />
      </form>
    </details>
  );
}
