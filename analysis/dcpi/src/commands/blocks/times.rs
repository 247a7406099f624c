//! Times of blocks, from samples of the program without events.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use image::{Binary, ImageOffset, default_debug_roots};
use query::error::AnalysisError;
use query::load::Question;
use stats::tally::Tally;
use stats::{Confidence, share};
use trace::sequence::{Block, Program};

use super::table::Table;
use super::{Asked, refused};
use crate::commands::input::Input;
use crate::commands::record::{label, repeated};

/// A program that has a list of its blocks, and no events.
pub(super) struct Plain {
    path: PathBuf,
    program: Program,
    /// Blocks by their place: first byte, the byte after the last, index.
    places: Vec<(u64, u64, usize)>,
}

/// Groups of runs at most, each with a database and a dcpid of its own: shares vary from run to run
/// more than samples do by chance, and a few groups say by how much.
const GROUPS_MAX: u32 = 8;

pub(super) struct SampledBlocks {
    groups: Vec<Group>,
}

struct Group {
    by_block: Vec<Tally>,
    whole: Tally,
}

impl SampledBlocks {
    fn whole(&self) -> Tally {
        self.groups.iter().map(|group| group.whole).sum()
    }

    fn by_block(&self) -> Vec<Tally> {
        let blocks = self.groups.first().map_or(0, |group| group.by_block.len());
        let of =
            |block| self.groups.iter().filter_map(move |group| group.by_block.get(block).copied());
        (0..blocks).map(|block| of(block).sum()).collect()
    }

    /// By how much the share of each block varies more from group to group than samples do by
    /// chance.
    fn dispersions(&self) -> Vec<f64> {
        let groups = self.groups.iter().map(|group| (group.by_block.as_slice(), group.whole));
        stats::dispersions(&groups.collect::<Vec<_>>(), Confidence::default())
    }
}

impl Plain {
    /// Opens a program that was compiled with `--cflags plain`.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] where it has no list of blocks.
    pub(super) fn open(path: &Path) -> Result<Self, AnalysisError> {
        let path = path.canonicalize().map_err(|error| {
            refused(format!("{}: {error}; compile it with --cflags plain", path.display()))
        })?;
        let (program, _) = capture::blocks::blocks_of(&path).map_err(refused)?;
        let binary = Binary::open(&path, None).map_err(refused)?;
        let (procedures, _) = binary.procedures(&default_debug_roots()).map_err(refused)?;
        let listed = program.blocks.iter().enumerate().filter(|(_, block)| block.offset > 0);
        let mut begins: Vec<(u64, usize)> = listed.map(|(index, it)| (it.offset, index)).collect();
        begins.sort_unstable();
        let mut places = Vec::with_capacity(begins.len());
        for (number, (begin, index)) in begins.iter().enumerate() {
            let next = begins.get(number + 1).map_or(u64::MAX, |(next, _)| *next);
            let procedure = procedures.find(ImageOffset(*begin));
            let end = procedure.map_or(*begin, |procedure| procedure.end.0);
            places.push((*begin, next.min(end).max(*begin), *index));
        }
        Ok(Self { path, program, places })
    }

    /// Samples runs of the command with this program in the place of its own.
    ///
    /// # Errors
    /// As `dcpi record`.
    pub(super) fn sample(&self, args: &Asked<'_>) -> Result<SampledBlocks, AnalysisError> {
        let mut command: Vec<OsString> = args.command.to_vec();
        if let Some(program) = command.first_mut() {
            program.clone_from(&self.path.clone().into_os_string());
        }
        let mut input = Input::keep()?;
        let runs = args.blocks.runs.max(1);
        let groups = runs.min(GROUPS_MAX);
        let group = |number| {
            // Runs that do not divide evenly are those of the first groups.
            let runs = runs / groups + u32::from(number < runs % groups);
            self.sample_group(&command, runs, &mut input)
        };
        Ok(SampledBlocks { groups: (0..groups).map(group).collect::<Result<_, _>>()? })
    }

    fn sample_group(
        &self,
        command: &[OsString],
        runs: u32,
        input: &mut Input,
    ) -> Result<Group, AnalysisError> {
        let directory =
            tempfile::Builder::new().prefix("dcpi-blocks-").tempdir().map_err(|error| {
                refused(format!("no directory for temporary files: {error}; name one in $TMPDIR"))
            })?;
        let db = directory.path().join("db");
        let label = label(self.path.as_os_str());
        repeated((&label, command), &db, (runs, "off"), |_| input.streams(false))?;
        let samples = Question { db, ..Question::default() }.samples()?;
        let (time, _) = samples.time()?;
        let mut sampled = Group {
            by_block: vec![Tally::default(); self.program.blocks.len()],
            whole: Tally::default(),
        };
        let own = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == self.path);
        for image in samples.images.iter().filter(|image| !image.is_idle()) {
            let Some(profile) = image.profiles.get(time) else { continue };
            sampled.whole += profile.total();
            if !image.paths.iter().any(own) {
                continue;
            }
            for (offset, tally) in profile.iter() {
                let after = self.places.partition_point(|(begin, ..)| *begin <= offset.0);
                let place = after.checked_sub(1).and_then(|before| self.places.get(before));
                if let Some((_, end, index)) = place
                    && offset.0 < *end
                    && let Some(sum) = sampled.by_block.get_mut(*index)
                {
                    *sum += tally;
                }
            }
        }
        Ok(sampled)
    }

    /// Gives each block of the table its share of the time.
    pub(super) fn add(
        &self,
        sampled: &SampledBlocks,
        programs: &[(Program, Vec<u64>)],
        table: &mut Table,
    ) {
        let with_events = programs.iter().map(|(program, _)| program);
        let same: Vec<Vec<Option<usize>>> =
            with_events.map(|program| corresponding(program, &self.program)).collect();
        let whole = sampled.whole();
        let by_block: Vec<(Tally, f64)> =
            sampled.by_block().into_iter().zip(sampled.dispersions()).collect();
        let sure = |(part, times): (Tally, f64)| {
            share(part.dispersed(times), whole.dispersed(times), Confidence::default())
        };
        let mut without = 0_u64;
        for row in &mut table.rows {
            let index = same.get(row.program_index).and_then(|it| *it.get(row.index)?);
            let part = index.and_then(|index| by_block.get(index));
            row.time = part.map(|part| sure(*part));
            without += u64::from(row.time.is_none());
        }
        table.samples = Some(whole.samples);
        if without > 0 {
            table.notes.push(format!(
                "{} of other code than {} has no time: compile both alike",
                report::counted(without, "block"),
                self.path.display()
            ));
        }
        table.sort_by_time();
    }
}

/// For each block of a program, the index of the same block in another build of it. Blocks
/// correspond by procedure and number, in procedures that have equally many; of procedures with one
/// name, the first is the first's.
fn corresponding(program: &Program, other: &Program) -> Vec<Option<usize>> {
    let mut known: HashMap<(&str, usize), Vec<usize>> = HashMap::new();
    for (name, blocks, nth) in procedures(other) {
        known.insert((name, nth), blocks);
    }
    let mut same = vec![None; program.blocks.len()];
    for (name, blocks, nth) in procedures(program) {
        let Some(others) = known.get(&(name, nth)).filter(|it| it.len() == blocks.len()) else {
            continue;
        };
        for (block, other) in blocks.iter().zip(others) {
            if let Some(entry) = same.get_mut(*block) {
                *entry = Some(*other);
            }
        }
    }
    same
}

/// The procedures of a program: name, indices of its blocks, and how many of that name came before.
fn procedures(program: &Program) -> Vec<(&str, Vec<usize>, usize)> {
    let mut all: Vec<(&str, Vec<usize>, usize)> = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    // A cold part is listed where the compiler wrote it: within its procedure.
    let mut last: HashMap<&str, usize> = HashMap::new();
    let is_listed = |block: &&(usize, &Block)| block.1.offset > 0;
    for (index, block) in
        program.blocks.iter().enumerate().collect::<Vec<_>>().iter().filter(is_listed)
    {
        let name = block.procedure.as_str();
        let begins = block.number == 0;
        if begins {
            let nth = seen.entry(name).or_default();
            last.insert(name, all.len());
            all.push((name, Vec::new(), *nth));
            *nth += 1;
        }
        let place = last.get(name).and_then(|place| all.get_mut(*place));
        if let Some((_, blocks, _)) = place {
            blocks.push(*index);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(blocks: &[(&str, u32)]) -> Program {
        let block = |(place, (name, number)): (usize, &(&str, u32))| Block {
            offset: place as u64 + 1,
            procedure: (*name).to_owned(),
            number: *number,
            ..Block::default()
        };
        Program { blocks: blocks.iter().enumerate().map(block).collect(), ..Program::default() }
    }

    #[test]
    fn blocks_correspond_by_procedure_and_number() {
        let one = program(&[("f", 0), ("f", 1), ("g", 0), ("f", 0), ("h", 0)]);
        let other = program(&[("h", 0), ("h", 1), ("f", 0), ("f", 1), ("f", 0), ("g", 0)]);
        let same = corresponding(&one, &other);
        assert_eq!(same, [Some(2), Some(3), Some(5), Some(4), None]);
    }
}
