//! The edges out of a block of `dcpi calc`, as text.

use super::calc::EdgeRow;
use super::quantity::{counted, percent, thousands};

/// Most edges of a block with a line of their own: a block of an interpreter has hundreds of edges,
/// nearly all of them hardly ever taken.
const SHOWN_MAX: usize = 16;

/// A line for each of the [`SHOWN_MAX`] most frequent edges, in their order, and one line for all
/// others.
pub(super) fn text(edges: &[EdgeRow]) -> String {
    let guessed = edges.len() > 1 && edges.iter().all(|edge| edge.observed == 0);
    let mut often: Vec<(usize, &EdgeRow)> = edges.iter().enumerate().collect();
    often.sort_by(|(_, a), (_, b)| b.share.total_cmp(&a.share));
    let (shown, rest) = often.split_at(SHOWN_MAX.min(often.len()));
    let mut shown = shown.to_vec();
    shown.sort_unstable_by_key(|(number, _)| *number);
    let mut text = String::new();
    for (_, edge) in shown {
        let to = edge.to.map(|to| format!(" {to:#x}")).unwrap_or_default();
        line(&mut text, &to, edge.share, edge.kind, (edge.observed, guessed));
    }
    if !rest.is_empty() {
        let share = rest.iter().map(|(_, edge)| edge.share).sum();
        let observed = rest.iter().map(|(_, edge)| edge.observed).sum();
        let others = format!(" {}", counted(rest.len() as u64, "other"));
        line(&mut text, &others, share, "together (--format json has each)", (observed, guessed));
    }
    text
}

fn line(text: &mut String, to: &str, share: f64, how: &str, (observed, guessed): (u64, bool)) {
    for part in ["                       ->", to, "  ", &percent(share), " % ", how] {
        text.push_str(part);
    }
    match observed {
        0 if guessed => text.push_str(", estimated (low): none observed"),
        0 => {}
        times => {
            text.push_str(", observed ");
            text.push_str(&thousands(times));
        }
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calc::Runs;

    fn edge(number: u64, share: f64, observed: u64) -> EdgeRow {
        let runs = Runs { value: 1.0, low: 1.0, high: 1.0, confidence: estimate::Confidence::Low };
        EdgeRow {
            from: 0x1000,
            to: Some(0x2000 + number),
            kind: "through a register",
            runs,
            share,
            observed,
            untold: None,
        }
    }

    #[test]
    fn few_edges_have_a_line_each() {
        let lines = text(&[edge(0, 0.25, 1), edge(1, 0.75, 3)]);
        let wanted = "                       -> 0x2000  25.00 % through a register, observed 1\n                       -> 0x2001  75.00 % through a register, observed 3\n";
        assert_eq!(lines, wanted);
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn of_hundreds_the_most_often_taken_do_and_none_is_left_out_of_the_sum() {
        // The larger shares come last, but lines are in the order of edges.
        let edges: Vec<EdgeRow> = (0..300).map(|n| edge(n, n as f64 / 44_850.0, n % 2)).collect();
        let lines: Vec<String> = text(&edges).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), SHOWN_MAX + 1);
        assert!(lines[0].contains("-> 0x211c  0.63 %"), "{}", lines[0]);
        assert!(
            lines[SHOWN_MAX - 1].contains("-> 0x212b  0.67 % through a register, observed 1"),
            "{}",
            lines[SHOWN_MAX - 1]
        );
        let rest = "                       -> 284 others  89.60 % together (--format json has each), observed 142";
        assert_eq!(lines[SHOWN_MAX], rest);
    }
}
