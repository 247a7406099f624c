//! x
use probe::machine::*;
fn main() {
    let m = measure(
        Limits { time: std::time::Duration::from_millis(6000), rounds: 8, memory_bytes: 4 << 30 },
        &|p| eprintln!("{p:.2}"),
    )
    .unwrap();
    for (w, l) in &m.latencies {
        print!("{}:{:.1} ", w >> 10, l);
    }
    println!();
    for (w, l) in &m.page_latencies {
        print!("{}:{:.1} ", w, l);
    }
    println!();
    let m = Machine { latencies: vec![], page_latencies: vec![], mountain: vec![], ..m };
    println!("{m:#?}");
    println!(
        "{:?} {:?}",
        probe::stated::caches(std::path::Path::new("/sys")),
        probe::stated::tlbs()
    );
}
