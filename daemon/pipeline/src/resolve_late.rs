//! Samples that wait for the names of generated code: which do, and when they are counted.

use crate::late::Place;
use crate::resolve::{Inside, Resolver};
use abi::Entry;
use address_spaces::jit::{Asked, Late};
use model::Unresolved;
use pending::Pending;

impl Resolver<'_> {
    /// Whether the entry waits from now on.
    pub(crate) fn holds(
        &mut self,
        inside: Inside<'_>,
        entry: &Entry,
        reason: Unresolved,
        pending: &mut Pending,
    ) -> bool {
        let Inside { at, generation, mapping, tags } = inside;
        let (mapping, tags) = (mapping.clone(), tags.clone());
        let place = Place { entry: *entry, at, generation, mapping, tags, reason };
        if !self.spaces.late.takes(&place) {
            return false;
        }
        let asked = self.asked(inside, entry);
        if !self.spaces.jit.awaits(asked, self.window.from_ns, reason) {
            return false;
        }
        self.spaces.late.add(place, pending.account(entry.event()));
        true
    }

    /// Counts what waits and is known by now; with `is_final` all of it.
    pub(crate) fn resolve_late(&mut self, is_final: bool, pending: &mut Pending) {
        if self.spaces.late.is_empty() {
            return;
        }
        self.spaces.late.is_final = is_final;
        self.spaces.late.now_ns = self.window.to_ns;
        for place in self.spaces.late.take_places() {
            let Place { entry, at, generation, ref mapping, ref tags, reason } = place;
            let (now_ns, mappings) = (self.window.to_ns, &self.spaces.mappings);
            let asked = Asked { pid: at.pid, generation, address: entry.pc(), now_ns };
            let late = self.spaces.jit.late(asked, (now_ns, reason), mapping, mappings);
            if matches!(late, Late::NotYet(_)) && !is_final {
                self.spaces.late.put_back(place);
                continue;
            }
            self.spaces.late.end(&entry, pending.account(entry.event()));
            match late {
                Late::Named(code) => {
                    let inside = Inside { at, generation, mapping, tags };
                    self.count_generated(inside, &entry, &code, pending);
                }
                Late::NotYet(why) | Late::Never(why) => {
                    let process = Some((at.pid, generation));
                    self.unresolve(std::slice::from_ref(&entry), why, process, pending);
                }
            }
        }
        let now = self.window;
        for (stack, window) in std::mem::take(&mut self.spaces.late.stacks) {
            self.window = window;
            self.resolve_stacks(vec![stack], pending);
        }
        self.window = now;
        self.spaces.late.is_final = false;
    }
}
