//! Files of an ordinary user that mean no good: those that the daemon meets, writes and reads. They
//! need root, as those of privileged.rs do, and play the enemy as nobody.

use super::hostile::{as_nobody, assert_well, nobodys_folder, start};
use tests::daemon::Place;
use tests::report::prof;
use tests::require_root;
use tests::workload::{Running, Workload};

/// A user who ran a new build id every half millisecond made the directory of the next segment
/// larger than a segment may have; every merge after that failed, and 2.3 million samples of
/// everybody were lost at the end.
#[test]
#[ignore = "needs root: run by cargo xtask test"]
fn a_flood_of_build_ids_costs_its_user_and_no_merge() {
    require_root();
    let place = Place::default();
    let known = Workload::build(place.path(), "two_functions", &[]);
    let flood = Workload::build(place.path(), "image_flood", &[]);
    let folder = nobodys_folder(&place);
    let daemon = start(&place);
    let mut command = as_nobody(&folder, flood.program());
    let running = Running::start(command.args(["24000", "500"]));
    let known = known.run(6);
    assert_eq!(running.wait().number("images"), 24_000.0);
    assert_well(&place, &daemon, known);
    let refused = daemon.status().samples.unresolved.get("too_many_images").copied();
    let prof = prof(&place.db(), &["-i", "--idle"]);
    let counted = prof.of_image("flood").count();
    eprintln!("{counted} images of the flood counted, {refused:?} samples of it refused");
    // The allowance of one user (`image_allowance.rs`), and an hour's return of it at most.
    assert!((4000..=8192 + 1024).contains(&counted), "{counted}");
    assert!(refused.unwrap_or(0) > 1000, "{refused:?}");
    assert!(daemon.terminate().success());
}
