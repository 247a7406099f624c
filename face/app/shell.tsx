// What the pages of a profile and of a fleet's review have in common: theme, keys, navigation.
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { isDark } from "./colours";
import { change, linkTo, State, useStateOfLink } from "./state";

/** A view: its name in the link, its title, and what shows it. */
export type View = [string, string, () => preact.JSX.Element];

/** Drawings have the colours of the theme: they are drawn anew. */
function drawAnew() {
  dispatchEvent(new Event("hashchange"));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAnew);

/** Where the chosen theme is kept; a browser may refuse to keep anything for a file. */
const KEPT = "dcpi-theme";

function turnTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset["theme"] = theme;
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // It holds until the page is left.
  }
  drawAnew();
}

try {
  const kept = localStorage.getItem(KEPT);
  if (kept) document.documentElement.dataset["theme"] = kept;
} catch {
  // It has the system's theme.
}

export function Theme() {
  return <button type="button" onClick={turnTheme} title="Dark or light (t)">◐ Theme</button>;
}

function isTyping(event: KeyboardEvent): boolean {
  const target = event.target as HTMLElement;
  return /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

/** Keys: numbers are views, `/` the filter, `?` the last view. */
function useKeys(views: View[], ofView: State) {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      const view = views[event.key === "?" ? views.length - 1 : Number(event.key) - 1];
      if (view) change({ ...ofView, v: view[0] });
      else if (event.key === "/") {
        document.querySelector<HTMLElement>("input[type=search]")?.focus();
      } else if (event.key === "t") turnTheme();
      else if (event.key === "Escape") change({ zoom: "" });
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

interface Shell {
  views: View[];
  /** Filters that are of one view, and would surprise in another. */
  ofView: State;
  head: (from: State) => preact.ComponentChildren;
  filters?: (from: State) => preact.ComponentChildren;
  /** Views that are reached from others only, each with the one that it is of. */
  inner?: Record<string, [string, () => preact.JSX.Element]>;
}

function App({ views, ofView, head, filters, inner = {} }: Shell) {
  const from = useStateOfLink();
  useKeys(views, ofView);
  const name = from["v"] || views[0]![0];
  const [, , First] = views[0]!;
  const View = inner[name]?.[1] ?? views.find(([view]) => view === name)?.[2] ?? First;
  const current = inner[name]?.[0] ?? name;
  return (
    <>
      <header>{head(from)}</header>
      <nav aria-label="Views">
        {views.map(([view, title]) => (
          <a
            href={linkTo({ ...ofView, v: view })}
            aria-current={view === current ? "page" : undefined}
          >
            {title}
          </a>
        ))}
      </nav>
      {filters?.(from)}
      <main tabIndex={-1}><View key={name} /></main>
    </>
  );
}

/** Shows a page in the document's place for it. */
export function show(shell: Shell) {
  const place = document.getElementById("app");
  if (!place) return;
  place.textContent = "";
  render(<App {...shell} />, place);
}
