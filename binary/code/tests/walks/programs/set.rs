use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
trait Visit { fn visit(&self, n: u64) -> u64; }
struct Odd(u64); struct Even;
impl Visit for Odd { fn visit(&self, n: u64) -> u64 { n.wrapping_mul(self.0) | 1 } }
impl Visit for Even { fn visit(&self, n: u64) -> u64 { n & !1 } }
fn main() {
    let mut seed = 1_u32;
    let mut next = || { seed = seed.wrapping_mul(1664525).wrapping_add(1013904223); seed };
    let mut total = 0_u64;
    for round in 0..20_u64 {
        let mut words: HashMap<String, u32> = HashMap::new();
        let mut tree = BTreeMap::new();
        let mut text = String::new();
        for i in 0..4000 {
            *words.entry(format!("w{}", next() >> 22)).or_default() += 1;
            tree.insert(next() >> 16, i);
            let _ = write!(text, "{:x} ", next());
        }
        let visitor = |n| -> Box<dyn Visit> {
            if n % 3 == 0 { Box::new(Odd(n)) } else { Box::new(Even) }
        };
        let visitors: Vec<Box<dyn Visit>> = (0..100).map(visitor).collect();
        let mut sorted: Vec<_> = words.into_iter().collect();
        sorted.sort();
        for (word, count) in &sorted { total += word.len() as u64 * u64::from(*count) + round; }
        for part in text.split(' ') { total ^= u64::from_str_radix(part, 16).unwrap_or(7); }
        for visitor in visitors.iter().cycle().take(5000) { total = visitor.visit(total); }
        let products = tree.range(1000..30000).map(|(key, value)| u64::from(*key) * value);
        total += products.fold(0, u64::wrapping_add) % 1000;
    }
    println!("{total}");
}
