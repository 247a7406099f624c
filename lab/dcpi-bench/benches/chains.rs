//! An example of a benchmark: `cargo bench -p dcpi-bench`, with `-- sort` for one of them,
//! `-- --quick` for a look.

use dcpi_bench::{Bench, bench_group, bench_main, black_box};

fn sums(bench: &mut Bench) {
    let numbers: Vec<u64> = (0..1000).collect();
    bench.bench_function("sum", |b| b.iter(|| black_box(&numbers).iter().sum::<u64>()));
    // The next call needs the result of the one before: time from begin to end.
    let mut state = 1_u64;
    bench.bench_function("hash", |b| {
        b.iter(|| {
            state = (state ^ 17).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            state
        });
    });
}

fn sorts(bench: &mut Bench) {
    let mut group = bench.benchmark_group("sort");
    for count in [10, 1000_u32] {
        let numbers: Vec<u32> = (0..count).map(|n| n.wrapping_mul(2_654_435_761)).collect();
        group.bench_function(&count.to_string(), |b| {
            b.iter_batched(
                || numbers.clone(),
                |mut all| {
                    all.sort_unstable();
                    all
                },
            );
        });
    }
}

bench_group!(benches, sums, sorts);
bench_main!(benches);
