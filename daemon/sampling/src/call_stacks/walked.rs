//! Stacks that were walked, and as recordings have them.

use crate::recording::steps::{StoredRun, StoredStack};
use abi::StackRecord;
use address_spaces::mappings::AddressMap;
use address_spaces::scopes::Tags;
use inspect::questions::{PythonCode, PythonRun};
use model::Cut;
use std::sync::Arc;

/// A stack that was walked.
pub struct WalkedStack {
    /// Thread, time, weight. Its registers are wiped.
    pub record: StackRecord,
    /// Return addresses in the kernel, innermost first.
    pub kernel: Vec<u64>,
    /// Addresses of user code, innermost first: of the next instruction in the first, within the
    /// call in others.
    pub user: Vec<u64>,
    /// Frames of Python in the place of native ones, the innermost first.
    pub python: Vec<PythonRun>,
    /// Functions that `python` names.
    pub functions: Arc<Vec<PythonCode>>,
    /// Why the thread's first frames are not known.
    pub cut: Option<Cut>,
    /// What the process had mapped, and its tags.
    pub space: Option<(Arc<AddressMap>, Tags)>,
}

impl WalkedStack {
    /// The stack as a recording has it.
    #[must_use]
    pub fn stored(&self) -> StoredStack {
        StoredStack {
            space: self.record.space,
            tid: self.record.tid,
            weight: self.record.weight,
            command: self.record.command.to_vec(),
            name: self.record.name.to_vec(),
            kernel: self.kernel.clone(),
            user: self.user.clone(),
            python: self.python.iter().map(|run| self.stored_run(run)).collect(),
            cut: self.cut.map(|cut| cut.name().to_owned()),
        }
    }

    fn stored_run(&self, run: &PythonRun) -> StoredRun {
        let stored = |frame: &Option<(u32, u32)>| {
            let (function, line) = (*frame)?;
            Some((self.functions.get(function as usize)?.clone(), line))
        };
        let frames = run.frames.iter().map(stored).collect();
        StoredRun { depth: run.depth, frames, is_part: run.is_part }
    }

    /// The stack of a recording, without what its process had mapped. None where names are no names
    /// of threads, or the reason is unknown.
    #[must_use]
    pub fn restored(stored: &StoredStack) -> Option<Self> {
        let cut = match &stored.cut {
            Some(name) => Some(*Cut::ALL.iter().find(|cut| cut.name() == name)?),
            None => None,
        };
        let record = StackRecord {
            space: stored.space,
            tid: stored.tid,
            weight: stored.weight,
            command: stored.command.as_slice().try_into().ok()?,
            name: stored.name.as_slice().try_into().ok()?,
            ..StackRecord::EMPTY
        };
        let (kernel, user) = (stored.kernel.clone(), stored.user.clone());
        let mut functions = Vec::new();
        let mut number = |(function, line): &(PythonCode, u32)| {
            functions.push(function.clone());
            Some((u32::try_from(functions.len()).ok()?.checked_sub(1)?, *line))
        };
        let mut frame = |frame: &Option<_>| frame.as_ref().and_then(&mut number);
        let mut run = |run: &StoredRun| PythonRun {
            depth: run.depth,
            frames: run.frames.iter().map(&mut frame).collect(),
            is_part: run.is_part,
        };
        let python = stored.python.iter().map(&mut run).collect();
        let functions = Arc::new(functions);
        Some(Self { record, kernel, user, python, functions, cut, space: None })
    }
}
