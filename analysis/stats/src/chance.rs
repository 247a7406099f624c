//! Random numbers for tests.

/// Vigna's splitmix64: the tests must be the same each time.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Samples of what takes so many on average.
    pub(crate) fn samples(&mut self, mean: f64) -> f64 {
        if mean > 200.0 {
            return (mean + mean.sqrt() * self.normal()).round().max(0.0);
        }
        let (mut n, mut product, end) = (0.0, self.uniform(), (-mean).exp());
        while product > end {
            n += 1.0;
            product *= self.uniform();
        }
        n
    }
}
