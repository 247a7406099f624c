use super::*;
use crate::observed::Way;

/// A graph of blocks, each of which goes to the next or to another, and the last leaves.
fn graph(random: &mut fastrand::Rng, blocks: usize) -> (Observed, Vec<f64>) {
    let mut observed = Observed {
        blocks: vec![ObservedBlock { instructions: 5.0, ..Default::default() }; blocks],
        ..Default::default()
    };
    let mut shares = Vec::new();
    for from in 0..blocks {
        let next = (from + 1 < blocks).then_some(from + 1);
        if random.bool() {
            observed.ways.push(Way {
                edge: None,
                from,
                to: next,
                seen: 0.0,
                guess: 1.0,
                told: None,
            });
            shares.push(1.0);
        } else {
            let share = 0.05 + 0.9 * random.f64();
            observed.ways.push(Way {
                edge: None,
                from,
                to: next,
                seen: 0.0,
                guess: 0.5,
                told: None,
            });
            observed.ways.push(Way {
                edge: None,
                from,
                to: Some(random.usize(0..blocks)),
                seen: 0.0,
                guess: 0.5,
                told: None,
            });
            shares.extend([share, 1.0 - share]);
        }
    }
    (observed, shares)
}

fn truth(observed: &Observed, shares: &[f64]) -> Vec<f64> {
    let mut ends = vec![0.0; observed.blocks.len()];
    let ways = observed.ways.iter().zip(shares);
    ways.clone()
        .filter(|(way, _)| way.to.is_none())
        .for_each(|(way, share)| ends[way.from] += share);
    let transitions = ways.filter_map(|(way, share)| way.to.map(|_| *share));
    let mut visits = vec![0.0; observed.blocks.len()];
    visits[0] = 1.0;
    Chain::eliminate(&order(observed).unwrap(), transitions, &ends)
        .visits(visits.as_chunks_mut::<1>().0);
    visits
}

/// A graph of which each branch was seen so often, as it goes, and the executions of its blocks.
fn seen(random: &mut fastrand::Rng, times: f64) -> (Observed, Vec<f64>) {
    let blocks = random.usize(1..60);
    let (mut observed, shares) = graph(random, blocks);
    observed.ways.iter_mut().zip(&shares).for_each(|(way, share)| way.seen = times * share);
    let executed = truth(&observed, &shares);
    (observed, executed)
}

#[test]
fn with_many_branches_seen_executions_are_right_though_time_is_not() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..100 {
        let (mut observed, executed) = seen(&mut random, 1e6);
        // Executions cost up to four times as much in one block as in another.
        for (block, executed) in observed.blocks.iter_mut().zip(&executed) {
            block.samples = 1000.0 * executed * (1.4 * random.f64()).exp();
        }
        let order = order(&observed).unwrap();
        let flow = solve(&observed, &order).unwrap();
        for (estimated, executed) in flow.blocks().iter().zip(&executed) {
            // Errors of many branches add up.
            assert!((estimated / executed).ln().abs() < 0.25, "{estimated} {executed}");
        }
    }
}

#[test]
fn flow_is_conserved_whatever_was_seen() {
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..100 {
        let blocks = random.usize(1..60);
        let (mut observed, _) = graph(&mut random, blocks);
        observed.ways.iter_mut().for_each(|way| {
            way.seen = (random.f64() * 8.0).exp().floor() * f64::from(random.u8(0..2))
        });
        observed.blocks.iter_mut().for_each(|block| {
            block.samples = (random.f64() * 12.0).exp() * f64::from(random.u8(0..2))
        });
        let order = order(&observed).unwrap();
        let flow = solve(&observed, &order).unwrap();
        let mut comes = vec![0.0; blocks];
        comes[0] = 1.0;
        let mut goes = vec![0.0; blocks];
        for (way, flow) in observed.ways.iter().zip(&flow.ways) {
            assert!(flow.is_finite() && *flow >= 0.0, "{flow}");
            goes[way.from] += flow;
            way.to.into_iter().for_each(|to| comes[to] += flow);
        }
        for ((executed, comes), goes) in flow.blocks().iter().zip(comes).zip(goes) {
            assert!((executed - comes).abs() <= 1e-6 * executed, "{executed} {comes}");
            assert!((executed - goes).abs() <= 1e-6 * executed, "{executed} {goes}");
        }
    }
}

#[test]
fn differences_to_first_order_are_those_of_another_solution() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..50 {
        let (mut observed, executed) = seen(&mut random, 1e4);
        observed
            .blocks
            .iter_mut()
            .zip(&executed)
            .for_each(|(block, executed)| block.samples = 1e3 * executed);
        let order = order(&observed).unwrap();
        let flow = solve(&observed, &order).unwrap();
        let drawn: [Observed; 3] = std::array::from_fn(|number| {
            let mut drawn = observed.clone();
            let mut factor = || 1.0 + 0.03 * number as f64 * (random.f64() - 0.5);
            drawn.ways.iter_mut().for_each(|way| way.seen *= factor());
            drawn.blocks.iter_mut().for_each(|block| block.samples *= factor());
            drawn
        });
        let differences = flow.differences(&drawn);
        assert!(differences.iter().all(|[same, ..]| *same == 0.0), "{differences:?}");
        for number in 1..3 {
            let again = solve(&drawn[number], &order).unwrap();
            for ((before, after), told) in
                flow.blocks().iter().zip(again.blocks()).zip(&differences)
            {
                let truly = (after / before).ln();
                assert!(
                    (told[number] - truly).abs() < 0.02 + 0.1 * truly.abs(),
                    "{told:?} {truly}"
                );
            }
        }
    }
}

#[test]
fn time_decides_where_no_branch_was_seen() {
    // 0 goes to 1 or 2, both to 3. Block 1 takes nine times as long.
    let way = |from, to, guess| Way { edge: None, from, to, seen: 0.0, guess, told: None };
    let block = |samples| ObservedBlock { samples, instructions: 5.0, aside: false, told: None };
    let observed = Observed {
        blocks: [10_000.0, 9_000.0, 1_000.0, 10_000.0].map(block).into(),
        ways: vec![
            way(0, Some(1), 0.5),
            way(0, Some(2), 0.5),
            way(1, Some(3), 1.0),
            way(2, Some(3), 1.0),
            way(3, None, 1.0),
        ],
        entry: 0,
        ..Observed::default()
    };
    let order = order(&observed).unwrap();
    let flow = solve(&observed, &order).unwrap();
    assert!((flow.blocks()[1] - 0.9).abs() < 0.05, "{flow:?}");
}

#[test]
fn a_loop_that_is_hardly_left_is_executed_as_its_time_says() {
    // 0 -> 1, 1 -> 1 or 2: 10,000 rounds seen, and never an end.
    let way = |from, to, seen, guess| Way { edge: None, from, to, seen, guess, told: None };
    let block = |samples| ObservedBlock { samples, instructions: 5.0, aside: false, told: None };
    let observed = Observed {
        blocks: [10.0, 1e6, 10.0].map(block).into(),
        ways: vec![
            way(0, Some(1), 0.0, 1.0),
            way(1, Some(1), 1e4, 0.85),
            way(1, Some(2), 0.0, 0.15),
            way(2, None, 0.0, 1.0),
        ],
        entry: 0,
        ..Observed::default()
    };
    let order = order(&observed).unwrap();
    let flow = solve(&observed, &order).unwrap();
    assert!((flow.blocks()[1] / 1e5).ln().abs() < 0.7, "{flow:?}");
}

/// A block, then one of two or more in a row, then the last: none of its branches was seen. Each
/// has 4 instructions, and so many samples.
fn arms(samples: [&[f64]; 2]) -> Observed {
    let block = |samples: f64| ObservedBlock { samples, instructions: 4.0, ..Default::default() };
    let mut blocks = vec![block(1000.0)];
    let mut ways = Vec::new();
    let way = |from, to, guess| Way { edge: None, from, to, seen: 0.0, guess, told: None };
    let last = 1 + samples.concat().len();
    for arm in samples {
        ways.push(way(0, Some(blocks.len()), 0.5));
        blocks.extend(arm.iter().map(|samples| block(*samples)));
    }
    let ends = [samples[0].len(), last - 1];
    ways.extend(
        (1..last)
            .map(|from| way(from, Some(if ends.contains(&from) { last } else { from + 1 }), 1.0)),
    );
    blocks.push(block(1000.0));
    Observed { blocks, ways, entry: 0, ..Observed::default() }
}

#[test]
fn one_block_that_is_stalled_for_long_does_not_outweigh_the_others() {
    // Half goes each way, and one block of four in a row takes fifty times as long.
    let observed = arms([&[500.0, 500.0, 25_000.0, 500.0], &[500.0; 4]]);
    let order = order(&observed).unwrap();
    let share = solve(&observed, &order).unwrap().ways[0];
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn what_was_begun_on_a_wrong_way_is_not_the_time_of_where_the_right_one_begins() {
    // One in ten goes this way and is hardly ever foreseen: where it begins pays for 9 instructions
    // more, 1 more the other way does.
    let seldom = [0.1 * 1000.0 * (4.0 + 9.0) / 4.0];
    let observed = arms([&seldom, &[0.9 * 1000.0 * (4.0 + 1.0) / 4.0]]);
    let order = order(&observed).unwrap();
    let share = solve(&observed, &order).unwrap().ways[0];
    assert!(share < 0.16, "{share}");
}
