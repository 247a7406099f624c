// What is seen is in the link: the fragment holds the view and its filters, and the way back works.
import { useEffect, useState } from "preact/hooks";

export type State = Record<string, string>;

export function parse(fragment: string): State {
  const state: State = {};
  for (const [key, value] of new URLSearchParams(fragment.replace(/^#/, ""))) state[key] = value;
  return state;
}

function spelt(state: State): string {
  const words = Object.entries(state).filter(([, value]) => value !== "");
  return "#" + new URLSearchParams(words).toString();
}

let current = parse(location.hash);
const listeners = new Set<(state: State) => void>();

function tell() {
  for (const listener of listeners) listener(current);
}

addEventListener("hashchange", () => {
  current = parse(location.hash);
  tell();
});

export function state(): State {
  return current;
}

/** Changes parts of the state; an empty value removes one. `replace` leaves no step to go back. */
export function change(parts: State, replace = false) {
  const link = spelt({ ...current, ...parts });
  if (link === spelt(current)) return;
  current = parse(link);
  history[replace ? "replaceState" : "pushState"](null, "", link);
  tell();
}

/** The link to a changed state, for elements that can be opened in another tab. */
export function linkTo(parts: State): string {
  return spelt({ ...current, ...parts });
}

export function useStateOfLink(): State {
  const [shown, show] = useState(current);
  useEffect(() => {
    listeners.add(show);
    show(current);
    return () => void listeners.delete(show);
  }, []);
  return shown;
}
