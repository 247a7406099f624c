// The words of reports with what they mean: those of `dcpi explain`.
import { config } from "./source";

function plain(text: string): string {
  return text.replace(/[_-]/g, " ").toLowerCase();
}

const meanings = new Map<string, string>();
for (const [names, text] of config.terms ?? []) {
  // Letters of causes differ by case, and the first of two entries of a word is the one of reports.
  for (const name of names) {
    const key = name.length > 1 ? plain(name) : name;
    if (!meanings.has(key)) meanings.set(key, text.replace(/`/g, ""));
  }
}

export function meaning(word: string): string | undefined {
  return meanings.get(word.length > 1 ? plain(word) : word);
}

/** A word that shows what it means; `term` is what it is explained by, if not by itself. */
export function Meaning(
  { of, term = of, chip = false }: { of: string; term?: string; chip?: boolean },
) {
  const text = meaning(term);
  const kind = chip ? `chip certainty-${of}` : "";
  const title = text && `${of}: ${text}`;
  return <span class={`${kind}${text ? " meant" : ""}`} title={title}>{of}</span>;
}
