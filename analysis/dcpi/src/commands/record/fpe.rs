//! SpeedShop's experiment `fpe`: each floating-point exception of a command, with its call stack.

use super::{Outcome, Record};
use query::error::AnalysisError;

/// Runs the command, and reports.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn run(_: &Record) -> Result<Outcome, AnalysisError> {
    Err(AnalysisError::Refused(
        "fpe needs x86-64: most processors of this kind cannot stop at a floating-point exception"
            .to_owned(),
    ))
}

#[cfg(target_arch = "x86_64")]
pub(super) use counting::run;

#[cfg(target_arch = "x86_64")]
mod counting {
    use super::*;
    use crate::commands::ideal::database::{
        Writing, count, identity, now_unix_s, procedures_of, record, symbols,
    };
    use crate::commands::record::{exit_code, label, private, shell_word};
    use crate::commands::{clean, inclusive, write};
    use crate::options::{self, Prof};
    use exact::Unattributed;
    use exact::exceptions::{self, Chain, End, Exception, Raised};
    use image::{ImageId, ImageOffset};
    use model::{Cut, EXCEPTIONS, Frame, Profile, Stacks, Thread, Value};
    use profiledb::{Delta, Scope, StacksKey};
    use report::{bytes, counted as number, thousands};
    use signal_hook::consts::{SIGINT, SIGQUIT};
    use std::collections::{BTreeMap, BTreeSet};
    use std::ffi::OsString;
    use std::io::{self, Write};
    use std::path::Path;
    use std::time::Instant;

    const NOTES: [&str; 5] = [
        "operations without meaning, such as 0/0",
        "finite numbers divided by zero",
        "results too large",
        "results too small and inexact",
        "results that were rounded",
    ];

    pub(in super::super) fn run(args: &Record) -> Result<Outcome, AnalysisError> {
        let Some(program) = args.command.first() else { return Ok(Outcome::default()) };
        let db = match &args.db {
            Some(db) => db.clone(),
            None => private::new_directory()?.join("db"),
        };
        let events = EXCEPTIONS.iter().zip(NOTES).map(|(name, note)| (*name, "count", note));
        let events: Vec<_> =
            events.filter(|(name, ..)| args.inexact || !is_inexact(name)).collect();
        let writing = Writing::open(&db, &label(program), Scope::default(), &events)?;
        // Ctrl-C is for the command.
        let _heard = crate::signals::hear(&[SIGINT, SIGQUIT]).map_err(super::super::lost_sight)?;
        let begun = Instant::now();
        let (status, raised) = exceptions::run(&args.command, args.inexact)
            .map_err(|error| AnalysisError::Refused(error.to_string()))?;
        let took_s = begun.elapsed().as_secs_f64();
        let ids: Vec<Option<ImageId>> =
            raised.files.iter().map(|file| identity(file, &BTreeMap::new())).collect();
        let (delta, unattributed) = delta(&raised, &ids);
        let written = writing.finish(&delta, raised.files.iter().zip(ids))?;
        let named = unattributed.lines(|count| number(count, "exception"));
        let notes: Vec<String> = named.into_iter().chain(written.notes).collect();
        let out = &mut io::stderr();
        let selection = ["--host", &written.host, "--epoch", &written.epoch];
        let mut words: Vec<OsString> = vec!["--db".into(), db.clone().into()];
        words.extend(selection.map(OsString::from));
        summary(args, &raised, (words, &db), took_s, out)?;
        for note in notes {
            writeln!(out, "note: {}", report::escape(&note))?;
        }
        Ok(Outcome { code: Some(exit_code(status)), ..Outcome::default() })
    }

    fn is_inexact(name: &str) -> bool {
        EXCEPTIONS.last() == Some(&name)
    }

    /// The counts, the same for the instructions and for their call stacks, and the exceptions in
    /// files that are no images.
    fn delta(raised: &Raised, ids: &[Option<ImageId>]) -> (Delta, Unattributed) {
        let now = now_unix_s();
        let mut delta = Delta { now_unix_s: now, ..Delta::default() };
        let mut unattributed = raised.unattributed.clone();
        let mut profiles: BTreeMap<(ImageId, Exception), BTreeMap<ImageOffset, u64>> =
            BTreeMap::new();
        let mut stacks: BTreeMap<Exception, Stacks> = BTreeMap::new();
        let mut met: BTreeMap<(ImageId, usize), BTreeSet<ImageOffset>> = BTreeMap::new();
        for ((exception, chain), count) in &raised.stacks {
            let image =
                |site: &exact::Site| Some((ids.get(site.file).copied().flatten()?, site.file));
            for site in &chain.sites {
                let Some(image) = image(site) else { continue };
                met.entry(image).or_default().insert(site.offset);
            }
            let innermost = chain.sites.last();
            let Some(site) = innermost else { continue };
            let Some((id, _)) = image(site) else {
                if let Some(file) = raised.files.get(site.file) {
                    unattributed.add(&file.path, file.why(), *count);
                }
                continue;
            };
            let profile = profiles.entry((id, *exception)).or_default();
            *profile.entry(site.offset).or_default() += count;
            let frames = chain
                .sites
                .iter()
                .filter_map(|site| image(site).map(|(id, _)| Frame::Code(id, site.offset)));
            let frames: Vec<Frame> = cut(chain).map(Frame::Cut).into_iter().chain(frames).collect();
            // Exact: without variance.
            let value = Value { stacks: *count, weight: *count, squares: 0 };
            stacks.entry(*exception).or_default().add_stack(frames, &Thread::default(), value);
        }
        for ((id, exception), counts) in profiles {
            count(
                &mut delta,
                id,
                (name(exception), &Scope::default()),
                Profile::from_counts(counts),
            );
        }
        for (exception, stacks) in stacks {
            let key = StacksKey { event: name(exception).to_owned(), scope: Scope::default() };
            delta.stacks.insert(key, stacks);
        }
        for ((id, file), offsets) in met {
            let Some(file) = raised.files.get(file) else { continue };
            delta.images.entry(id).or_insert_with(|| record(file, id, now));
            let is_met = |range| offsets.range(range).next().is_some();
            delta.symbols.entry(id).or_insert_with(|| symbols(&procedures_of(file, &id), is_met));
        }
        (delta, unattributed)
    }

    fn name(exception: Exception) -> &'static str {
        let place = Exception::ALL.iter().position(|of| *of == exception);
        place.and_then(|place| EXCEPTIONS.get(place)).copied().unwrap_or_default()
    }

    /// Why the thread's first frames are not known.
    fn cut(chain: &Chain) -> Option<Cut> {
        Some(match chain.end {
            End::Whole => return None,
            End::Window => Cut::Truncated,
            End::NoUnwindInfo => Cut::NoUnwindInfo,
            End::Generated => Cut::Generated,
            End::Refused => Cut::Refused,
            End::Unreadable => Cut::Unreadable,
            End::TooDeep => Cut::TooDeep,
            End::Loop => Cut::Loop,
            End::Costly => Cut::Costly,
        })
    }

    fn summary(
        args: &Record,
        raised: &Raised,
        (words, db): (Vec<OsString>, &Path),
        took_s: f64,
        out: &mut dyn Write,
    ) -> Result<(), AnalysisError> {
        let of = |exception: &Exception| -> u64 {
            let all = raised.stacks.iter().filter(|((of, _), _)| of == exception);
            all.map(|(_, count)| count).sum()
        };
        let found: Vec<Exception> =
            Exception::ALL.into_iter().filter(|exception| of(exception) > 0).collect();
        writeln!(out)?;
        let shown: String =
            found.iter().map(|exception| format!(" --event {}", name(*exception))).collect();
        if !found.is_empty() {
            let events = found.iter().flat_map(|of| ["--event", name(*of)].map(OsString::from));
            let rows =
                args.rows.into_iter().flat_map(|rows| ["-n".into(), rows.to_string().into()]);
            let words = words.into_iter().chain(events).chain(rows);
            let prof: Prof =
                options::typed(words.chain(["--inclusive".into()])).map_err(|error| {
                    AnalysisError::Refused(format!("cannot report: {}", error.kind()))
                })?;
            write(&inclusive::report(&prof)?, &prof.output, out)?;
            writeln!(out)?;
        }
        let all: u64 = Exception::ALL.iter().map(of).sum();
        let each =
            Exception::ALL.iter().filter(|kind| args.inexact || **kind != Exception::Inexact);
        let each: Vec<String> = each
            .map(|kind| {
                format!("{} {}", thousands(of(kind)), name(*kind).trim_start_matches("fpe-"))
            })
            .collect();
        writeln!(
            out,
            "counted {} of {} in {took_s:.1} s: {}",
            number(all, "floating-point exception"),
            number(raised.processes as u64, "process"),
            each.join(", ")
        )?;
        if raised.elsewhere > 0 {
            let many = number(raised.elsewhere, "exception");
            writeln!(out, "note: {many} more of instructions in no file (generated code)")?;
        }
        if raised.masked > 0 {
            let threads = number(raised.masked, "thread");
            writeln!(
                out,
                "note: {threads} set the control register MXCSR and ran on with exceptions masked \
                 (fesetenv(3)): what was raised from then on is not counted"
            )?;
        }
        let db_word = shell_word(db);
        let size = bytes(clean::size_bytes(db));
        if found.is_empty() {
            writeln!(out, "{size} in {db_word}")?;
        } else {
            writeln!(
                out,
                "{size} in {db_word}; to see the report again: dcpi prof --inclusive{shown} --db \
                 {db_word}"
            )?;
        }
        Ok(out.flush()?)
    }
}
