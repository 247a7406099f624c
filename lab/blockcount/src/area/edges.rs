//! Counted edges: jumps that were taken, and calls.

use super::reader::{Counted, CountedBlock, Edge};
use super::{Call, JUMPS, kind};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of an entry of a linkage table (System V ABI, AMD64 supplement, 5.2).
const ENTRY_BYTES: u64 = 16;

impl Counted {
    /// Jumps to a constant target that were taken: all unconditional ones, and conditional ones
    /// where they are counted.
    pub fn taken(&self) -> Vec<Edge> {
        let (_, files) = self.by_file();
        let taken = |counted: &CountedBlock| match counted.block.kind {
            kind::JUMP => counted.count,
            _ => counted.taken,
        };
        let taken = self.blocks.iter().map(|counted| (counted, taken(counted)));
        taken
            .filter(|(_, count)| *count > 0)
            .filter_map(|(counted, count)| self.edge(&files, counted, counted.block.target, count))
            .collect()
    }

    /// Calls, direct ones, and indirect ones and jumps to procedures where these are counted. What
    /// calls or jumps to an entry of a linkage table calls the procedure that the entry leads to;
    /// the entry's own jumps are not calls then.
    pub fn calls(&self) -> Vec<Edge> {
        let (_, files) = self.by_file();
        let entries = self.linkage_entries();
        let bound: BTreeSet<u64> = entries.values().copied().collect();
        let through = |target: u64| entries.get(&target).copied().unwrap_or(target);
        let direct = self.blocks.iter().filter(|counted| {
            let block = &counted.block;
            let is_call = match block.kind {
                kind::CALL => true,
                kind::JUMP => entries.contains_key(&block.target),
                _ => false,
            };
            is_call && counted.count > 0
        });
        let direct = direct.filter_map(|counted| {
            self.edge(&files, counted, through(counted.block.target), counted.count)
        });
        // Where all indirect jumps are counted most are cases of a switch.
        let all_jumps = self.header.flags & JUMPS != 0;
        let indirect = self.calls.iter().filter(|(_, count)| *count > 0);
        let indirect = indirect.filter_map(|(call, count)| {
            let from = self.blocks.get(call.block as usize)?;
            let is_jump = from.block.kind == kind::INDIRECT_JUMP;
            // The dynamic linker jumps to what it has bound: that call is one of the entry's.
            let binds = is_jump && self.is_of_linker(from) && bound.contains(&call.target);
            if all_jumps && is_jump || binds {
                return None;
            }
            let is_entry = entries.get(&from.block.address) == Some(&call.target);
            let edge = || self.edge(&files, from, through(call.target), *count);
            (!is_entry).then(edge).flatten()
        });
        direct.chain(indirect).collect()
    }

    /// Whether a block is code of the dynamic linker, `ld.so`(8), by its file's name.
    fn is_of_linker(&self, counted: &CountedBlock) -> bool {
        let mapping = self.mappings.get(counted.block.mapping as usize);
        let name = mapping.and_then(|(_, path)| path.rsplit(|byte| *byte == b'/').next());
        name.is_some_and(|name| name.starts_with(b"ld-") || name.starts_with(b"ld.so"))
    }

    /// Indirect calls by target, where these are counted.
    pub fn indirect_calls(&self) -> Vec<Edge> {
        self.indirect(kind::INDIRECT_CALL)
    }

    /// Indirect jumps by target, where all are counted; else empty, because the counted ones are
    /// calls.
    pub fn jumps(&self) -> Vec<Edge> {
        let all = self.header.flags & JUMPS != 0;
        if all { self.indirect(kind::INDIRECT_JUMP) } else { Vec::new() }
    }

    /// Indirect branches of a kind, by target.
    fn indirect(&self, kind: u8) -> Vec<Edge> {
        let (_, files) = self.by_file();
        let counted = self.calls.iter().filter(|(_, count)| *count > 0);
        let edge = |(call, count): &(Call, u64)| {
            let from = self.blocks.get(call.block as usize)?;
            (from.block.kind == kind).then(|| self.edge(&files, from, call.target, *count))?
        };
        counted.filter_map(edge).collect()
    }

    /// Entries of linkage tables, and the procedures that they lead to: blocks of one jump, behind
    /// a mark for indirect branches, with a target that most of its jumps had. Until a procedure
    /// is bound its entry leads to what follows it.
    fn linkage_entries(&self) -> BTreeMap<u64, u64> {
        let mut entries: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (call, count) in &self.calls {
            let Some(from) = self.blocks.get(call.block as usize) else { continue };
            let block = &from.block;
            let binds =
                (from.end()..=from.end().saturating_add(ENTRY_BYTES)).contains(&call.target);
            if block.kind != kind::INDIRECT_JUMP || block.instructions > 2 || binds {
                continue;
            }
            let most = entries.entry(block.address).or_default();
            *most = (*most).max((*count, call.target));
        }
        entries.into_iter().map(|(entry, (_, target))| (entry, target)).collect()
    }

    fn edge(&self, files: &[usize], from: &CountedBlock, to: u64, count: u64) -> Option<Edge> {
        let mapping = from.block.mapping as usize;
        let site = self.location(files, mapping, from.last())?;
        Some(Edge { from: site, to: self.location(files, mapping, to), count })
    }
}
