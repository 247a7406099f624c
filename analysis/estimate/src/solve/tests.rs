use super::*;
use crate::flow_graph::Transition;
use crate::markov::MarkovChain;

/// A graph of blocks, each of which goes to the next or to another, and the last leaves.
fn graph(random: &mut fastrand::Rng, blocks: usize) -> (FlowGraph, Vec<f64>) {
    let mut flow_graph = FlowGraph {
        nodes: vec![Node { instructions: 5.0, ..Default::default() }; blocks],
        ..Default::default()
    };
    let mut shares = Vec::new();
    for from in 0..blocks {
        let next = (from + 1 < blocks).then_some(from + 1);
        if random.bool() {
            flow_graph.transitions.push(Transition {
                edge: None,
                from,
                to: next,
                observed: 0.0,
                prior: 1.0,
                by_trips: None,
                bias: 0.0,
            });
            shares.push(1.0);
        } else {
            let share = 0.05 + 0.9 * random.f64();
            flow_graph.transitions.push(Transition {
                edge: None,
                from,
                to: next,
                observed: 0.0,
                prior: 0.5,
                by_trips: None,
                bias: 0.0,
            });
            flow_graph.transitions.push(Transition {
                edge: None,
                from,
                to: Some(random.usize(0..blocks)),
                observed: 0.0,
                prior: 0.5,
                by_trips: None,
                bias: 0.0,
            });
            shares.extend([share, 1.0 - share]);
        }
    }
    (flow_graph, shares)
}

fn truth(flow_graph: &FlowGraph, shares: &[f64]) -> Vec<f64> {
    let mut ends = vec![0.0; flow_graph.nodes.len()];
    let transitions = flow_graph.transitions.iter().zip(shares);
    transitions
        .clone()
        .filter(|(transition, _)| transition.to.is_none())
        .for_each(|(transition, share)| ends[transition.from] += share);
    let transitions = transitions.filter_map(|(transition, share)| transition.to.map(|_| *share));
    let mut visits = vec![0.0; flow_graph.nodes.len()];
    visits[0] = 1.0;
    MarkovChain::eliminate(&order(flow_graph).unwrap(), transitions, &ends)
        .visits(visits.as_chunks_mut::<1>().0);
    visits
}

/// A graph whose branches were observed `times` times each, in their true proportions, and the true
/// executions of its blocks.
fn observed_graph(random: &mut fastrand::Rng, times: f64) -> (FlowGraph, Vec<f64>) {
    let blocks = random.usize(1..60);
    let (mut flow_graph, shares) = graph(random, blocks);
    flow_graph
        .transitions
        .iter_mut()
        .zip(&shares)
        .for_each(|(transition, share)| transition.observed = times * share);
    let executed = truth(&flow_graph, &shares);
    (flow_graph, executed)
}

#[test]
fn with_many_observed_branches_executions_are_right_though_time_is_not() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..100 {
        let (mut flow_graph, executed) = observed_graph(&mut random, 1e6);
        // Executions cost up to four times as much in one block as in another.
        for (block, executed) in flow_graph.nodes.iter_mut().zip(&executed) {
            block.samples = 1000.0 * executed * (1.4 * random.f64()).exp();
        }
        let order = order(&flow_graph).unwrap();
        let flow = solve(&flow_graph, &order).unwrap();
        for (estimated, executed) in flow.visits().iter().zip(&executed) {
            // Errors of many branches add up.
            assert!((estimated / executed).ln().abs() < 0.25, "{estimated} {executed}");
        }
    }
}

#[test]
fn flow_is_conserved_with_any_observations() {
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..100 {
        let blocks = random.usize(1..60);
        let (mut flow_graph, _) = graph(&mut random, blocks);
        flow_graph.transitions.iter_mut().for_each(|transition| {
            transition.observed = (random.f64() * 8.0).exp().floor() * f64::from(random.u8(0..2))
        });
        flow_graph.nodes.iter_mut().for_each(|block| {
            block.samples = (random.f64() * 12.0).exp() * f64::from(random.u8(0..2))
        });
        let order = order(&flow_graph).unwrap();
        let flow = solve(&flow_graph, &order).unwrap();
        let mut comes = vec![0.0; blocks];
        comes[0] = 1.0;
        let mut goes = vec![0.0; blocks];
        for (transition, flow) in flow_graph.transitions.iter().zip(&flow.transitions) {
            assert!(flow.is_finite() && *flow >= 0.0, "{flow}");
            goes[transition.from] += flow;
            transition.to.into_iter().for_each(|to| comes[to] += flow);
        }
        for ((executed, comes), goes) in flow.visits().iter().zip(comes).zip(goes) {
            assert!((executed - comes).abs() <= 1e-6 * executed, "{executed} {comes}");
            assert!((executed - goes).abs() <= 1e-6 * executed, "{executed} {goes}");
        }
    }
}

#[test]
fn differences_to_first_order_are_those_of_another_solution() {
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..50 {
        let (mut flow_graph, executed) = observed_graph(&mut random, 1e4);
        flow_graph
            .nodes
            .iter_mut()
            .zip(&executed)
            .for_each(|(block, executed)| block.samples = 1e3 * executed);
        let order = order(&flow_graph).unwrap();
        let flow = solve(&flow_graph, &order).unwrap();
        let drawn: [FlowGraph; 3] = std::array::from_fn(|number| {
            let mut drawn = flow_graph.clone();
            let mut factor = || 1.0 + 0.03 * number as f64 * (random.f64() - 0.5);
            drawn.transitions.iter_mut().for_each(|transition| transition.observed *= factor());
            drawn.nodes.iter_mut().for_each(|block| block.samples *= factor());
            drawn
        });
        let differences = flow.differences(&drawn);
        assert!(differences.iter().all(|[same, ..]| *same == 0.0), "{differences:?}");
        for number in 1..3 {
            let again = solve(&drawn[number], &order).unwrap();
            for ((before, after), predicted) in
                flow.visits().iter().zip(again.visits()).zip(&differences)
            {
                let truly = (after / before).ln();
                assert!(
                    (predicted[number] - truly).abs() < 0.02 + 0.1 * truly.abs(),
                    "{predicted:?} {truly}"
                );
            }
        }
    }
}

#[test]
fn time_decides_where_no_branch_was_observed() {
    // 0 goes to 1 or 2, both to 3. Block 1 takes nine times as long.
    let transition = |from, to, prior| Transition {
        edge: None,
        from,
        to,
        observed: 0.0,
        prior,
        by_trips: None,
        bias: 0.0,
    };
    let block = |samples| Node { samples, instructions: 5.0, side_entry: false, issue: None };
    let flow_graph = FlowGraph {
        nodes: [10_000.0, 9_000.0, 1_000.0, 10_000.0].map(block).into(),
        transitions: vec![
            transition(0, Some(1), 0.5),
            transition(0, Some(2), 0.5),
            transition(1, Some(3), 1.0),
            transition(2, Some(3), 1.0),
            transition(3, None, 1.0),
        ],
        entry: 0,
        ..FlowGraph::default()
    };
    let order = order(&flow_graph).unwrap();
    let flow = solve(&flow_graph, &order).unwrap();
    assert!((flow.visits()[1] - 0.9).abs() < 0.05, "{flow:?}");
}

#[test]
fn a_loop_that_is_hardly_left_is_executed_as_its_time_says() {
    // 0 -> 1, 1 -> 1 or 2: 10,000 rounds were observed, and never an end.
    let transition = |from, to, observed, prior| Transition {
        edge: None,
        from,
        to,
        observed,
        prior,
        by_trips: None,
        bias: 0.0,
    };
    let block = |samples| Node { samples, instructions: 5.0, side_entry: false, issue: None };
    let flow_graph = FlowGraph {
        nodes: [10.0, 1e6, 10.0].map(block).into(),
        transitions: vec![
            transition(0, Some(1), 0.0, 1.0),
            transition(1, Some(1), 1e4, 0.85),
            transition(1, Some(2), 0.0, 0.15),
            transition(2, None, 0.0, 1.0),
        ],
        entry: 0,
        ..FlowGraph::default()
    };
    let order = order(&flow_graph).unwrap();
    let flow = solve(&flow_graph, &order).unwrap();
    assert!((flow.visits()[1] / 1e5).ln().abs() < 0.7, "{flow:?}");
}

/// A block, then one of two rows of blocks, then a last block, without observed branches. Each
/// block has 4 instructions; `samples` has the samples of the rows.
fn arms(samples: [&[f64]; 2]) -> FlowGraph {
    let block = |samples: f64| Node { samples, instructions: 4.0, ..Default::default() };
    let mut blocks = vec![block(1000.0)];
    let mut transitions = Vec::new();
    let transition = |from, to, prior| Transition {
        edge: None,
        from,
        to,
        observed: 0.0,
        prior,
        by_trips: None,
        bias: 0.0,
    };
    let last = 1 + samples.concat().len();
    for arm in samples {
        transitions.push(transition(0, Some(blocks.len()), 0.5));
        blocks.extend(arm.iter().map(|samples| block(*samples)));
    }
    let ends = [samples[0].len(), last - 1];
    transitions.extend((1..last).map(|from| {
        transition(from, Some(if ends.contains(&from) { last } else { from + 1 }), 1.0)
    }));
    blocks.push(block(1000.0));
    FlowGraph { nodes: blocks, transitions, entry: 0, ..FlowGraph::default() }
}

#[test]
fn one_block_that_is_stalled_for_long_does_not_outweigh_the_others() {
    // Half goes each transition, and one block of four in a row takes fifty times as long.
    let flow_graph = arms([&[500.0, 500.0, 25_000.0, 500.0], &[500.0; 4]]);
    let order = order(&flow_graph).unwrap();
    let share = solve(&flow_graph, &order).unwrap().transitions[0];
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn a_misprediction_is_not_the_time_of_the_block_after_it() {
    // One execution in ten goes this way and is mispredicted 9 times of 10: its first block pays
    // for 9 more instructions, the first block of the other way for 1 more.
    let seldom = [0.1 * 1000.0 * (4.0 + 9.0) / 4.0];
    let flow_graph = arms([&seldom, &[0.9 * 1000.0 * (4.0 + 1.0) / 4.0]]);
    let order = order(&flow_graph).unwrap();
    let share = solve(&flow_graph, &order).unwrap().transitions[0];
    assert!(share < 0.16, "{share}");
}
