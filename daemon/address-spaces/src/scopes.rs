//! Scopes and exclusions: the rules from the settings, and the tags that these rules and labels
//! give to each process.
//!
//! Unused rules have no cost per sample: a process without label, unit and exclusion has no scope.

use crate::cgroups::{self, Pattern};
use crate::mapped_files::Image;
use crate::system::System;
use profiledb::{ImageRecord, Scope};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Different labels in force at once. A label is forgotten with the last process that has it.
pub const LABELS_MAX: usize = 1024;
/// Different scopes in force at once, processes that are kept apart not counted. Beyond it a
/// process has no unit.
pub const SCOPES_MAX: usize = profiledb::SCOPES_MAX;

/// Containers whose images are remembered. Beyond it all are asked for again.
const CONTAINERS_MAX: usize = 4096;
/// Numbers of scopes that the sampler can have at once: each scope left out and not.
const KERNEL_SCOPES_MAX: usize = 8194;
const _: () = assert!(KERNEL_SCOPES_MAX == 2 * SCOPES_MAX + 2);

/// The rules by which samples are kept apart or left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rules {
    /// Samples are told apart by systemd unit or container.
    pub by_unit: bool,
    /// Images whose samples are told apart by process.
    pub per_process: Images,
    /// Images whose samples are left out.
    pub exclude_images: Images,
    /// Control groups whose processes' samples are left out.
    pub exclude_cgroups: Vec<Pattern>,
    /// Processes whose samples are left out, with those of their children.
    pub exclude_pids: Vec<u32>,
}

/// Images that a user names, by name or path.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Images(BTreeSet<String>);

impl Images {
    /// The images of these names. A path also means the file that it leads to now: what is mapped
    /// has the path without symbolic links.
    pub fn new(names: &[String]) -> Self {
        let real = names
            .iter()
            .filter(|name| name.starts_with('/'))
            .filter_map(|name| Path::new(name).canonicalize().ok());
        let given = names.iter().map(|name| ImageRecord::escape_path(Path::new(name)));
        Self(given.chain(real.map(|path| ImageRecord::escape_path(&path))).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the list contains this image.
    pub fn contain(&self, image: &Image) -> bool {
        self.contain_file(&image.name, &image.path)
    }

    /// Whether the image of that name and path is meant.
    pub fn contain_file(&self, name: &str, path: &str) -> bool {
        !self.0.is_empty() && (self.0.contains(name) || self.0.contains(path))
    }
}

impl Rules {
    /// Whether any rule needs the control groups of processes.
    pub fn want_cgroups(&self) -> bool {
        self.by_unit || !self.exclude_cgroups.is_empty()
    }
}

/// The tags of the processes that run in an address space.
#[derive(Clone, Debug, Default)]
pub struct Tags {
    /// Label and unit; None: neither.
    scope: Option<Arc<Scope>>,
    /// The process, or one that it is a child of, is left out.
    excluded: bool,
    /// Its control group is left out.
    cgroup_excluded: bool,
    /// The control group must be read before the first sample of the process, and again after an
    /// exec: service managers and container engines exec after they have moved the process into its
    /// group.
    unread: bool,
}

impl Tags {
    /// Whether samples are left out.
    pub fn excluded(&self) -> bool {
        self.excluded || self.cgroup_excluded
    }

    /// The scope of the samples; None: no particular scope.
    pub fn scope(&self) -> Option<&Arc<Scope>> {
        self.scope.as_ref()
    }

    /// Whether the control group is to be read.
    pub fn unread(&self) -> bool {
        self.unread
    }

    /// Sets whether the control group is still to be read.
    pub fn with_unread(&self, unread: bool) -> Tags {
        Tags { unread, ..self.clone() }
    }

    /// The scope of these tags, with the process apart.
    pub fn of_process(&self, pid: u32) -> Arc<Scope> {
        let scope = self.scope.as_deref().cloned().unwrap_or_default();
        Arc::new(Scope { pid: Some(pid).filter(|pid| *pid > 0), ..scope })
    }
}

/// Gives processes their tags.
#[derive(Debug, Default)]
pub struct Tagger {
    rules: Rules,
    /// Each once; those that no process has any more are let go when there are too many.
    scopes: HashSet<Arc<Scope>>,
    /// Processes whose unit was not told apart because there were too many.
    pub refused: u64,
    /// Numbers under which the sampler counts kernel code.
    kernel_scopes: KernelScopes,
    /// Images of containers by id; none where no engine tells it.
    images: HashMap<String, Option<String>>,
}

/// The scopes that the sampler knows by number, each with whether its samples are left out. Numbers
/// are not given a second time: the sampler may still have one of a scope that is long gone.
#[derive(Debug, Default)]
struct KernelScopes {
    by_number: BTreeMap<u32, (Scope, bool)>,
    numbers: HashMap<(Scope, bool), u32>,
    last: u32,
}

impl Tagger {
    /// With these rules.
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether any process may have been given tags, so that a new one may inherit some.
    pub fn in_use(&self) -> bool {
        !self.scopes.is_empty() || !self.rules.exclude_pids.is_empty()
    }

    /// Whether a process may have any tags at all.
    pub fn gives_tags(&self) -> bool {
        self.in_use() || self.rules.want_cgroups()
    }

    /// The tags of a process about which nothing is known yet.
    pub fn unknown(&self) -> Tags {
        Tags { unread: self.rules.want_cgroups(), ..Tags::default() }
    }

    /// The tags of a process that is left out from now on.
    pub fn left_out(&self, tags: &Tags) -> Tags {
        Tags { excluded: true, ..tags.clone() }
    }

    /// The tags of a labelled process; None when there are too many labels.
    pub fn labelled(&mut self, tags: &Tags, label: &str) -> Option<Tags> {
        let labels = self.labels();
        if labels.len() >= LABELS_MAX && !labels.contains(label) {
            return None;
        }
        let unit = tags.scope.as_ref().and_then(|scope| scope.unit.clone());
        let scope = self.intern(Scope { label: Some(label.to_owned()), unit, pid: None });
        Some(Tags { scope, ..tags.clone() })
    }

    /// The tags of a process whose control group was read; None: the process is gone and keeps its
    /// inherited tags.
    pub fn read(&mut self, tags: &Tags, cgroup: Option<&[u8]>, system: &System) -> Tags {
        let Some(path) = cgroup else { return Tags { unread: false, ..tags.clone() } };
        let unit = cgroups::unit_name(path);
        let cgroup_excluded =
            self.rules.exclude_cgroups.iter().any(|pattern| pattern.means(path, unit.as_deref()));
        let label = tags.scope.as_ref().and_then(|scope| scope.label.clone());
        let unit = unit.filter(|_| self.rules.by_unit && !cgroup_excluded);
        let unit = unit.map(|unit| self.with_image(unit, path, system));
        let scope = self.intern(Scope { label, unit, pid: None });
        Tags { scope, cgroup_excluded, unread: false, ..tags.clone() }
    }

    /// The name of a unit; of a container, with the image that it was made of.
    fn with_image(&mut self, unit: String, path: &[u8], system: &System) -> String {
        let Some(id) = cgroups::container_id(path) else { return unit };
        if self.images.len() >= CONTAINERS_MAX {
            self.images.clear();
        }
        let image = self.images.entry(id).or_insert_with_key(|id| system.image_of_container(id));
        match image {
            Some(image) => cgroups::with_image(&unit, image),
            None => unit,
        }
    }

    /// Labels in force, and of processes whose samples wait for the disk.
    pub fn labels(&self) -> BTreeSet<String> {
        let in_force = self.scopes.iter().filter(|scope| Arc::strong_count(scope) > 1);
        in_force.filter_map(|scope| scope.label.clone()).collect()
    }

    /// The number of a scope, 1 or higher. The sampler counts kernel code under it while a process
    /// with these tags runs. 0: the control group is not read yet, or there are too many scopes;
    /// the sampler then counts by process.
    pub fn kernel_scope(&mut self, tags: &Tags) -> u32 {
        if tags.unread() {
            return 0;
        }
        let known = &mut self.kernel_scopes;
        let key = (tags.scope.as_deref().cloned().unwrap_or_default(), tags.excluded());
        if let Some(number) = known.numbers.get(&key) {
            return *number;
        }
        if known.numbers.len() >= KERNEL_SCOPES_MAX {
            let in_force = |(scope, _): &(Scope, bool)| {
                let used = self.scopes.get(scope).is_some_and(|scope| Arc::strong_count(scope) > 1);
                scope.is_empty() || used
            };
            known.by_number.retain(|_, key| in_force(key));
            known.numbers.retain(|key, _| in_force(key));
        }
        let Some(number) =
            known.last.checked_add(1).filter(|_| known.numbers.len() < KERNEL_SCOPES_MAX)
        else {
            return 0;
        };
        known.last = number;
        known.by_number.insert(number, key.clone());
        known.numbers.insert(key, number);
        number
    }

    /// The tags of kernel code that was counted under that number; None: the scope is gone.
    pub fn of_kernel_scope(&mut self, number: u32) -> Option<Tags> {
        let (scope, excluded) = self.kernel_scopes.by_number.get(&number)?.clone();
        Some(Tags { scope: self.intern(scope), excluded, ..Tags::default() })
    }

    fn intern(&mut self, scope: Scope) -> Option<Arc<Scope>> {
        if scope.is_empty() {
            return None;
        }
        if let Some(known) = self.scopes.get(&scope) {
            return Some(known.clone());
        }
        if self.scopes.len() >= SCOPES_MAX {
            self.scopes.retain(|scope| Arc::strong_count(scope) > 1);
        }
        // There is always room for labels, because their number is limited.
        if self.scopes.len() >= SCOPES_MAX && scope.unit.is_some() {
            self.refused += 1;
            return self.intern(scope.widened());
        }
        let scope = Arc::new(scope);
        self.scopes.insert(scope.clone());
        Some(scope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageId, ImageKind};

    fn image(path: &str) -> Image {
        let name = path.rsplit('/').next().unwrap().to_owned();
        let (id, kind) = (ImageId::from_name(path, ""), ImageKind::File);
        Image { id, kind, name, path: path.to_owned(), size_bytes: None, procedures: None }
    }

    #[test]
    fn images_are_named_by_name_or_path() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap().join("program");
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, directory.path().join("link")).unwrap();
        let link = directory.path().join("link").to_str().unwrap().to_owned();
        for (named, path, means) in [
            ("bash", "/usr/bin/bash", true),
            ("/usr/bin/bash", "/usr/bin/bash", true),
            ("bin/bash", "/usr/bin/bash", false),
            ("bas", "/usr/bin/bash", false),
            ("[kernel]", "[kernel]", true),
            ("line\nbreak", "/tmp/line\\x0abreak", true),
            (&link, real.to_str().unwrap(), true),
        ] {
            assert_eq!(
                Images::new(&[named.to_owned()]).contain(&image(path)),
                means,
                "{named} {path}"
            );
        }
        assert!(!Images::default().contain(&image("")));
    }

    #[test]
    fn a_label_outlives_units_and_both_make_a_scope() {
        let mut tagger = Tagger::new(Rules { by_unit: true, ..Rules::default() });
        let nobody = tagger.unknown();
        assert!(nobody.unread() && nobody.scope().is_none() && !nobody.excluded());
        let labelled = tagger.labelled(&nobody, "run").unwrap();
        let read = tagger.read(&labelled, Some(b"/system.slice/a.service"), &System::default());
        let scope = |tags: &Tags| {
            let scope = tags.scope().unwrap();
            (scope.label.clone().unwrap_or_default(), scope.unit.clone().unwrap_or_default())
        };
        assert_eq!(scope(&read), ("run".into(), "a.service".into()));
        assert!(!read.unread());
        assert_eq!(
            scope(&tagger.read(&read.with_unread(true), None, &System::default())),
            scope(&read),
            "gone: as inherited"
        );
        let moved = read.with_unread(true);
        assert_eq!(
            scope(&tagger.read(&moved, Some(b"/"), &System::default())),
            ("run".into(), String::new())
        );
        assert_eq!(
            scope(&tagger.labelled(&read, "again").unwrap()),
            ("again".into(), "a.service".into())
        );
        assert_eq!(read.of_process(7).pid, Some(7));
        assert!(Arc::ptr_eq(
            tagger
                .read(&labelled, Some(b"/system.slice/a.service"), &System::default())
                .scope()
                .unwrap(),
            read.scope().unwrap()
        ));
    }

    #[test]
    fn groups_are_left_out_and_taken_in_again() {
        let rules =
            Rules { exclude_cgroups: vec![Pattern::new("/secret").unwrap()], ..Rules::default() };
        let mut tagger = Tagger::new(rules);
        let tags = tagger.unknown();
        let inside = tagger.read(&tags, Some(b"/secret/x"), &System::default());
        assert!(inside.excluded() && inside.scope().is_none());
        assert!(
            !tagger.read(&inside, Some(b"/public"), &System::default()).excluded(),
            "it was moved"
        );
        assert!(
            tagger.read(&inside.with_unread(true), None, &System::default()).excluded(),
            "gone: as before"
        );
        let process = tagger.left_out(&tags);
        assert!(
            tagger.read(&process, Some(b"/public"), &System::default()).excluded(),
            "a process is left out wherever it goes"
        );
    }

    #[test]
    fn scopes_of_kernel_code_have_numbers_of_their_own() {
        let mut tagger = Tagger::new(Rules {
            by_unit: true,
            exclude_cgroups: vec![Pattern::new("/secret").unwrap()],
            ..Rules::default()
        });
        let unread = tagger.unknown();
        assert_eq!(tagger.kernel_scope(&unread), 0, "by process until its group is read");
        let web = tagger.read(&unread, Some(b"/web.service"), &System::default());
        let number = tagger.kernel_scope(&web);
        assert!(number > 0 && tagger.kernel_scope(&web) == number);
        let none = tagger.read(&unread, Some(b"/"), &System::default());
        let secret = tagger.read(&unread, Some(b"/secret/x"), &System::default());
        let numbers = [number, tagger.kernel_scope(&none), tagger.kernel_scope(&secret)];
        assert!(numbers.is_sorted() && numbers[0] < numbers[1] && numbers[1] < numbers[2]);
        assert_eq!(tagger.of_kernel_scope(number).unwrap().scope(), web.scope());
        assert!(tagger.of_kernel_scope(numbers[1]).unwrap().scope().is_none());
        assert!(tagger.of_kernel_scope(numbers[2]).unwrap().excluded());
        assert!(tagger.of_kernel_scope(99).is_none(), "nobody's");
        drop(web);
        for n in 0..KERNEL_SCOPES_MAX {
            let tags =
                tagger.read(&unread, Some(format!("/{n}.service").as_bytes()), &System::default());
            assert!(tagger.kernel_scope(&tags) > number, "numbers are not given twice");
        }
        assert!(tagger.of_kernel_scope(number).is_none(), "its last process is gone");
        assert!(tagger.kernel_scopes.numbers.len() <= KERNEL_SCOPES_MAX);
    }

    #[test]
    fn labels_and_scopes_are_bounded_and_forgotten_with_their_processes() {
        let mut tagger = Tagger::new(Rules { by_unit: true, ..Rules::default() });
        let nobody = tagger.unknown();
        let mut kept: Vec<Tags> = (0..LABELS_MAX)
            .map(|n| tagger.labelled(&nobody, &format!("label {n}")).unwrap())
            .collect();
        assert!(tagger.labelled(&nobody, "one more").is_none());
        assert!(tagger.labelled(&nobody, "label 3").is_some(), "known ones go on");
        kept.pop();
        assert!(
            tagger.labelled(&nobody, "one more").is_some(),
            "a label ended with its last process"
        );
        let path = |n: usize| format!("/unit{n}.service").into_bytes();
        let units: Vec<Tags> = (0..SCOPES_MAX)
            .map(|n| tagger.read(&nobody, Some(&path(n)), &System::default()))
            .collect();
        assert!(tagger.refused > 0 && units.last().unwrap().scope().is_none());
        assert!(tagger.scopes.len() <= SCOPES_MAX);
        assert!(
            tagger.labelled(&nobody, "label 3").unwrap().scope().is_some(),
            "labels still have room"
        );
        drop(units);
        assert!(
            tagger.read(&nobody, Some(&path(SCOPES_MAX)), &System::default()).scope().is_some(),
            "there is room again"
        );
    }
}
