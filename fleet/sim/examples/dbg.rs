use sim::experiment::{Sides, plants, table};
use sim::{Config, Fleet};
fn main() {
    for seed in 1..7 {
        let mut c = Config::service(300, seed);
        c.plants = plants(1, 0.03, 0..80, seed);
        let t = table(&Fleet::new(c.clone()), 1, Sides::Builds);
        let g = t.group();
        let (ty, _) = judge::paired(std::slice::from_ref(g), &judge::Rule::builds()).pop().unwrap();
        println!(
            "pairs {} neff {:.0} W {:.3e} samples eff {:.3e}  {:?} change {:?} {:?}",
            g.pairs,
            g.w * g.w / g.w2,
            g.w,
            g.w * g.w / g.sampling,
            ty,
            t.changes(),
            c.plants[0].what
        );
    }
}
