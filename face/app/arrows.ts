// Jumps within a listing, as lines of characters beside its instructions.
import { Instruction } from "./model";

/** Most lines beside each other; further jumps have none. */
const COLUMNS = 6;

/** A jump: the row that it leaves, and the one that it leads to. */
interface Jump { from: number; to: number }

/** The address that a jump's text leads to: `jne 0x401007`, `b.ne 0x7c0`, `cbz x0, 0x7c0`. */
function target(text: string): string | undefined {
  const found = text.match(/^(?:j\w+|b(?:\.\w+)?|t?cbn?z|tbn?z)\b.*?(0x[0-9a-f]+)(?:\s|$)/);
  return found?.[1];
}

function jumps(all: Instruction[]): Jump[] {
  const rows = new Map(all.map((one, at) => [Number(one.address), at]));
  return all.flatMap((one, from) => {
    const to = rows.get(Number(target(one.text) ?? NaN));
    return to === undefined || to === from ? [] : [{ from, to }];
  });
}

/** Rows that a jump's line spans. */
const span = ({ from, to }: Jump) => [Math.min(from, to), Math.max(from, to)] as const;

/** The characters before each instruction, all equally many; empty without jumps. */
export function arrows(all: Instruction[]): string[] {
  const length = (jump: Jump) => Math.abs(jump.to - jump.from);
  const columns: Jump[][] = [];
  for (const jump of jumps(all).sort((a, b) => length(a) - length(b))) {
    const [first, last] = span(jump);
    const isFree = (column: Jump[]) => column.every((other) => {
      // Jumps to one place share its line.
      const [low, high] = span(other);
      return other.to === jump.to || last < low || first > high;
    });
    const column = columns.find(isFree);
    if (column) column.push(jump);
    else if (columns.length < COLUMNS) columns.push([jump]);
  }
  const width = columns.length;
  if (width === 0) return all.map(() => "");
  const cells = all.map(() => Array<string>(width + 1).fill(" "));
  const put = (row: number, at: number, char: string) => {
    const before = cells[row]![at];
    cells[row]![at] = before === " " ? char : before === char ? char : crossed(before!, char);
  };
  columns.forEach((column, number) => {
    const at = width - 1 - number;
    for (const jump of column) {
      const [first, last] = span(jump);
      for (let row = first + 1; row < last; row += 1) put(row, at, "│");
      put(first, at, "╭");
      put(last, at, "╰");
      for (let to = at + 1; to < width; to += 1) {
        put(jump.from, to, "─");
        put(jump.to, to, "─");
      }
      put(jump.from, width, "─");
      cells[jump.to]![width] = "▶";
    }
  });
  return cells.map((row) => row.join(""));
}

/** What two lines make where they meet. */
function crossed(one: string, other: string): string {
  const both = one + other;
  if (one === "▶") return one;
  if (/[╭╰├]/.test(one) && /[╭╰│├]/.test(other) || one === "│" && /[╭╰]/.test(other)) return "├";
  return both.includes("─") ? "┼" : other;
}
