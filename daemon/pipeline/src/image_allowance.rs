//! Limits the number of images that each user may bring into an epoch, so that one user's flood of
//! images costs only that user's samples.
//!
//! An image costs memory here until it is merged, memory of the writer until the epoch ends, and
//! room in the epoch for ever, whatever number of samples it has. A user has an allowance that is
//! spent at once and comes back slowly.

use address_spaces::mapped_files::Image;
use address_spaces::users::Payer;
use image::ImageId;
use std::collections::HashMap;

/// Images that a user may bring at once, each with up to [`TEXT_BYTES`] of name and path; longer
/// ones count as several. A day of a busy build server has some thousands with samples. More would
/// let one user fill the memory of dcpid's unit, fewer would cost honest users samples.
const AT_ONCE: u64 = 8192;
/// Nanoseconds in which a user may bring one more: 1024 an hour, so that one user alone needs two
/// days to fill an epoch (`profiledb::IMAGES_MAX`).
const ONE_MORE_NS: u64 = 3_515_625_000;
/// Bytes of name and path that count as one image: three times what most have.
const TEXT_BYTES: u64 = 256;
/// Images of one epoch that are remembered, about 90 bytes each. More than an epoch may have, so
/// that the writer begins another epoch before this is met; met while the disk takes nothing.
const ADMITTED_MAX: usize = 98_304;
/// Users with less than the whole allowance that are told apart; others share one.
const USERS_MAX: usize = 4096;

/// The remaining allowance of a user.
#[derive(Debug)]
struct Allowance {
    left: u64,
    /// Until when what came back is counted (CLOCK_MONOTONIC, ns).
    at_ns: u64,
}

impl Allowance {
    fn at(&mut self, now_ns: u64) -> u64 {
        let more = now_ns.saturating_sub(self.at_ns) / ONE_MORE_NS;
        self.left = self.left.saturating_add(more).min(AT_ONCE);
        self.at_ns = self.at_ns.saturating_add(more.saturating_mul(ONE_MORE_NS));
        self.left
    }
}

/// The images of the open epoch, and who brought them.
#[derive(Debug, Default)]
pub struct ImageAllowances {
    admitted: HashMap<ImageId, Payer, foldhash::fast::RandomState>,
    users: HashMap<Payer, Allowance>,
}

impl ImageAllowances {
    /// The user who pays for an image: the one who brought it, or else `payer`, if the allowance is
    /// not spent. None when there is no room for another image.
    pub fn admit(
        &mut self,
        image: &Image,
        now_ns: u64,
        payer: impl FnOnce() -> Payer,
    ) -> Option<Payer> {
        if let Some(payer) = self.admitted.get(&image.id) {
            return Some(*payer);
        }
        if self.admitted.len() >= ADMITTED_MAX {
            return None;
        }
        let payer = self.known(payer(), now_ns);
        let new = || Allowance { left: AT_ONCE, at_ns: now_ns };
        let allowance = self.users.entry(payer).or_insert_with(new);
        let text = (image.name.len() + image.path.len()) as u64;
        let left = allowance.at(now_ns).checked_sub(1 + text / TEXT_BYTES)?;
        allowance.left = left;
        self.admitted.insert(image.id, payer);
        Some(payer)
    }

    /// The payer, or who stands for users that are too many to be told apart.
    fn known(&mut self, payer: Payer, now_ns: u64) -> Payer {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&payer) {
            self.users.retain(|_, allowance| allowance.at(now_ns) < AT_ONCE);
            if self.users.len() >= USERS_MAX {
                return Payer::Unknown;
            }
        }
        payer
    }

    /// Another epoch has begun. What users have spent stays spent.
    pub fn begin_epoch(&mut self) {
        self.admitted = HashMap::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageKind;

    const MINE: Payer = Payer::User(1000);
    const ENEMY: Payer = Payer::User(1001);

    fn image(number: u64, path: &str) -> Image {
        Image {
            id: ImageId::from_build_id(&(number + 1).to_le_bytes()).unwrap(),
            kind: ImageKind::File,
            name: "x".into(),
            path: path.into(),
            size_bytes: None,
            procedures: None,
        }
    }

    fn admitted(all: &mut ImageAllowances, numbers: std::ops::Range<u64>, payer: Payer) -> usize {
        let now = |number| all.admit(&image(number, "/x"), 0, || payer);
        numbers.map(now).filter(Option::is_some).count()
    }

    /// A user who made 22,000 build ids a minute ended the merges of the whole machine.
    #[test]
    fn a_flood_of_images_costs_the_user_who_sends_it() {
        let mut all = ImageAllowances::default();
        assert_eq!(admitted(&mut all, 0..22_000, ENEMY), AT_ONCE as usize);
        assert_eq!(admitted(&mut all, 30_000..30_500, MINE), 500);
        assert_eq!(
            admitted(&mut all, 0..22_000, ENEMY),
            AT_ONCE as usize,
            "known ones still count"
        );
        assert_eq!(admitted(&mut all, 30_000..30_500, ENEMY), 500, "and cost nothing again");
        let later = ONE_MORE_NS * 3;
        let more =
            (50_000..50_010).filter(|n| all.admit(&image(*n, ""), later, || ENEMY).is_some());
        assert_eq!(more.count(), 3);
        all.begin_epoch();
        assert_eq!(admitted(&mut all, 60_000..60_010, ENEMY), 0, "a new epoch gives nothing back");
    }

    #[test]
    fn long_paths_count_as_several_images_and_all_together_have_an_end() {
        let mut all = ImageAllowances::default();
        let path = "x".repeat(16_384);
        let long = (0..AT_ONCE).filter(|n| all.admit(&image(*n, &path), 0, || ENEMY).is_some());
        assert_eq!(long.count() as u64, AT_ONCE / 65);
        let mut all = ImageAllowances::default();
        for user in 0..20 {
            let first = u64::from(user) * AT_ONCE;
            let _ = admitted(&mut all, first..first + AT_ONCE, Payer::User(user));
        }
        assert_eq!(all.admitted.len(), ADMITTED_MAX);
    }

    #[test]
    fn users_without_number_share_an_allowance() {
        let mut all = ImageAllowances::default();
        for user in 0..USERS_MAX as u32 {
            assert_eq!(admitted(&mut all, user.into()..u64::from(user) + 1, Payer::User(user)), 1);
        }
        let first = 100_000;
        let of_two = [USERS_MAX as u32, USERS_MAX as u32 + 1].map(|user| {
            let first = first + u64::from(user) * AT_ONCE;
            admitted(&mut all, first..first + AT_ONCE, Payer::User(user))
        });
        assert_eq!(of_two, [AT_ONCE as usize, 0]);
        let later = ONE_MORE_NS * 2;
        let payer = all.admit(&image(1, "/y"), later, || Payer::User(5));
        assert_eq!(payer, Some(Payer::User(1)), "who brought it");
        let payer = all.admit(&image(1 << 40, ""), later, || Payer::User(1 << 20));
        assert_eq!(payer, Some(Payer::User(1 << 20)), "those who owe nothing are forgotten");
    }
}
