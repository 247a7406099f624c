//! Names of functions of Lua, which instructions call them by: what was found in one stack holds
//! for all of the process, so that a function has one name.

use super::PLACES_MAX;
use super::lua::Call;
use super::lua_functions::{Layout, called};
use crate::python::Memory;
use std::collections::{HashMap, HashSet};

/// Names that are kept, each of at most [`NAME_MAX`](super::NAME_MAX) bytes. Beyond, all are
/// forgotten and read again.
const NAMES_MAX: usize = 1 << 14;

/// An address space, a function's address, and what tells it from others that are there later.
type Key = (u32, u64, [u64; 3]);

/// Names that are known: a function's first.
#[derive(Default)]
pub struct Names(HashMap<Key, String>);

/// Names of a process, as one question sees it.
pub struct OfProcess<'a> {
    names: &'a mut HashMap<Key, String>,
    space: u32,
    /// Functions and instructions whose names were read.
    read: HashSet<(u64, u64)>,
    known: HashMap<u64, String>,
}

impl Names {
    /// Those of a process.
    pub fn of_process(&mut self, space: u32) -> OfProcess<'_> {
        if self.0.len() >= NAMES_MAX {
            self.0.clear();
        }
        let (read, known) = (HashSet::new(), HashMap::new());
        OfProcess { names: &mut self.0, space, read, known }
    }
}

impl OfProcess<'_> {
    /// Notes the names of the functions of some lists of calls.
    pub fn note(&mut self, layout: &Layout, memory: &impl Memory, lists: &[Vec<Call>]) {
        for (call, caller) in lists.iter().flat_map(|list| list.iter().zip(list.iter().skip(1))) {
            let Some(proto) = call.proto else { continue };
            let by = caller.proto.unwrap_or(0);
            if self.read.len() >= PLACES_MAX || !self.read.insert((proto, caller.instruction ^ by))
            {
                continue;
            }
            self.note_one(layout, memory, proto, || {
                // The caller of what was called last in a function is gone.
                let by = caller.proto.filter(|_| !call.is_tail)?;
                called(layout, memory, by, caller.instruction)
            });
        }
    }

    fn note_one(
        &mut self,
        layout: &Layout,
        memory: &impl Memory,
        proto: u64,
        name: impl FnOnce() -> Option<String>,
    ) {
        if self.known.contains_key(&proto) {
            return;
        }
        let Some(identity) = layout.identity(memory, proto) else { return };
        let key = (self.space, proto, identity);
        let known = match self.names.get(&key) {
            Some(known) => known.clone(),
            None => {
                let Some(name) = name() else { return };
                self.names.insert(key, name.clone());
                name
            }
        };
        self.known.insert(proto, known);
    }

    /// Names by functions' addresses.
    pub fn into_known(self) -> HashMap<u64, String> {
        self.known
    }
}
