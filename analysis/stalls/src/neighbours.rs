//! Suspects that an instruction borrows from its neighbours, since skid varies.

use crate::causes::Suspect;
use crate::explain::Instruction;
use crate::scale::Scale;

/// The suspects of the instructions of a block, which neighbours may borrow.
pub(crate) struct NeighbourSuspects<'a> {
    instructions: &'a [Instruction],
    scale: Scale,
    /// Samples that the suspects of each instruction can account for beyond the instruction itself
    /// and the neighbours before it.
    spare: Vec<f64>,
    /// The last result: reused memory.
    found: Vec<(Suspect, usize)>,
}

impl<'a> NeighbourSuspects<'a> {
    pub(crate) fn new(instructions: &'a [Instruction], over: &[f64], scale: Scale) -> Self {
        let mut this = Self {
            instructions,
            scale,
            spare: Vec::with_capacity(instructions.len()),
            found: Vec::new(),
        };
        for (instruction, over) in instructions.iter().zip(over) {
            this.spare.push((this.limit(instruction) - over.max(0.0)).max(0.0));
        }
        this
    }

    /// Samples that an instruction's own suspects can account for.
    fn limit(&self, instruction: &Instruction) -> f64 {
        let cycles: f64 = instruction.suspects.iter().map(|suspect| suspect.cycles_max).sum();
        if instruction.executions > 0.0 {
            cycles * instruction.executions * self.scale.samples_per_cycle
        } else {
            0.0
        }
    }

    /// The suspects of the instruction at index `at`, each with the index of the instruction that
    /// it belongs to. Where the instruction's own suspects do not account for its excess `over`,
    /// those of its neighbours are added: the skid of a sample varies by an instruction. Called for
    /// one instruction after the other.
    pub(crate) fn with_neighbours(
        &mut self,
        at: usize,
        instruction: &Instruction,
        over: f64,
    ) -> &[(Suspect, usize)] {
        let mut open = over - self.limit(instruction);
        self.found.clear();
        self.found.extend(instruction.suspects.iter().map(|suspect| (*suspect, at)));
        for other in [at.checked_sub(1), Some(at + 1)].into_iter().flatten() {
            let (Some(neighbour), Some(spare)) =
                (self.instructions.get(other), self.spare.get_mut(other))
            else {
                continue;
            };
            let lent = open.min(*spare);
            if lent <= 0.0 {
                continue;
            }
            (*spare, open) = (*spare - lent, open - lent);
            let cycles = lent / (instruction.executions * self.scale.samples_per_cycle);
            for suspect in &neighbour.suspects {
                let (most, usual) =
                    (suspect.cycles_max.min(cycles), suspect.usual_cycles_max.min(cycles));
                match self.found.iter_mut().find(|(known, _)| known.cause == suspect.cause) {
                    Some((known, _)) => {
                        known.cycles_max += most;
                        known.usual_cycles_max += usual;
                    }
                    None => {
                        let lent =
                            Suspect { cycles_max: most, usual_cycles_max: usual, ..*suspect };
                        self.found.push((lent, other));
                    }
                }
            }
        }
        &self.found
    }
}
