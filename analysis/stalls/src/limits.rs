//! Fewest and most samples that a suspect can have taken.

use crate::causes::Suspect;
use crate::explain::Instruction;
use crate::scale::Scale;

/// The stall of an instruction, in samples, and the scales that are possible.
pub(crate) struct Stall<'a> {
    /// The instruction.
    pub(crate) instruction: &'a Instruction,
    /// The likeliest scale, and the one that 19 of 20 procedures are below.
    pub(crate) scale: Scale,
    /// The lowest and the highest scale, with the uncertainty of the executions.
    pub(crate) bounds: (f64, f64),
    /// Samples beyond the best case, 0 where chance explains them.
    pub(crate) samples: f64,
    /// The same at the upper limit of the scale, less what no suspect explains.
    pub(crate) sure: f64,
}

impl Stall<'_> {
    /// Samples of some cycles of each execution, at a scale.
    fn samples_of(&self, cycles: f64, scale: f64) -> f64 {
        let Self { instruction, .. } = self;
        let runs = instruction.executions * self.scale.samples_per_cycle > 0.0;
        if runs { cycles * instruction.executions * scale } else { 0.0 }
    }

    /// Most samples that a suspect can account for at the likeliest scale.
    pub(crate) fn most(&self, suspect: &Suspect) -> f64 {
        self.samples_of(suspect.cycles_max, self.scale.samples_per_cycle)
    }

    /// Fewest and most samples of a suspect beside the others. The fewest remain if the others take
    /// as much as they usually can, and executions are the most that 19 of 20 procedures have.
    pub(crate) fn limits<'b>(
        &self,
        suspect: &Suspect,
        others: impl Iterator<Item = &'b Suspect>,
    ) -> (f64, f64) {
        let usual = |other: &Suspect| self.samples_of(other.usual_cycles_max, self.scale.upper);
        let low = self.sure - others.map(usual).sum::<f64>();
        let at_most = samples_max(self.instruction, suspect, self.bounds);
        let high = self.samples.min(self.most(suspect)).max(at_most);
        (low.clamp(0.0, high), high)
    }

    /// Fewest and most samples of all suspects together that are of data in memory; None without
    /// any.
    pub(crate) fn limits_of_data(&self, suspects: &[(Suspect, usize)]) -> Option<(f64, f64)> {
        let suspects = || suspects.iter().map(|(suspect, _)| suspect);
        let of_data = || suspects().filter(|suspect| suspect.cause.is_of_data());
        let first = *of_data().next()?;
        let cycles_max = of_data().map(|suspect| suspect.cycles_max).sum();
        let together = Suspect { cycles_max, usual_cycles_max: cycles_max, ..first };
        Some(self.limits(&together, suspects().filter(|suspect| !suspect.cause.is_of_data())))
    }
}

/// Most samples that a suspect can have taken over all scales from `least` to `most`, the
/// uncertainty of the block's executions included. A lower scale means less time in the best case
/// and so more to explain, but a suspect's limit in cycles is worth fewer samples.
fn samples_max(instruction: &Instruction, suspect: &Suspect, (least, most): (f64, f64)) -> f64 {
    let cycles = instruction.best.cycles + suspect.cycles_max;
    if instruction.executions <= 0.0 || !cycles.is_finite() || cycles <= 0.0 {
        return instruction.samples;
    }
    let scale = (instruction.samples / (instruction.executions * cycles)).min(most).max(least);
    let stall = instruction.samples - instruction.executions * instruction.best.cycles * scale;
    stall.min(suspect.cycles_max * instruction.executions * scale).max(0.0)
}
