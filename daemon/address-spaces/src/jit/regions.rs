//! Regions of a process's memory that a user has registered with `dcpictl register`.

use crate::jit::inode_of;
use crate::mapped_files::Image;
use crate::mapped_files::known;
use crate::system::{Identity, System};
use image::jit::NAME_MAX;
use inspect::jit::process::Who;
use profiledb::ImageRecord;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use wire::Registration;

/// Regions of one process.
pub const REGIONS_MAX: usize = 4096;
/// Longest name of an image, in bytes.
const IMAGE_NAME_MAX: usize = 255;

/// The content of a region.
#[derive(Clone, Debug)]
pub enum Shows {
    /// A procedure of the process's generated code, in the image of that name if one is given.
    Generated(Option<String>),
    /// A file from this offset on.
    File(Arc<Image>, u64),
}

/// A registered region.
#[derive(Clone, Debug)]
pub struct Region {
    /// Address of its first byte.
    pub start: u64,
    /// The address after its last.
    pub end: u64,
    /// Name of the procedure.
    pub name: String,
    /// What is there.
    pub shows: Shows,
    /// The inode that was mapped at its start; 0: none.
    inode: u64,
}

/// The regions of one process, which do not overlap.
#[derive(Debug, Default)]
pub struct Regions {
    by_start: BTreeMap<u64, Region>,
}

impl Regions {
    /// Adds a region in place of those that it overlaps.
    ///
    /// # Errors
    /// One line with the next step when there are too many.
    pub fn insert(&mut self, region: Region) -> Result<(), String> {
        let overlapped: Vec<u64> =
            self.overlapping(region.start..region.end).map(|region| region.start).collect();
        if overlapped.is_empty() && self.by_start.len() >= REGIONS_MAX {
            return Err(format!(
                "{REGIONS_MAX} regions of this process are registered, and no more can be; unregister some"
            ));
        }
        overlapped.iter().for_each(|start| drop(self.by_start.remove(start)));
        self.by_start.insert(region.start, region);
        Ok(())
    }

    /// Removes the region that begins there.
    pub fn remove(&mut self, start: u64) -> bool {
        self.by_start.remove(&start).is_some()
    }

    /// Notes a new mapping. It removes the regions registered there, unless the mapping shows the
    /// same file, or no file, as before (a change of access rights).
    pub fn mapped(&mut self, range: Range<u64>, inode: u64) {
        let gone: Vec<u64> = self
            .overlapping(range)
            .filter(|region| region.inode != inode)
            .map(|region| region.start)
            .collect();
        gone.iter().for_each(|start| drop(self.by_start.remove(start)));
    }

    /// The region that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Region> {
        self.by_start
            .range(..=address)
            .next_back()
            .map(|(_, region)| region)
            .filter(|region| address < region.end)
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = &Region> {
        let before = self.by_start.range(..range.end).map(|(_, region)| region);
        before.rev().take_while(move |region| region.end > range.start)
    }
}

/// Checks a registration against the process's mappings.
///
/// # Errors
/// One line with the next step.
pub fn check(told: &Registration, system: &System) -> Result<(Who, Region), String> {
    let Registration { pid, start, len, ref name, ref image, ref file, offset } = *told;
    let plain = |text: &str, max: usize| {
        !text.trim().is_empty() && text.len() <= max && !text.chars().any(char::is_control)
    };
    if !plain(name, NAME_MAX) {
        return Err(format!(
            "NAME must have 1 to {NAME_MAX} bytes and no control character; choose another"
        ));
    }
    if image.as_ref().is_some_and(|image| !plain(image, IMAGE_NAME_MAX)) {
        return Err(format!(
            "--image must have 1 to {IMAGE_NAME_MAX} bytes and no control character; choose another"
        ));
    }
    let gone = || format!("there is no process {pid}; name one that runs (as dcpid sees it)");
    let who = system.who(pid).ok_or_else(gone)?;
    let lines = system.maps(pid).filter(|lines| !lines.is_empty()).ok_or_else(gone)?;
    let end = start.checked_add(len).filter(|_| len > 0);
    let end = end.ok_or_else(|| {
        format!("{len} bytes at {start:#x} are no region; give START and LEN of code")
    })?;
    // Mappings come sorted; the region may reach over several that touch.
    let mut reached = start;
    for line in lines.iter().filter(|line| line.start <= end) {
        if line.start <= reached && reached < line.end {
            reached = line.end;
        }
    }
    if reached < end {
        return Err(format!(
            "{reached:#x} is in no executable mapping of process {pid}; see /proc/{pid}/maps for what is executable there"
        ));
    }
    let inode = lines
        .iter()
        .find(|line| (line.start..line.end).contains(&start))
        .map_or(0, |line| inode_of(&line.file));
    let shows = match file {
        Some(path) => Shows::File(Arc::new(identified(path, system)?), offset),
        None => Shows::Generated(image.clone()),
    };
    if !system.is_still(pid, who.start_ticks) {
        return Err(gone());
    }
    Ok((who, Region { start, end, name: name.clone(), shows, inode }))
}

/// The image that a registration names as a file.
fn identified(path: &Path, system: &System) -> Result<Image, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!(
            "--file {shown} is not an absolute path; dcpid has another working directory"
        ));
    }
    let told = system.registered_file(path.as_os_str().as_encoded_bytes());
    if let Some(Identity::Unknown(why)) = told {
        return Err(format!("--file {shown}: {why}; name an ELF file"));
    }
    let (id, size_bytes) = known(told).map_err(|_| format!("--file {shown} is not known"))?;
    let escaped = ImageRecord::escape_path(path);
    let name = escaped.rsplit('/').find(|part| !part.is_empty()).unwrap_or("?").to_owned();
    Ok(Image {
        id,
        kind: image::ImageKind::File,
        name,
        path: escaped,
        size_bytes,
        procedures: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against this very machine.
    fn check(told: &Registration) -> Result<(Who, Region), String> {
        super::check(told, &System::default())
    }

    use kernel::procfs::executable_mappings;

    fn region(start: u64, end: u64, inode: u64) -> Region {
        Region { start, end, name: format!("{start}"), shows: Shows::Generated(None), inode }
    }

    fn starts(regions: &Regions) -> Vec<u64> {
        regions.by_start.keys().copied().collect()
    }

    #[test]
    fn a_region_takes_the_place_of_what_it_overlaps() {
        let mut regions = Regions::default();
        for (start, end) in [(10, 20), (20, 30), (40, 50), (25, 45)] {
            regions.insert(region(start, end, 0)).unwrap();
        }
        assert_eq!(starts(&regions), [10, 25]);
        let found = |at: u64| regions.find(at).map(|region| region.start);
        assert_eq!(
            [9, 10, 19, 20, 25, 44, 45].map(found),
            [None, Some(10), Some(10), None, Some(25), Some(25), None]
        );
    }

    #[test]
    fn what_is_mapped_over_is_gone_but_not_what_changes_its_rights() {
        let mut regions = Regions::default();
        for (start, inode) in [(10, 0), (20, 7), (30, 0)] {
            regions.insert(region(start, start + 10, inode)).unwrap();
        }
        regions.mapped(15..25, 0);
        assert_eq!(starts(&regions), [10, 30]);
        regions.mapped(0..35, 9);
        assert!(regions.is_empty());
    }

    #[test]
    fn the_number_of_regions_is_bounded() {
        let mut regions = Regions::default();
        for n in 0..REGIONS_MAX as u64 {
            regions.insert(region(n * 10, n * 10 + 5, 0)).unwrap();
        }
        assert!(regions.insert(region(7, 9, 0)).unwrap_err().contains("; "));
        regions.insert(region(0, 5, 0)).unwrap();
        assert_eq!(regions.len(), REGIONS_MAX);
    }

    #[test]
    fn what_is_told_is_held_against_the_process() {
        let pid = std::process::id();
        let text = executable_mappings(pid)
            .unwrap()
            .into_iter()
            .find(|line| inode_of(&line.file) != 0)
            .unwrap();
        let exe = std::env::current_exe().unwrap();
        let good = Registration {
            pid,
            start: text.start,
            len: 16,
            name: "f".into(),
            ..Registration::default()
        };
        let (_, region) = check(&good).unwrap();
        assert_eq!(
            (region.start, region.end, region.inode),
            (text.start, text.start + 16, inode_of(&text.file))
        );
        let file =
            check(&Registration { file: Some(exe.clone()), offset: 5, ..good.clone() }).unwrap().1;
        let id = image::identify_file(&std::fs::File::open(&exe).unwrap()).unwrap();
        assert!(matches!(
            file.shows,
            Shows::File(image, 5) if image.id == id && image.path == exe.to_str().unwrap()
        ));
        for (told, word) in [
            (Registration { pid: u32::MAX, ..good.clone() }, "no process"),
            (Registration { len: 0, ..good.clone() }, "no region"),
            (Registration { len: u64::MAX, ..good.clone() }, "no region"),
            (Registration { len: 1 << 45, ..good.clone() }, "no executable mapping"),
            (Registration { start: 16, ..good.clone() }, "no executable mapping"),
            (Registration { name: " ".into(), ..good.clone() }, "NAME"),
            (Registration { name: "a\nb".into(), ..good.clone() }, "NAME"),
            (Registration { image: Some(String::new()), ..good.clone() }, "--image"),
            (Registration { file: Some("relative".into()), ..good.clone() }, "absolute"),
            (Registration { file: Some("/dev/null".into()), ..good.clone() }, "plain"),
            (Registration { file: Some("/proc/self/status".into()), ..good.clone() }, "ELF"),
            (Registration { file: Some("/none".into()), ..good.clone() }, "No such file"),
        ] {
            let line = check(&told).unwrap_err();
            assert!(line.contains(word) && line.contains("; "), "{told:?}: {line}");
        }
    }
}
