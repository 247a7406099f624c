//! The linear algebra of a Gauss-Newton step: products with the Jacobian J and its transpose, and
//! conjugate gradients on them. J has as many rows as residuals and is never formed: a product with
//! it costs one pass over the eliminated Markov chain.

use super::problem::{Iterate, NodeTime, Problem, Residuals, SIDE_ENTRY_LOG_SD};
use crate::vectors::{add_each, at_each, each, products};

/// Most iterations of conjugate gradients. Set by hand; iterations beyond this number gain little,
/// since the equations are solved to a tolerance only.
const CG_ITERATIONS_MAX: usize = 40;
/// Added to the diagonal of the preconditioner for each unknown of a branch or a side entry, so
/// that an unknown whose own residual weighs nothing is not scaled without bound.
const PRECONDITIONER_MIN: f64 = 0.1;

impl Problem<'_> {
    /// Solves (J'J + damping D) x = -J' `residuals` by conjugate gradients, preconditioned by the
    /// diagonal D, until the squared residual is below the part `tolerance` of its initial value.
    /// `residuals` is left with scratch values.
    pub(super) fn solve_linear<const N: usize>(
        &self,
        iterate: &Iterate,
        damping: f64,
        residuals: &mut Residuals<N>,
        tolerance: f64,
    ) -> Vec<[f64; N]> {
        self.gradient(iterate, residuals);
        let diagonal = self.diagonal();
        let mut rest: Vec<[f64; N]> =
            residuals.unknowns.iter().map(|gradient| gradient.map(|gradient| -gradient)).collect();
        let image = residuals;
        let mut solution = vec![[0.0; N]; rest.len()];
        let mut direction: Vec<[f64; N]> =
            rest.iter().zip(&diagonal).map(|(r, d)| r.map(|r| r / d)).collect();
        let mut size = products(&rest, &direction);
        let small = size.map(|size| size * tolerance);
        for _ in 0..CG_ITERATIONS_MAX {
            if size.iter().zip(&small).all(|(size, small)| size <= small) {
                break;
            }
            image.unknowns.clone_from(&direction);
            self.residual_changes(iterate, image);
            self.gradient(iterate, image);
            let mut curvature = [0.0; N];
            for ((image, direction), diagonal) in
                image.unknowns.iter_mut().zip(&direction).zip(&diagonal)
            {
                image
                    .iter_mut()
                    .zip(direction)
                    .for_each(|(image, direction)| *image += damping * diagonal * direction);
                let product = each(*direction, *image, |a, b| a * b);
                curvature = each(curvature, product, |sum, product| sum + product);
            }
            let length = ratio(size, curvature);
            if length == [0.0; N] {
                break;
            }
            let mut next_size = [0.0; N];
            let directed = solution.iter_mut().zip(&direction);
            for (((solution, direction), (rest, image)), diagonal) in
                directed.zip(rest.iter_mut().zip(&image.unknowns)).zip(&diagonal)
            {
                *solution = each(*solution, each(*direction, length, |a, b| a * b), |a, b| a + b);
                *rest = each(*rest, each(*image, length, |a, b| a * b), |a, b| a - b);
                let squares = rest.map(|rest| rest * rest / diagonal);
                next_size = each(next_size, squares, |sum, square| sum + square);
            }
            let turn = ratio(next_size, size);
            for ((direction, rest), diagonal) in direction.iter_mut().zip(&rest).zip(&diagonal) {
                *direction =
                    each(each(*direction, turn, |a, b| a * b), *rest, |a, b| a + b / diagonal);
            }
            size = next_size;
        }
        solution
    }

    /// D: an approximate diagonal of J'J, from each unknown's own residual.
    fn diagonal(&self) -> Vec<f64> {
        let choices =
            self.choices.iter().map(|choice| choice.weight * choice.weight + PRECONDITIONER_MIN);
        let side_entries = self
            .side_entries
            .iter()
            .map(|_| 1.0 / (SIDE_ENTRY_LOG_SD * SIDE_ENTRY_LOG_SD) + PRECONDITIONER_MIN);
        let scale = self
            .time
            .iter()
            .map(|(_, weight)| weight * weight)
            .sum::<f64>()
            .max(PRECONDITIONER_MIN);
        choices.chain(side_entries).chain([scale]).collect()
    }

    /// Turns a direction of the unknowns into its first-order effects: in `unknowns`, changes of
    /// the logarithms of branch probabilities; in `time`, changes of visits.
    pub(super) fn visit_changes<const N: usize>(
        &self,
        iterate: &Iterate,
        along: &mut Residuals<N>,
    ) {
        let Residuals { unknowns, time: inflow, groups: means } = along;
        inflow.fill([0.0; N]);
        means.fill([0.0; N]);
        let Some((branches, rest)) = unknowns.split_at_mut_checked(self.choices.len()) else {
            return;
        };
        for (((node, _), entries), change) in
            self.side_entries.iter().zip(&iterate.side_entries).zip(rest)
        {
            add_each(inflow, *node, *change, *entries);
        }
        for (change, choice) in branches.iter().zip(&iterate.choices) {
            add_each(means, choice.group as usize, *change, choice.probability);
        }
        for (change, choice) in branches.iter_mut().zip(&iterate.choices) {
            let mean = at_each(means, choice.group as usize);
            *change = each(*change, mean, |change, mean| change - mean);
            add_each(inflow, choice.to as usize, *change, choice.flow);
        }
        iterate.chain.visits(inflow);
    }

    /// Turns a direction of the unknowns into the changes of the residuals along it: J direction.
    fn residual_changes<const N: usize>(&self, iterate: &Iterate, along: &mut Residuals<N>) {
        let scale = along.unknowns.last().copied().unwrap_or([0.0; N]);
        self.visit_changes(iterate, along);
        for (change, NodeTime { visits, weight }) in along.time.iter_mut().zip(&iterate.times) {
            *change = each(*change, scale, |change, scale| (change / visits - scale) * weight);
        }
        let Some((branches, entries)) = along.unknowns.split_at_mut_checked(self.choices.len())
        else {
            return;
        };
        for (change, choice) in branches.iter_mut().zip(&iterate.choices) {
            *change = change.map(|change| change * choice.weight);
        }
        for (change, _) in entries.iter_mut().zip(&self.side_entries) {
            *change = change.map(|change| change / SIDE_ENTRY_LOG_SD);
        }
    }

    /// Turns residuals into J' residuals, in their `unknowns`. Their `time` is left with scratch
    /// values.
    fn gradient<const N: usize>(&self, iterate: &Iterate, residuals: &mut Residuals<N>) {
        let Residuals { unknowns, time: worth, groups: sums } = residuals;
        let mut scale = [0.0; N];
        for (worth, NodeTime { visits, weight }) in worth.iter_mut().zip(&iterate.times) {
            *worth = worth.map(|residual| residual * weight);
            scale = each(scale, *worth, |scale, worth| scale - worth);
            *worth = worth.map(|worth| worth / visits);
        }
        iterate.chain.values(worth);
        let values = worth;
        // First the gradient by the logarithms of branch probabilities, then by the logits, of
        // which only differences matter.
        sums.fill([0.0; N]);
        let Some((branches, rest)) = unknowns.split_at_mut_checked(self.choices.len()) else {
            return;
        };
        for (gradient, choice) in branches.iter_mut().zip(&iterate.choices) {
            let value = at_each(values, choice.to as usize);
            *gradient = each(*gradient, value, |residual, value| {
                residual * choice.weight + choice.flow * value
            });
            add_each(sums, choice.group as usize, *gradient, 1.0);
        }
        for (gradient, choice) in branches.iter_mut().zip(&iterate.choices) {
            let sum = at_each(sums, choice.group as usize);
            *gradient = each(*gradient, sum, |gradient, sum| gradient - choice.probability * sum);
        }
        for ((gradient, (node, _)), entries) in
            rest.iter_mut().zip(&self.side_entries).zip(&iterate.side_entries)
        {
            *gradient = each(at_each(values, *node), *gradient, |value, residual| {
                value * entries + residual / SIDE_ENTRY_LOG_SD
            });
        }
        rest.last_mut().into_iter().for_each(|last| *last = scale);
    }
}

/// a / b, and 0 where b is not positive.
fn ratio<const N: usize>(a: [f64; N], b: [f64; N]) -> [f64; N] {
    each(a, b, |a, b| if b > 0.0 { a / b } else { 0.0 })
}
