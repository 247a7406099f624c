//! Calls of functions in Lua, and the links that lead from each to its caller.

/// How a call leads to its caller (lj_frame.h, `FRAME_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u64);

/// Kinds of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A function in Lua calls; the link is its next instruction.
    Lua,
    /// C code calls.
    C,
    /// An operation of a function in Lua calls, and goes on with an instruction.
    Continues,
    /// The caller is the same function, with further arguments.
    Further,
    /// `pcall` calls, within the same native frame.
    Protected,
}

impl Link {
    /// Its kind.
    pub fn kind(self) -> Kind {
        match (self.0 & 3, self.0 & 7) {
            (0, _) => Kind::Lua,
            (1, _) => Kind::C,
            (2, 2) => Kind::Continues,
            (3, 3) => Kind::Further,
            _ => Kind::Protected,
        }
    }
}

/// A call of a function in Lua.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Address of the function's `GCproto`.
    pub proto: u64,
    /// Address of the next instruction; 0: it is not known.
    pub next: u64,
}

/// The place in the function that comes next, on the way from a call to its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The next instruction; 0: it is not known.
    pub next: u64,
    /// The function was told already.
    is_told: bool,
}

impl Place {
    /// The place of an innermost call.
    pub fn at(next: u64) -> Self {
        Self { next, is_told: false }
    }

    /// The call of a function there.
    pub fn call(self, proto: u64) -> Option<Call> {
        (!self.is_told).then_some(Call { proto, next: self.next })
    }

    /// Goes on to the caller. `continued`: the instruction beside a link that continues.
    pub fn leave(&mut self, link: Link, continued: u64) {
        let kind = link.kind();
        self.is_told = kind == Kind::Further;
        self.next = match kind {
            Kind::Lua => link.0,
            Kind::Continues => continued,
            Kind::C | Kind::Further | Kind::Protected => 0,
        };
    }
}

/// Calls of a trace at one of its places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceCalls {
    /// Those above the function in which it begins, innermost first.
    pub calls: Vec<Call>,
    /// The place in the function in which it begins.
    pub place: Place,
}
