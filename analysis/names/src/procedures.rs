//! From offsets in images to procedures.
//!
//! Each image's procedures are read only if it has samples, one image at a time on each CPU, and
//! let go once its samples have names: a machine's images together would take gigabytes.
//!
//! They come from the file itself if it is still the same build, with its debug file; else from
//! what the daemon kept of it, with the debug file and the names that its host sent; else, and for
//! what is not a file, from the symbols that the daemon recorded beside the samples.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::sync::Arc;

use image::{
    Binary, DebugInfo, Finding, ImageError, ImageKind, ImageOffset, Lines, Procedure, Procedures,
    Vaddr,
};

use crate::debuginfod::Debuginfod;
use crate::inlined::{self, Inside};
use crate::{named, parallel};
use model::SourcePlace;
use query::load::{ImageSamples, Samples};
use query::problem::{self, NoProcedures, Problem};
use query::{progress, unresolved};
use stats::tally::Tally;

/// Files with procedures, besides the images themselves and the database.
#[derive(Clone, Debug)]
pub struct Places {
    /// Directories of separate debug files.
    pub debug_roots: Vec<PathBuf>,
    /// Directories that may have a `System.map-RELEASE`.
    pub system_maps: Vec<PathBuf>,
    /// The debuginfod client, if the user named a server.
    pub debuginfod: Option<Debuginfod>,
}

impl Places {
    /// The places of the system, after `debug_roots`, the directories that the user named.
    pub fn with_debug_roots(mut debug_roots: Vec<PathBuf>) -> Self {
        debug_roots.extend(image::default_debug_roots());
        // Distributions whose /boot has a stub keep the map with the debug files (Debian).
        let mut system_maps = vec![PathBuf::from("/boot")];
        system_maps.extend(debug_roots.iter().map(|root| root.join("boot")));
        Self { debug_roots, system_maps, debuginfod: Debuginfod::from_environment() }
    }
}

/// The samples of an image, by procedure.
#[derive(Debug)]
pub struct ByProcedure {
    /// Procedures with samples, in no particular order.
    pub rows: Vec<Counted>,
    /// Missing or doubtful names.
    pub problems: Vec<Problem>,
}

/// A place with samples.
#[derive(Debug)]
pub struct Counted {
    /// The place.
    pub place: Place,
    /// Samples by event.
    pub counts: Vec<Tally>,
}

/// What samples are attributed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Procedures, with the functions that are inlined into them.
    Procedures,
    /// Functions: where some are inlined into a procedure, the innermost.
    Functions,
    /// The same, each at its source lines.
    Lines,
}

/// A line of a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLine {
    /// The file, as debug information or an interpreter names it.
    pub file: Arc<str>,
    /// The line: from 1 on.
    pub line: u32,
}

/// A procedure, or what samples are attributed to without one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A procedure.
    Procedure {
        /// Its name, demangled.
        name: String,
        /// Its first byte: in a file the address that `nm` and `objdump` show; else the offset in
        /// the image.
        address: u64,
    },
    /// A function that is inlined into a procedure, by its name.
    Inlined(Arc<str>),
    /// A place outside of all procedures of the image.
    Unknown,
    /// An image whose procedures are not known, with the reason.
    NoProcedures(&'static str),
    /// Unknown code, with the name of the reason.
    Unresolved(String),
}

impl Place {
    /// A procedure's name, or words in brackets.
    pub fn name(&self) -> String {
        match self {
            Self::Procedure { name, .. } => name.clone(),
            Self::Inlined(name) => name.to_string(),
            Self::Unknown => inlined::UNKNOWN.to_owned(),
            Self::NoProcedures(why) => format!("[no procedures: {why}]"),
            Self::Unresolved(reason) => unresolved::name(reason),
        }
    }

    /// The address of a procedure's first byte.
    pub const fn address(&self) -> Option<u64> {
        match self {
            Self::Procedure { address, .. } => Some(*address),
            _ => None,
        }
    }
}

/// The place of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The procedure.
    pub place: Place,
    /// The functions that are inlined there, the outermost first; empty unless they were asked for.
    pub inlined: Box<[Arc<str>]>,
    /// The source lines of the procedure and of each of these functions; empty unless they were
    /// asked for and are known.
    pub lines: Box<[Option<SourceLine>]>,
    /// Bytes from the start of the procedure; 0 where there is none.
    pub into: u64,
    /// Its address, as [`Place::Procedure`]'s.
    pub address: u64,
}

/// The places of an image's instructions, in the order of `offsets`, and missing or doubtful names.
pub fn locate(
    samples: &Samples,
    image: &ImageSamples,
    (offsets, rows): (&[ImageOffset], Rows),
    places: &Places,
) -> (Vec<Located>, Vec<Problem>) {
    let mut problems = Vec::new();
    let known = known(samples, image, places, Needed::At(offsets), &mut problems);
    let inside = match &known {
        Ok(known) if rows != Rows::Procedures => {
            let asked = (offsets, rows == Rows::Lines);
            inlined::inside((image, known), asked, &places.debug_roots, &mut problems)
        }
        _ => Vec::new(),
    };
    let mut inside = inside.into_iter();
    let file: Arc<str> = image.record.path_or_name().into();
    let is_script = rows == Rows::Lines && image.record.id.is_name();
    let at = |offset: &ImageOffset| {
        let Inside { inlined, mut lines } = inside.next().unwrap_or_default();
        let unnamed = |place| Located {
            place,
            inlined: [].into(),
            lines: [].into(),
            into: 0,
            address: offset.0,
        };
        match &known {
            Err(why) => unnamed(Place::NoProcedures(why.short())),
            Ok(known) => {
                let address = known.address(*offset);
                let procedure = known.procedures.find(*offset);
                procedure.map_or(Located { address, ..unnamed(Place::Unknown) }, |procedure| {
                    let place = SourcePlace::of(*offset);
                    // The functions of a script have places of its source for addresses.
                    let range = procedure.start.0..procedure.end.0;
                    if is_script && place.function() == range && place.line > 0 {
                        let (file, line) = (Arc::clone(&file), place.line);
                        lines = [Some(SourceLine { file, line })].into();
                    }
                    Located {
                        place: known.place(procedure),
                        inlined,
                        lines,
                        into: offset.0.saturating_sub(procedure.start.0),
                        address,
                    }
                })
            }
        }
    };
    let located = offsets.iter().map(at).collect();
    if let Err(why) = known {
        let (counts, id, image) =
            (image.sample_totals(), image.record.id, image.record.name.clone());
        problems.push(Problem::NoProcedures { image, id, counts, why });
    }
    (located, problems)
}

/// The samples of each image by procedure or function, in the order of `images`.
pub fn attribute(
    samples: &Samples,
    images: &[&ImageSamples],
    rows: Rows,
    places: &Places,
) -> Vec<ByProcedure> {
    each_image(images, |image| attribute_image(samples, image, rows, places))
}

/// Results of `work` on each image, in the order of images: on all CPUs, one image at a time on
/// each.
pub fn each_image<T: Send>(
    images: &[&ImageSamples],
    work: impl Fn(&ImageSamples) -> T + Send + Sync,
) -> Vec<T> {
    let mut made = Vec::with_capacity(images.len());
    let stage = progress::stage("looking up procedures", images.len() as u64);
    parallel::each(images, work, |of_image| {
        made.push(of_image);
        stage.advance(1);
    });
    made
}

fn attribute_image(
    samples: &Samples,
    image: &ImageSamples,
    rows: Rows,
    places: &Places,
) -> ByProcedure {
    let mut problems = Vec::new();
    if let Some(reason) = image.unresolved() {
        let rows =
            vec![Counted { place: Place::Unresolved(reason.to_owned()), counts: image.totals() }];
        return ByProcedure { rows, problems };
    }
    let offsets = image.offsets();
    match known(samples, image, places, Needed::At(&offsets), &mut problems) {
        Ok(known) => {
            let mut innermost = HashMap::new();
            if rows != Rows::Procedures {
                let roots = &places.debug_roots;
                let asked = (offsets.as_slice(), false);
                let inside = inlined::inside((image, &known), asked, roots, &mut problems);
                let at = offsets.iter().zip(inside);
                innermost.extend(at.filter_map(|(at, of)| Some((*at, of.inlined.last()?.clone()))));
            }
            let rows = count(image, &known, &innermost);
            problems.extend(known.stripped.then(|| nameless(image, &rows)).flatten());
            ByProcedure { rows, problems }
        }
        Err(why) => {
            let counted =
                Counted { place: Place::NoProcedures(why.short()), counts: image.totals() };
            problems.push(Problem::NoProcedures {
                image: image.record.name.clone(),
                id: image.record.id,
                counts: image.sample_totals(),
                why,
            });
            ByProcedure { rows: vec![counted], problems }
        }
    }
}

/// The procedures of an image that are needed: a few are found in a fraction of the time.
#[derive(Clone, Copy, Debug)]
pub enum Needed<'a> {
    /// All of them.
    All,
    /// Those at these offsets; the result may have others, too.
    At(&'a [ImageOffset]),
}

impl Needed<'_> {
    pub(crate) fn of(
        self,
        binary: &Binary,
        places: &Places,
    ) -> Result<(Procedures, Vec<Finding>), ImageError> {
        match self {
            Self::All => binary.procedures(&places.debug_roots),
            Self::At(offsets) => binary.procedures_at(&places.debug_roots, offsets),
        }
    }
}

/// Procedures and code of an image.
#[derive(Debug)]
pub struct Known {
    /// Its procedures, at least those that were needed.
    pub procedures: Procedures,
    /// The file, or the code that dcpid kept: for a file, the vdso and generated code.
    pub binary: Option<Binary>,
    /// Whether neither the file nor a debug file has a symbol table.
    pub stripped: bool,
}

impl Known {
    /// The address of an offset as reports show it: in a file as `nm` and `objdump`; else the
    /// offset in the image.
    pub fn address(&self, offset: ImageOffset) -> u64 {
        let vaddr =
            self.binary.as_ref().and_then(|binary| binary.layout().file_offset_to_vaddr(offset));
        vaddr.map_or(offset.0, |vaddr| vaddr.0)
    }

    /// The offset of an address as reports show it.
    pub fn offset(&self, address: u64) -> Option<ImageOffset> {
        match &self.binary {
            Some(binary) => binary.layout().vaddr_to_file_offset(Vaddr(address)),
            None => Some(ImageOffset(address)),
        }
    }

    /// The aliases of a procedure: other symbols of the image at its first instruction.
    pub fn aliases(&self, procedure: &Procedure, places: &Places) -> Vec<String> {
        let is_other = |at, name: &str| at == procedure.start && name != procedure.raw_name();
        let found = self
            .binary
            .as_ref()
            .and_then(|binary| binary.symbols(&places.debug_roots, is_other).ok());
        found.into_iter().flatten().map(|(_, name)| name).collect()
    }

    /// The debug information of the image. Without it `problems` gets the reason.
    pub fn debug_info(
        &self,
        image: &ImageSamples,
        places: &Places,
        problems: &mut Vec<Problem>,
    ) -> Option<DebugInfo> {
        let mut findings = Vec::new();
        let binary = self.binary.as_ref().filter(|_| image.record.kind != ImageKind::Jit)?;
        if let Some(info) = DebugInfo::of(binary, &places.debug_roots, &mut findings) {
            return Some(info);
        }
        let mut why: Vec<String> = findings.iter().map(Finding::to_string).collect();
        if let Some((debuginfod, build)) = places.debuginfod.as_ref().zip(binary.build_id()) {
            let fetched = debuginfod.fetch(&build).and_then(|path| {
                let info = DebugInfo::of_debug_file(&path, &build, &places.debug_roots)
                    .map_err(|error| error.to_string())?;
                info.ok_or_else(|| format!("{} has no debug information", path.display()))
            });
            match fetched {
                Ok(info) => return Some(info),
                Err(error) => why.push(format!("debuginfod: {error}")),
            }
        }
        problems.push(no_lines(image, why.into_iter().reduce(|all, one| format!("{all}; {one}"))));
        None
    }

    fn place(&self, procedure: &Procedure) -> Place {
        Place::Procedure {
            name: procedure.name().to_owned(),
            address: self.address(procedure.start),
        }
    }
}

/// The source lines of an image. Without them `problems` gets the reason.
pub fn lines<'a>(
    info: &'a DebugInfo,
    image: &ImageSamples,
    problems: &mut Vec<Problem>,
) -> Option<Lines<'a>> {
    info.lines().map_err(|error| problems.push(no_lines(image, Some(error.to_string())))).ok()
}

/// The problem of an image without source lines, with the reason if it is known.
pub fn no_lines(image: &ImageSamples, why: Option<String>) -> Problem {
    Problem::NoLines {
        image: image.record.name.clone(),
        id: image.record.id,
        counts: image.sample_totals(),
        why,
    }
}

/// `innermost` has the innermost function that is inlined at an offset.
fn count(
    image: &ImageSamples,
    known: &Known,
    innermost: &HashMap<ImageOffset, Arc<str>>,
) -> Vec<Counted> {
    let mut by_start: BTreeMap<(Option<ImageOffset>, Option<&Arc<str>>), Counted> = BTreeMap::new();
    // Compilers make a procedure again and again, at other addresses each time: it is still one,
    // and its address is that of the piece with the most samples, which `dcpi list` shows.
    let mut main_of: HashMap<&str, (u64, ImageOffset)> = HashMap::new();
    if image.record.kind == ImageKind::Jit {
        for procedure in &known.procedures {
            let piece = (named::samples(image, procedure), procedure.start);
            let main = main_of.entry(procedure.raw_name()).or_insert(piece);
            if piece.0 > main.0 {
                *main = piece;
            }
        }
    }
    let events = image.profiles.len();
    for (event, profile) in image.profiles.iter().enumerate() {
        for (offset, samples) in profile.iter() {
            let procedure = known.procedures.find(offset);
            let main = procedure
                .and_then(|procedure| known.procedures.find(main_of.get(procedure.raw_name())?.1));
            let procedure = main.or(procedure);
            let inlined = procedure.and_then(|_| innermost.get(&offset));
            let begin = procedure.filter(|_| inlined.is_none()).map(|procedure| procedure.start);
            let counted = by_start.entry((begin, inlined)).or_insert_with(|| Counted {
                place: match (inlined, procedure) {
                    (Some(name), _) => Place::Inlined(name.clone()),
                    (None, Some(procedure)) => known.place(procedure),
                    (None, None) => Place::Unknown,
                },
                counts: vec![Tally::default(); events],
            });
            if let Some(count) = counted.counts.get_mut(event) {
                *count += samples;
            }
        }
    }
    by_start.into_values().collect()
}

/// The problem of samples in procedures that have an address for a name.
fn nameless(image: &ImageSamples, rows: &[Counted]) -> Option<Problem> {
    let is_nameless = |place: &Place| match place {
        Place::Procedure { name, address } => *name == format!("{address:#x}"),
        _ => false,
    };
    let mut counts = vec![0_u64; image.profiles.len()];
    for row in rows.iter().filter(|row| is_nameless(&row.place)) {
        for (sum, count) in counts.iter_mut().zip(&row.counts) {
            *sum = sum.saturating_add(count.samples);
        }
    }
    let any = counts.iter().any(|count| *count > 0);
    any.then(|| Problem::Stripped { image: image.record.name.clone(), id: image.record.id, counts })
}

/// Finds an image's procedures: of a file in the file, if it is still the same build, or in what
/// was kept of it; else, as for the kernel and all that is not a file, among the symbols that the
/// daemon recorded.
pub fn known(
    samples: &Samples,
    image: &ImageSamples,
    places: &Places,
    needed: Needed<'_>,
    problems: &mut Vec<Problem>,
) -> Result<Known, NoProcedures> {
    let why = if image.record.kind == ImageKind::File {
        match in_files(image, places, needed) {
            Ok(known) => return Ok(known),
            Err(why) => match in_code_store(samples, image, places, needed, problems) {
                Some(mut known) => {
                    let list = recorded(samples, image, problems);
                    if !list.is_empty() {
                        known.procedures = with_recorded(&known.procedures, list);
                    }
                    let (counts, id, image) =
                        (image.sample_totals(), image.record.id, image.record.name.clone());
                    problems.push(Problem::FromCodeStore { image, id, counts, why });
                    return Ok(known);
                }
                None => why,
            },
        }
    } else {
        NoProcedures::NotRecorded
    };
    let list = recorded(samples, image, problems);
    if !list.is_empty() {
        // The daemon keeps the code of these, which is in no file.
        let kept = matches!(image.record.kind, ImageKind::Vdso | ImageKind::Jit)
            .then(|| samples.code(image, problems))
            .flatten();
        let binary = kept.and_then(|kept| Binary::of_kept(kept, None, Some(&image.record.id)).ok());
        return Ok(Known { procedures: Procedures::from_list(list), binary, stripped: false });
    }
    if image.record.kind == ImageKind::Kernel
        && let Some(known) = in_system_map(samples, image, places, problems)
    {
        return Ok(known);
    }
    Err(why)
}

/// The procedures of the symbols that an epoch has of an image.
fn recorded(
    samples: &Samples,
    image: &ImageSamples,
    problems: &mut Vec<Problem>,
) -> Vec<Procedure> {
    let symbols = samples.symbols(image).unwrap_or_else(|error| {
        problem::add_unreadable(problems, error);
        Vec::new()
    });
    symbols
        .into_iter()
        .map(|s| Procedure::new(ImageOffset(s.start), ImageOffset(s.end), s.name))
        .collect()
}

/// The procedures of kept code, except where the epoch has symbols that its host added: it had the
/// file and its debug file, which name more than the kept code does.
fn with_recorded(of_code: &Procedures, recorded: Vec<Procedure>) -> Procedures {
    let recorded = Procedures::from_list(recorded);
    let is_free = |procedure: &&Procedure| {
        let last = ImageOffset(procedure.end.0.saturating_sub(1));
        recorded.find(procedure.start).is_none() && recorded.find(last).is_none()
    };
    Procedures::from_list(recorded.iter().chain(of_code.iter().filter(is_free)).cloned())
}

/// Looks for the image's build at each path that the image had, the latest path first.
pub fn in_files(
    image: &ImageSamples,
    places: &Places,
    needed: Needed<'_>,
) -> Result<Known, NoProcedures> {
    let mut why = NoProcedures::FileGone;
    for path in &image.paths {
        let opened = Binary::open(path, Some(&image.record.id));
        match opened.and_then(|binary| Ok((needed.of(&binary, places)?, binary))) {
            Ok(((procedures, _), _)) if procedures.is_empty() => why = NoProcedures::NoneInFile,
            Ok(((procedures, findings), binary)) => {
                let stripped = findings.iter().any(|finding| matches!(finding, Finding::Stripped));
                return Ok(Known { procedures, binary: Some(binary), stripped });
            }
            Err(ImageError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Err(ImageError::WrongBuild { found, .. }) => why = NoProcedures::FileChanged { found },
            Err(error) => why = NoProcedures::FileUnreadable { error },
        }
    }
    Err(why)
}

/// Reads the code that dcpid kept of the file. A debug file may still be in the system's
/// directories, or where the file was.
fn in_code_store(
    samples: &Samples,
    image: &ImageSamples,
    places: &Places,
    needed: Needed<'_>,
    problems: &mut Vec<Problem>,
) -> Option<Known> {
    let kept = samples.code(image, problems)?;
    let path = image.paths.first().map(PathBuf::as_path);
    let binary = Binary::of_kept(kept, path, Some(&image.record.id)).ok()?;
    let (procedures, findings) = needed.of(&binary, places).ok()?;
    let stripped = findings.iter().any(|finding| matches!(finding, Finding::Stripped));
    (!procedures.is_empty()).then_some(Known { procedures, binary: Some(binary), stripped })
}

/// The kernel's procedures from the symbol list that its build left, by its release: a stop-gap for
/// kernels that hid their addresses from the daemon. The list has no build id to check.
fn in_system_map(
    samples: &Samples,
    image: &ImageSamples,
    places: &Places,
    problems: &mut Vec<Problem>,
) -> Option<Known> {
    // Other code of the kernel (its trampolines) has offsets of its own.
    if image.record.name != "[kernel]" {
        return None;
    }
    let epoch = image.epochs.iter().find_map(|&at| samples.epochs.get(at))?;
    let release = &epoch.meta().machine.kernel_release;
    // The name of a file in a directory of ours, nothing else: it comes from a stranger's database.
    if release.is_empty() || release.contains('/') {
        return None;
    }
    for directory in &places.system_maps {
        let map = directory.join(format!("System.map-{release}"));
        let procedures = File::open(&map).ok().map(BufReader::new).map(image::kernel::system_map);
        if let Some(Ok(procedures)) = procedures
            && !procedures.is_empty()
        {
            let (image, id) = (image.record.name.clone(), image.record.id);
            problems.push(Problem::KernelMapUnchecked { image, id, map });
            return Some(Known { procedures, binary: None, stripped: false });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageId;
    use model::Profile;
    use profiledb::ImageRecord;
    use stats::tally::Weighed;

    fn counted(kind: ImageKind) -> Vec<(Place, Vec<u64>)> {
        let id = ImageId::from_name("x", "");
        let record = ImageRecord {
            id,
            kind,
            name: "x".into(),
            path: String::new(),
            size_bytes: None,
            first_seen_unix_s: 0,
            last_seen_unix_s: 0,
        };
        let counts = [(0x10, 1), (0x20, 2), (0x30, 4), (0x90, 8)]
            .map(|(offset, n)| (ImageOffset(offset), n));
        let mut profile = Weighed::default();
        profile.add(1.0, Profile::from_counts(counts));
        let profiles = vec![profile];
        let image = ImageSamples {
            record,
            paths: Vec::new(),
            wanted: true,
            profiles,
            epochs: Vec::new(),
            scopes: Default::default(),
            by_scope: Default::default(),
        };
        let list = [(0x10, "hot"), (0x20, "other"), (0x30, "hot")];
        let list = list.map(|(start, name)| {
            Procedure::new(ImageOffset(start), ImageOffset(start + 0x10), name)
        });
        let known =
            Known { procedures: Procedures::from_list(list), binary: None, stripped: false };
        count(&image, &known, &HashMap::new())
            .into_iter()
            .map(|row| (row.place, stats::tally::samples(&row.counts)))
            .collect()
    }

    /// A procedure that a compiler had made again ten times was ten rows.
    #[test]
    fn code_made_again_is_the_same_procedure_but_statics_of_one_name_are_two() {
        let row = |name: &str, address, count| {
            (Place::Procedure { name: name.into(), address }, vec![count])
        };
        let unknown = (Place::Unknown, vec![8]);
        let expected = [unknown.clone(), row("other", 0x20, 2), row("hot", 0x30, 5)];
        assert_eq!(counted(ImageKind::Jit), expected);
        assert_eq!(
            counted(ImageKind::File),
            [unknown, row("hot", 0x10, 1), row("other", 0x20, 2), row("hot", 0x30, 4)]
        );
    }
}
