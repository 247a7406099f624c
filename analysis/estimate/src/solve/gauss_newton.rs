//! Minimisation by damped Gauss-Newton steps (Levenberg and Marquardt).

use super::problem::{Iterate, Problem};

/// Most steps of one minimisation: the prototype's 15, raised by hand. A smaller limit stops hard
/// problems before they converge; a larger one only bounds the time of hostile ones less tightly.
const STEPS_MAX: usize = 25;
/// Conjugate-gradient tolerance of a step: iterations stop when the squared residual falls below
/// this fraction of its initial value. Steps need not be exact, since the next one begins where
/// this one leads: with smaller values, steps cost more than they save. Set by hand for the least
/// time of `bench truth`.
const CG_TOLERANCE_STEP: f64 = 0.03;
/// Largest change of an unknown, a logit or a logarithm, in one step: a factor of e^3. The problem
/// is not linear farther away. The prototype's limit.
const STEP_MAX: f64 = 3.0;

/// Damping of the first step, in units of the diagonal of J'J.
const INITIAL_DAMPING: f64 = 1e-3;
/// Factor on the damping after a step that lowered the cost.
const DAMPING_AFTER_SUCCESS: f64 = 0.25;
/// Factor on the damping after a step that did not, nor its half.
const DAMPING_AFTER_FAILURE: f64 = 16.0;
/// Least damping: keeps the equations solvable where the residuals leave an unknown undetermined.
const DAMPING_MIN: f64 = 1e-6;
/// Largest damping, beyond which steps are too short to matter and the minimisation ends.
const DAMPING_MAX: f64 = 1e6;

impl Problem<'_> {
    /// Moves `unknowns` to the least cost, until a step lowers the cost by less than the part
    /// `tolerance`.
    pub(super) fn minimise(&self, unknowns: &mut Vec<f64>, tolerance: f64) -> Iterate {
        let mut iterate = self.at(unknowns);
        let mut damping = INITIAL_DAMPING;
        for _ in 0..STEPS_MAX {
            let step = self.step(&iterate, damping);
            let (mut tried, mut next) = self.after(unknowns, &step, 1.0);
            // Half of the step takes a fifth of the time of another with more damping, and is
            // mostly as good.
            let halved = next.cost >= iterate.cost;
            if halved {
                (tried, next) = self.after(unknowns, &step, 0.5);
            }
            if next.cost < iterate.cost {
                let converged = iterate.cost - next.cost < tolerance * iterate.cost;
                (*unknowns, iterate) = (tried, next);
                if !halved {
                    damping = f64::max(damping * DAMPING_AFTER_SUCCESS, DAMPING_MIN);
                }
                // Half a step may gain little because it is still too long.
                if converged && !halved {
                    break;
                }
            } else {
                damping *= DAMPING_AFTER_FAILURE;
                if damping > DAMPING_MAX {
                    break;
                }
            }
        }
        iterate
    }

    /// Where a part of a step leads: the unknowns and their iterate.
    fn after(&self, unknowns: &[f64], step: &[f64], part: f64) -> (Vec<f64>, Iterate) {
        let moved: Vec<f64> = unknowns
            .iter()
            .zip(step)
            .map(|(unknown, step)| unknown + part * step.clamp(-STEP_MAX, STEP_MAX))
            .collect();
        let iterate = self.at(&moved);
        (moved, iterate)
    }

    /// The step that would minimise the cost if the residuals r were linear:
    /// (J'J + damping D) step = -J'r.
    fn step(&self, iterate: &Iterate, damping: f64) -> Vec<f64> {
        let mut residuals = iterate.residuals.clone();
        self.solve_linear(iterate, damping, &mut residuals, CG_TOLERANCE_STEP).into_flattened()
    }
}
