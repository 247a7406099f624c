//! Walked stacks as recordings have them, and back.

use super::steps::{StoredRun, StoredStack};
use crate::call_stacks::WalkedStack;
use abi::StackRecord;
use inspect::questions::{RuntimeFunction, RuntimeRun};
use model::{Attributes, Cut};
use std::sync::Arc;

impl WalkedStack {
    /// The stack as a recording has it.
    pub fn stored(&self) -> StoredStack {
        StoredStack {
            space: self.record.space,
            tid: self.record.tid,
            weight: self.record.weight,
            command: self.record.command.to_vec(),
            name: self.record.name.to_vec(),
            kernel: self.kernel.clone(),
            user: self.user.clone(),
            python: self.runs.iter().map(|run| self.stored_run(run)).collect(),
            attributes: self
                .attributes
                .iter()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            cut: self.cut.map(|cut| cut.name().to_owned()),
        }
    }

    fn stored_run(&self, run: &RuntimeRun) -> StoredRun {
        let stored = |frame: &Option<(u32, u32)>| {
            let (function, line) = (*frame)?;
            Some((self.functions.get(function as usize)?.clone(), line))
        };
        let frames = run.frames.iter().map(stored).collect();
        StoredRun { depth: run.depth, frames, is_part: run.is_part }
    }

    /// The stack of a recording, without what its process had mapped. None where names are not
    /// names of threads, or the reason is unknown.
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
        let mut number = |(function, line): &(RuntimeFunction, u32)| {
            functions.push(function.clone());
            Some((u32::try_from(functions.len()).ok()?.checked_sub(1)?, *line))
        };
        let mut frame = |frame: &Option<_>| frame.as_ref().and_then(&mut number);
        let mut run = |run: &StoredRun| RuntimeRun {
            depth: run.depth,
            frames: run.frames.iter().map(&mut frame).collect(),
            is_part: run.is_part,
        };
        let runs = stored.python.iter().map(&mut run).collect();
        let functions = Arc::new(functions);
        let attributes = Attributes::of(stored.attributes.iter().cloned());
        Some(Self { record, kernel, user, runs, functions, attributes, cut, space: None })
    }
}
