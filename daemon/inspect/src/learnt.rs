//! Rules of frames that walks have met, as inspectors tell them.

use abi::{Extent, FrameBase, GoroutineWay, Rule, RuleWords};
use serde::{Deserialize, Serialize};
use unwind::{Base, End, FrameRule, Learnt, Way};

const _: () = assert!(unwind::BLOCK_BYTES == abi::RULE_BLOCK_BYTES);
const _: () = assert!(unwind::EXTENT_RULES_MAX == abi::EXTENT_RULES_MAX);
const _: () = assert!(unwind::FRAME_LOST == abi::FRAME_LOST);

/// A rule of frames at one place of the process's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearntRule {
    /// Address, as in [`unwind::Learnt::address`].
    pub address: u64,
    /// As [`unwind::Learnt::extent`].
    #[serde(with = "Extents")]
    pub extent: Extent,
    /// As [`unwind::Learnt::is_of_file`].
    pub is_of_file: bool,
    /// The rule, and those of the rest of a block.
    pub words: RuleWords,
}

/// The kinds of an [`Extent`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Extent")]
enum Extents {
    Call,
    Next,
    Block,
}

/// A learnt rule as the words that the sampler reads; None where the sampler could not use it.
pub(crate) fn said(learnt: &Learnt) -> Option<LearntRule> {
    let Learnt { address, extent, rule, ref then, check, is_of_file } = *learnt;
    if rule == FrameRule::Other && then.is_empty() {
        return None;
    }
    let extent = match extent {
        unwind::Extent::Call => Extent::Call,
        unwind::Extent::Next => Extent::Next,
        unwind::Extent::Block => Extent::Block,
    };
    let then = then.iter().map(|(begin, rule)| (*begin, short(*rule)));
    let words = abi::rule_words(check, std::iter::once((0, short(rule))).chain(then));
    Some(LearntRule { address, extent, is_of_file, words })
}

fn short(rule: FrameRule) -> Rule {
    let row = match rule {
        FrameRule::Row { base, distance, return_below, frame_below } => {
            let base = match base {
                Base::StackPointer => FrameBase::StackPointer,
                Base::FramePointer => FrameBase::FramePointer,
                Base::ThroughFramePointer => FrameBase::ThroughFramePointer,
            };
            Rule::row(base, distance, return_below, frame_below)
        }
        FrameRule::FramePointer => Some(Rule::FRAME_POINTER),
        FrameRule::KeptStackPointer(at) => Rule::kept_stack_pointer(at),
        FrameRule::Goroutine(goroutine) => {
            let way = match goroutine.way {
                Way::Thread { g_at, m_at, current_at, stack_pointer_at } => {
                    GoroutineWay::Thread { g_at, m_at, current_at, stack_pointer_at }
                }
                Way::Frame { goroutine_at, depth_at, end_at } => {
                    GoroutineWay::Frame { goroutine_at, depth_at, end_at }
                }
            };
            Rule::goroutine(way, goroutine.frame_bytes)
        }
        FrameRule::Signal => Some(Rule::SIGNAL),
        FrameRule::End(end) => {
            let place = End::ALL.iter().position(|known| *known == end).unwrap_or_default();
            Some(Rule::end(u8::try_from(place + 1).unwrap_or_default()))
        }
        FrameRule::Other => None,
    };
    row.unwrap_or(Rule::OTHER)
}
