//! Assigns numbers to names of events, and finds the names of system calls.

use std::collections::HashMap;
use std::io::Write;

use syscalls::Sysno;
use trace::{Name, NameId, NameKind, Writer};

use crate::tracefs::Tracefs;

/// Names by number, as the writer numbers them.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) list: Vec<Name>,
    /// System calls by number, and whether their first argument is an `int`.
    syscalls: HashMap<u64, (NameId, bool)>,
}

impl Names {
    pub(crate) fn number<W: Write>(&mut self, name: &Name, writer: &mut Writer<W>) -> NameId {
        let number = writer.name(name);
        if number.0 as usize == self.list.len() {
            self.list.push(name.clone());
        }
        number
    }

    pub(crate) fn syscall<W: Write>(
        &mut self,
        number: u64,
        tracefs: Option<&Tracefs>,
        writer: &mut Writer<W>,
    ) -> (NameId, bool) {
        if let Some(known) = self.syscalls.get(&number) {
            return *known;
        }
        let known = usize::try_from(number).ok().and_then(Sysno::new);
        let text = known.map_or_else(|| format!("syscall {number}"), |name| name.name().to_owned());
        let mut name = Name::new(NameKind::Syscall, text);
        name.number = Some(number);
        let id = self.number(&name, writer);
        // Some system calls have another name in tracefs than in the C library: fstat is newfstat.
        let entry = |new: &str| {
            tracefs?.tracepoint(&format!("syscalls/sys_enter_{new}{}", known?.name())).ok()
        };
        let entry = entry("").or_else(|| entry("new"));
        let is_int = entry.is_some_and(|entry| entry.has_int_first());
        self.syscalls.insert(number, (id, is_int));
        (id, is_int)
    }
}
