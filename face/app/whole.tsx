// What shares are of, in words: each column and tooltip of shares says it.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { useEvent, useImages } from "./facts";
import { briefId } from "./model";
import { WAITS } from "./parts";
import { config, IMAGE, parts } from "./source";
import { useStateOfLink } from "./state";

const Whole = createContext("the time");

/** What the shares around are of. */
export function useWhole(): string {
  return useContext(Whole);
}

/** The same as a text. */
export function ThatWhole() {
  return <>{useWhole()}</>;
}

/** All that the page's reports are of, where they are restricted to no part. */
export function useAll(): string {
  const images = useImages().data;
  const { event } = useEvent();
  if (config.images.length > 0) return config.images.join(", ");
  const what = event && event.unit !== "ns" ? event.name : "CPU time";
  // Of the recording of a command, or of what options select.
  if (event && event.machine_total > event.total) return `the selected ${what}`;
  return `${(images?.hosts.length ?? 1) > 1 ? "all hosts’" : "the host’s"} ${what}`;
}

/** The part that the link restricts the page to, as far as shares are of it. */
function usePart(isOfAll: boolean): string {
  const from = useStateOfLink();
  const of = parts(from).filter((name) => name !== IMAGE || !isOfAll)
    .map((name) => (name === IMAGE && /^[0-9a-f]{8,}$/.test(from[name]!)
      ? `build ${briefId(from[name]!)}` : from[name]!));
  return of.join(" in ");
}

/** What shares of a report are of; see `SharesOf`. */
export function useWholeOf(isOfAll = false, isWait = false): string {
  const all = useAll();
  const part = usePart(isOfAll);
  return isWait ? `the waiting time${part && ` of ${part}`}` : part || all;
}

/**
 * Shares within are of the part that the page is restricted to. `isOfAll`: they stay those of the
 * samples of all images; `event`: of this one, where it may be a wait.
 */
export function SharesOf(
  { isOfAll = false, event, name, children }: {
    isOfAll?: boolean;
    event?: string;
    /** What they are of, where it is none of these. */
    name?: string;
    children: preact.ComponentChildren;
  },
) {
  const whole = useWholeOf(isOfAll, event !== undefined && WAITS.includes(event));
  return <Whole.Provider value={name ?? whole}>{children}</Whole.Provider>;
}
