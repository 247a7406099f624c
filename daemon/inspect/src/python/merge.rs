//! Native frames of the evaluation loop beside the frames that they ran.

use super::layouts::Group;
use abi::PythonFrame;

/// Bytes of the evaluation loop's begin in which the list of frames may be the caller's still, or
/// half changed. In gcc's code of 3.11 and 3.12 the frame is in the list after 112 bytes at most.
/// With more, stacks in what interprets the first opcodes, right behind, would lose their innermost
/// function.
pub const PROLOGUE_BYTES: u64 = 128;

/// Native frames of a stack.
pub struct Native<Loops> {
    /// Places of the frames of the evaluation loop, innermost first; 0 is the innermost frame.
    pub loops: Loops,
    /// Whether the innermost frame is in the loop's first bytes.
    pub in_prologue: bool,
    /// Whether the stack is whole.
    pub is_whole: bool,
}

/// Frames that stand in the place of a native one.
#[derive(Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Place of the native frame.
    pub depth: u32,
    /// Innermost first.
    pub frames: Vec<&'a PythonFrame>,
    /// The native frame ran further ones, and stays below these.
    pub is_part: bool,
}

/// The frames by the native frames that ran them; `groups` are those that one call of the loop ran,
/// the innermost call first. None: they do not fit.
///
/// A call of the loop that is just begun or about to end has no frames in the list; then it is the
/// innermost native frame. Of stacks that are cut, in whichever list, the innermost calls fit.
pub fn merge<'a>(
    native: Native<impl Iterator<Item = u32>>,
    groups: Vec<Group<'a>>,
) -> Option<Vec<Run<'a>>> {
    let Native { loops, in_prologue, is_whole } = native;
    let mut loops: Vec<u32> = loops.collect();
    let mut groups = groups;
    let is_cut = groups.last().is_some_and(|group| !group.is_whole);
    let is_innermost = loops.first() == Some(&0);
    if is_innermost && in_prologue {
        if groups.len() == loops.len() {
            groups.remove(0);
        }
        loops.remove(0);
    } else if is_innermost && groups.len() + 1 == loops.len() && !is_cut {
        loops.remove(0);
    }
    let fits = match (is_whole, is_cut) {
        (true, false) => groups.len() == loops.len(),
        (true, true) => groups.len() <= loops.len(),
        (false, false) => groups.len() >= loops.len(),
        (false, true) => true,
    };
    let run = |(depth, group): (u32, Group<'a>)| Run {
        depth,
        frames: group.frames,
        is_part: !group.is_whole,
    };
    fits.then(|| loops.into_iter().zip(groups).map(run).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: PythonFrame = PythonFrame { code: 1, instruction: 2, flags: 3 };

    /// Places and numbers of frames, and whether the native frame stays.
    fn merged(
        loops: &[u32],
        (in_prologue, is_whole): (bool, bool),
        groups: &[(usize, bool)],
    ) -> Option<Vec<(u32, usize, bool)>> {
        let native = Native { loops: loops.iter().copied(), in_prologue, is_whole };
        let group = |(frames, is_whole): &(usize, bool)| Group {
            frames: vec![&FRAME; *frames],
            is_whole: *is_whole,
        };
        let runs = merge(native, groups.iter().map(group).collect())?;
        Some(runs.iter().map(|run| (run.depth, run.frames.len(), run.is_part)).collect())
    }

    #[test]
    fn each_call_of_the_loop_gets_the_frames_that_it_ran() {
        let whole = (false, true);
        let two = [(3, true), (1, true)];
        assert_eq!(merged(&[2, 7], whole, &two), Some(vec![(2, 3, false), (7, 1, false)]));
        assert_eq!(merged(&[2], whole, &two), None, "one call is missing");
        assert_eq!(merged(&[2, 7, 9], whole, &two), None, "one call is too many");
        assert_eq!(merged(&[], whole, &[]), Some(vec![]));
        // Between the start of a call and its frame's being in the list, and at its end.
        let later = Some(vec![(2, 3, false), (7, 1, false)]);
        assert_eq!(merged(&[0, 2, 7], whole, &two), later);
        assert_eq!(merged(&[0, 2, 7], (true, true), &two), later);
        let stale = [(9, true), (3, true), (1, true)];
        assert_eq!(merged(&[0, 2, 7], (true, true), &stale), later, "what was there before");
    }

    #[test]
    fn of_what_is_cut_the_innermost_calls_fit() {
        let two = [(3, true), (1, true)];
        let cut = [(3, true), (1, false)];
        assert_eq!(merged(&[2], (false, false), &two), Some(vec![(2, 3, false)]));
        let part = Some(vec![(2, 3, false), (7, 1, true)]);
        assert_eq!(merged(&[2, 7], (false, true), &cut), part);
        assert_eq!(merged(&[2, 7, 9], (false, true), &cut), part, "the others stay native");
        assert_eq!(merged(&[2], (false, true), &cut), None);
    }
}
