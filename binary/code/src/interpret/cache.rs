//! A cache of decoded instructions: the hot code of a machine is small.

use image::ImageOffset;

/// A direct-mapped table: a new instruction replaces the one that had its place.
#[derive(Debug)]
pub(super) struct Cache<T> {
    entries: Vec<Option<(u32, ImageOffset, T)>>,
}

impl<T: Copy> Cache<T> {
    /// Room for at least `len` instructions: the next power of two.
    pub(super) fn new(len: usize) -> Self {
        Self { entries: vec![None; len.clamp(1, 1 << 24).next_power_of_two()] }
    }

    /// The instruction at an offset of an image, decoded now if it is not in the table.
    pub(super) fn get(
        &mut self,
        image: u32,
        offset: ImageOffset,
        decode: impl FnOnce() -> Option<T>,
    ) -> Option<&T> {
        // Fibonacci hashing spreads neighbours, and the same offset in different images.
        let key = (offset.0 ^ u64::from(image) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let index = (key >> 32) as usize & (self.entries.len() - 1);
        let entry = self.entries.get_mut(index)?;
        if !matches!(entry, Some((of_image, at, _)) if (*of_image, *at) == (image, offset)) {
            *entry = Some((image, offset, decode()?));
        }
        entry.as_ref().map(|(_, _, known)| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_image_is_not_taken_for_another() {
        let mut cache = Cache::new(3);
        for round in 0..3 {
            for image in 0..40 {
                let expected = Some((image, image * 7));
                assert_eq!(
                    cache.get(image, ImageOffset(7), || Some((image, image * 7))).copied(),
                    expected,
                    "round {round}"
                );
            }
        }
        assert_eq!(
            cache.get(39, ImageOffset(7), || None),
            Some(&(39, 39 * 7)),
            "the last one is still there"
        );
        assert_eq!(cache.get(40, ImageOffset(7), || None), None);
    }
}
