//! Where samples landed, and where the instruction is that took the time.

use code::skid::Skid;

use super::quantity::thousands;

/// Skid of the samples, in reports that do not read the code.
pub const LANDED: &str = "are at the instruction that the processor reported, often after the one that took the time (skid); dcpi list corrects a skid that dcpid measured";

/// The skid of the samples and its correction, in words; `kept` is the number of samples that were
/// not moved.
pub(super) fn landed(skid: Option<(&str, Skid)>, kept: u64) -> String {
    match skid {
        Some((event, skid)) if skid.instructions() > 0 => {
            let but = match kept {
                0 => String::new(),
                kept => {
                    let kept_at = "after a jump, call or no-op or at the begin of a loop or procedure";
                    format!(", except {} {kept_at}", thousands(kept))
                }
            };
            format!("of {event} were reported {skid} the one that took the time (skid) and are moved back{but}")
        }
        _ => "are at the instruction that the processor reported, which may be after the one that took the time (skid)".to_owned(),
    }
}
