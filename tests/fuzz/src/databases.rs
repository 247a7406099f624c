//! Databases from untrusted sources: read and checked, copied and merged, shown.
//!
//! The first byte selects a file of an intact database, the others are its new content, for which
//! the checksums are corrected. tar unpacks archives of `dcpi tar`, so reading one is reading a
//! database.

use crate::images::use_kept;
use crate::segments::{apart, together};
use crate::simulated::SimulatedDisk;
use crate::{choice, files_below, memory_directory, repository};
use dcpi::command_line::{Command, Invocation, parse};
use profiledb::envelope::{Kind, open, seal};
use profiledb::storage::Storage;
use profiledb::{Database, Fault, Writer, check_on, copy_host, merge_epochs, shapes};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

/// Databases of this repository: with code, and with generated code.
const DATABASES: [&str; 2] = ["docs/example/db", "daemon/dcpid/tests/recordings/node-jit.db"];
/// Files of one database that may be changed.
const FILES_MAX: usize = 60;

/// A file that may be changed, in an otherwise intact database.
struct Changeable {
    disk: SimulatedDisk,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Changeable {
    /// The file with that content.
    fn with(&self, content: &[u8]) -> Vec<u8> {
        match open(&self.bytes) {
            Ok((Kind::Segment, _)) if apart(&self.bytes).is_some() => together(content),
            Ok((kind, _)) => seal(kind, content),
            Err(_) => content.to_vec(),
        }
    }

    /// The content of the file as it is.
    fn content(&self) -> Vec<u8> {
        match open(&self.bytes) {
            Ok((_, payload)) => apart(&self.bytes).unwrap_or_else(|| payload.to_vec()),
            Err(_) => self.bytes.clone(),
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from("/db")
}

fn changeable_of(database: &str) -> Vec<Changeable> {
    let files = files_below(&repository(database));
    let disk = SimulatedDisk::new();
    files.iter().for_each(|(path, bytes)| disk.put(&root().join(path), bytes.clone()));
    files
        .into_iter()
        .filter(|(path, _)| !path.ends_with("lock"))
        .take(FILES_MAX)
        .map(|(path, bytes)| Changeable { disk: disk.clone(), path: root().join(path), bytes })
        .collect()
}

static CHANGEABLE: LazyLock<Vec<Changeable>> =
    LazyLock::new(|| DATABASES.iter().flat_map(|database| changeable_of(database)).collect());

fn storage(disk: &SimulatedDisk) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

/// A database with a file of that content.
fn changed(bytes: &[u8]) -> Option<SimulatedDisk> {
    let (choice, content) = choice(bytes)?;
    let file = CHANGEABLE.get(usize::from(choice) % CHANGEABLE.len())?;
    let disk = file.disk.copy();
    disk.put(&file.path, file.with(content));
    Some(disk)
}

/// Reads and checks a database.
pub fn read(bytes: &[u8]) {
    let Some(disk) = changed(bytes) else { return };
    let problems = check_on(storage(&disk), &root(), u64::MAX).unwrap();
    assert!(problems.iter().all(|problem| !problem.to_string().contains('\n')));
    let Ok(database) = Database::open_on(storage(&disk), &root()) else { return };
    for host in database.hosts().unwrap() {
        for id in database.epochs(&host).unwrap() {
            let Ok(epoch) = database.epoch(&host, &id) else { continue };
            let _ = (epoch.scopes(), epoch.check_ledgers(), epoch.is_current(), epoch.size_bytes());
            for key in epoch.keys().unwrap_or_default() {
                let _ = epoch.counts(&key);
            }
            for image in epoch.images().unwrap_or_default().keys() {
                let _ = epoch.symbols(image);
            }
        }
        for image in database.code_images(&host).unwrap() {
            if let Ok(Some(kept)) = database.code(&host, &image) {
                use_kept(kept);
            }
        }
    }
}

/// Copies a database into another and merges it there; then seals it in place.
pub fn copied(bytes: &[u8]) {
    let Some(disk) = changed(bytes) else { return };
    let Ok(database) = Database::open_on(storage(&disk), &root()) else { return };
    let target = SimulatedDisk::new();
    for host in database.hosts().unwrap() {
        drop(Writer::open_on(storage(&target), &root(), &host).unwrap());
        let into = Database::open_on(storage(&target), &root()).unwrap();
        let _ = copy_host(&database, &host, &into);
        let ids = database.epochs(&host).unwrap();
        let epochs: Vec<_> = ids.iter().filter_map(|id| database.epoch(&host, id).ok()).collect();
        let _ = merge_epochs(&epochs, &into, "merged", Some("label"), &model::Facts::default());
        let _ = profiledb::seal(&database, &host);
    }
    let problems = check_on(storage(&target), &root(), u64::MAX).unwrap();
    // Copies are faithful: an image without a record has none in them either.
    let unreadable = problems.iter().find(|one| matches!(one.fault, Fault::Unreadable(_)));
    assert!(unreadable.is_none(), "what is copied can be read: {unreadable:?}");
}

/// Contents of all files.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let content = |(number, file): (usize, &Changeable)| {
        [&[u8::try_from(number).unwrap()][..], &file.content()].concat()
    };
    CHANGEABLE.iter().enumerate().map(content).collect()
}

/// The example's database in a directory, whose files may be changed, and commands that show it.
struct Shown {
    root: PathBuf,
    files: Vec<Changeable>,
    commands: Vec<Command>,
}

static SHOWN: LazyLock<Shown> = LazyLock::new(|| {
    let root = memory_directory().keep().join("db");
    for (path, bytes) in files_below(&repository(DATABASES[0])) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let command = |line: &str| {
        let words = ["dcpi"].into_iter().chain(line.split(' ')).map(Into::into);
        let database = ["--db".into(), root.clone().into_os_string()];
        match parse(words.chain(database)).unwrap() {
            Invocation::Run(command) => *command,
            _ => unreachable!("{line} shows something"),
        }
    };
    let commands = [
        "prof --epoch all",
        "prof --epoch all --lines --format json",
        "images --epoch all --format csv",
        "epochs",
        "list words look_up --epoch all",
        "topstalls --epoch all",
        "why --epoch all",
        "stats all",
        "check",
    ];
    let commands = commands.into_iter().map(command).collect();
    Shown { files: changeable_of(DATABASES[0]), commands, root }
});

/// Shows a database by commands of dcpi.
pub fn shown(bytes: &[u8]) {
    let Some((choice, content)) = choice(bytes) else { return };
    let Shown { root, files, commands } = &*SHOWN;
    let file = &files[usize::from(choice) % files.len()];
    let path = root.join(file.path.strip_prefix("/db").unwrap());
    fs::write(&path, file.with(content)).unwrap();
    for command in commands {
        let mut out = Vec::new();
        if let Err(error) = command.run(&mut out) {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
    fs::write(path, &file.bytes).unwrap();
}

/// Contents of the files of that database.
#[must_use]
pub fn shown_seeds() -> Vec<Vec<u8>> {
    let files = SHOWN.files.iter().enumerate();
    files.map(|(number, file)| [&[number as u8][..], &file.content()].concat()).collect()
}

/// Decodes a section of a segment. The input is its shape, its number of entries and its bytes.
pub fn section(bytes: &[u8]) {
    use model::Shape;
    let Some((choice, rest)) = choice(bytes) else { return };
    let Some((entries, section)) = rest.split_first_chunk() else { return };
    let entries = u64::from(u32::from_le_bytes(*entries));
    let shape = match choice % 5 {
        0 => Shape::Places,
        1 => Shape::Pairs,
        2 => Shape::Values,
        4 => {
            if let Ok(stacks) = shapes::decode_stacks(section, entries) {
                let (again, nodes) = shapes::encode_stacks(&stacks);
                assert_eq!(shapes::decode_stacks(&again, nodes).unwrap(), stacks);
            }
            return;
        }
        _ => {
            let image = image::ImageId::from_build_id(&[1]).unwrap();
            if let Ok(symbols) = profiledb::codec::decode_symbols(&image, section) {
                assert_eq!(profiledb::codec::encode_symbols(&image, &symbols), section);
            }
            return;
        }
    };
    if let Ok(counts) = shapes::decode(shape, section, entries) {
        let again = shapes::encode(&counts);
        assert_eq!(shapes::decode(shape, &again, entries).unwrap(), counts);
    }
}

/// Sections of each shape.
#[must_use]
pub fn section_seeds() -> Vec<Vec<u8>> {
    use image::ImageOffset as At;
    use model::{Counts, Cut, Edges, Frame, Profile, Stacks, Thread, Value, Wait};
    let places = [(At(0x10), 3), (At(0x14), 1), (At(0x1000), 300)];
    let pairs = [((At(0x10), At(0x8)), 1), ((At(0x10), At(0x20)), 5), ((At(0x12), At(0x12)), 200)];
    let seed =
        |choice: u8, counts: Counts| [&[choice, 3, 0, 0, 0][..], &shapes::encode(&counts)].concat();
    let image = image::ImageId::from_build_id(&[1]).unwrap();
    let symbol = |start, end, name: &str| profiledb::Symbol { start, end, name: name.into() };
    let symbols = [symbol(1, 5, "a"), symbol(300, 70_000, "bcd")];
    let mut stacks = Stacks::new();
    let code = |offset| Frame::Code(image, At(offset));
    for last in [code(0x20), code(0x40), Frame::Wait(Wait::Futex)] {
        stacks.add_stack([code(0x10), last], &Thread::default(), Value::of_one(70_000));
        let cut = Frame::Cut(Cut::Truncated);
        stacks.add_stack([cut, last], &Thread::default(), Value::of_one(90_000));
    }
    let (stacks, nodes) = shapes::encode_stacks(&stacks);
    vec![
        [&[4, nodes as u8, 0, 0, 0][..], &stacks].concat(),
        seed(0, Counts::Places(Profile::from_counts(places))),
        seed(1, Counts::Pairs(Edges::from_counts(pairs))),
        [&[3, 0, 0, 0, 0][..], &profiledb::codec::encode_symbols(&image, &symbols)].concat(),
    ]
}
