//! First pass over a file of assembly: finds the procedure of each line, the starts of blocks, and
//! the procedures that get no events.

use crate::line::{Flags, Flow, Instruction, Line};
use std::collections::{HashMap, HashSet};

/// Procedures that return more than once (setjmp(3), vfork(2), getcontext(3)): a block begins after
/// each call of them.
const RETURN_TWICE: [&str; 7] =
    ["setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "vfork", "getcontext", "__builtin_setjmp"];

/// Most lines that are examined to find whether flags are dead. Beyond, they count as live, and an
/// event saves them on the stack, at 20 cycles. With `-g` each instruction has two lines of places:
/// at a limit of 64, a loop of 50 instructions (Livermore's 18) took 1.9 times as long with events.
const FLAGS_LOOK_AHEAD: usize = 4096;

/// Most basic blocks of a procedure with events. A path without a check must fit into the room
/// after a check that passed: 8192 events of 4 bytes or 2048 of 16.
const BLOCKS_MAX: usize = 2000;

/// A procedure of the file.
#[derive(Debug, Default)]
pub struct Procedure<'a> {
    /// Its symbol.
    pub name: &'a str,
    /// Why it gets no events; None where it does.
    pub refused: Option<&'static str>,
    /// Whether calls of its name may reach a procedure in another file.
    pub weak: bool,
    /// Whether it may end in a jump to a procedure without events, which may change the register
    /// before it returns to the caller.
    pub ends_elsewhere: bool,
    /// Whether it calls anything: a chain of returns must check for room.
    pub calls: bool,
    blocks: usize,
}

/// The facts about a label that is referred to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target {
    /// Line of the last jump to it.
    last_jump: usize,
    /// Whether data or code takes the address of the label: any indirect jump may then go to it.
    by_address: bool,
}

/// The result of the first pass.
#[derive(Debug, Default)]
pub struct Survey<'a> {
    /// Each line as read.
    pub lines: Vec<Line<'a>>,
    /// For each line of code outside inline assembly, the procedure that it belongs to.
    pub owner: Vec<Option<usize>>,
    /// Procedures by their number.
    pub procedures: Vec<Procedure<'a>>,
    /// Procedures by their symbols.
    pub by_name: HashMap<&'a str, usize>,
    /// Lines at which a stretch of inline assembly begins or ends: it may change the register.
    pub clobbering: HashSet<usize>,
    targets: HashMap<&'a str, Target>,
    landing_pads: HashSet<&'a str>,
    label_lines: HashMap<&'a str, usize>,
    last_indirect: HashMap<usize, usize>,
}

/// Whether a compiler wrote the file. Handwritten assembly gets no events.
#[must_use]
pub fn is_compiled(text: &str) -> bool {
    let ident = |line: &str| {
        let line = line.trim_start();
        line.starts_with(".ident") && (line.contains("GCC") || line.contains("clang"))
    };
    text.lines().rev().take(64).any(ident) || text.lines().any(ident)
}

/// Whether the symbol names the cold part of a procedure, gcc's `NAME.cold`, which is jumped to and
/// never called.
#[must_use]
pub fn is_cold_part(name: &str) -> bool {
    name.split('.').skip(1).any(|part| part == "cold")
}

impl<'a> Survey<'a> {
    /// Runs the first pass over the file.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let mut survey = Self { lines: text.lines().map(Line::parse).collect(), ..Self::default() };
        survey.procedures_and_owners();
        survey.references();
        survey.refusals();
        survey
    }

    /// Whether a block begins at the label.
    #[must_use]
    pub fn begins_block(&self, label: &str) -> bool {
        self.targets.contains_key(label) || self.landing_pads.contains(label)
    }

    /// Whether the label is a landing pad, where the register has any value.
    #[must_use]
    pub fn is_landing_pad(&self, label: &str) -> bool {
        self.landing_pads.contains(label)
    }

    /// Whether a backward jump leads to the label. Each cycle in a procedure has one.
    #[must_use]
    pub fn closes_circle(&self, label: &str) -> bool {
        let (Some(target), Some(line)) = (self.targets.get(label), self.label_lines.get(label))
        else {
            return false;
        };
        let owner = self.owner.get(*line).copied().flatten();
        let indirect = owner.and_then(|owner| self.last_indirect.get(&owner)).unwrap_or(&0);
        target.last_jump > *line || (target.by_address && indirect > line)
    }

    /// Whether flags may be read at the line or after it before they are written.
    #[must_use]
    pub fn flags_live(&self, mut line: usize) -> bool {
        for _ in 0..FLAGS_LOOK_AHEAD {
            match self.lines.get(line) {
                Some(Line::Instruction(instruction)) => {
                    match instruction.flags() {
                        Flags::Reads => return true,
                        Flags::Kills => return false,
                        Flags::Keeps => {}
                    }
                    if let Flow::Jump(label) = instruction.flow() {
                        let Some(next) = self.label_lines.get(label) else { return true };
                        line = *next;
                        continue;
                    }
                    if instruction.flow() == Flow::Indirect {
                        return true;
                    }
                }
                Some(Line::InlineBegin) | None => return true,
                Some(_) => {}
            }
            line += 1;
        }
        true
    }

    /// Whether the block that begins at the line, at a label, ends with a branch to that label, and
    /// does nothing that needs its event before: no call, no inline assembly.
    #[must_use]
    pub fn loops_alone(&self, label: &str, line: usize) -> bool {
        for line in self.lines.iter().skip(line) {
            match line {
                Line::Instruction(instruction) => match instruction.flow() {
                    Flow::Next => {}
                    Flow::Branch(to) => return to == label,
                    _ => return false,
                },
                Line::Label(other) if self.begins_block(other) => return false,
                Line::InlineBegin => return false,
                _ => {}
            }
        }
        false
    }

    /// The procedure with events that a call or jump to the operand certainly reaches.
    #[must_use]
    pub fn within(&self, operand: &str) -> Option<&Procedure<'a>> {
        let procedure = self.procedures.get(*self.by_name.get(operand)?)?;
        (procedure.refused.is_none() && !procedure.weak).then_some(procedure)
    }

    /// Whether a call of the operand may return more than once.
    #[must_use]
    pub fn returns_twice(name: &str) -> bool {
        RETURN_TWICE.contains(&name)
    }

    /// Whether a jump to the operand stays in the procedure.
    #[must_use]
    pub fn stays(&self, label: &str) -> bool {
        is_cold_part(label)
            || (self.label_lines.contains_key(label) && !self.by_name.contains_key(label))
    }

    fn procedures_and_owners(&mut self) {
        let (mut functions, mut weak, mut resolvers) =
            (HashSet::new(), HashSet::new(), HashSet::new());
        for line in &self.lines {
            match *line {
                Line::Directive(".type", arguments) => {
                    let (name, kind) = arguments.split_once(',').unwrap_or((arguments, ""));
                    match kind.trim() {
                        "@function" => functions.insert(name.trim()),
                        "@gnu_indirect_function" => resolvers.insert(name.trim()),
                        _ => false,
                    };
                }
                Line::Directive(".weak", name) => _ = weak.insert(name),
                _ => {}
            }
        }
        let mut sections = Sections::default();
        let mut inline = false;
        let mut current: HashMap<&'a str, usize> = HashMap::new();
        for (number, line) in self.lines.iter().enumerate() {
            match *line {
                Line::InlineBegin => inline = true,
                Line::InlineEnd => inline = false,
                Line::Directive(name, arguments) if !inline => sections.read(name, arguments),
                Line::Label(label) if !inline => {
                    self.label_lines.insert(label, number);
                    if sections.is_code() && functions.contains(label) {
                        // The cold part shares the decisions for its procedure.
                        let root = label.split(".cold").next().unwrap_or(label);
                        let known = self.by_name.get(root).copied();
                        let index = known.unwrap_or(self.procedures.len());
                        if known.is_none() {
                            let refused = resolvers
                                .contains(root)
                                .then_some("it runs before the program's threads have storage");
                            self.procedures.push(Procedure {
                                name: root,
                                weak: weak.contains(root),
                                refused,
                                ..Procedure::default()
                            });
                            self.by_name.insert(root, index);
                        }
                        current.insert(sections.now, index);
                    }
                }
                Line::Directive(..) | Line::Instruction(_) | Line::Label(_) | Line::Blank => {}
            }
            let here = sections.is_code().then(|| current.get(sections.now).copied()).flatten();
            self.owner.push(here);
        }
    }

    fn references(&mut self) {
        let mut sections = Sections::default();
        let mut inline = false;
        let mut call_sites = None;
        for (number, line) in self.lines.iter().enumerate() {
            match *line {
                Line::InlineBegin => inline = true,
                Line::InlineEnd => inline = false,
                Line::Instruction(instruction) => {
                    let operand = instruction.operands;
                    let jump = matches!(instruction.flow(), Flow::Jump(_) | Flow::Branch(_));
                    if !inline
                        && instruction.flow() == Flow::Indirect
                        && let Some(owner) = self.owner.get(number).copied().flatten()
                    {
                        self.last_indirect.insert(owner, number);
                    }
                    for label in labels(operand) {
                        let target = self.targets.entry(label).or_default();
                        target.last_jump = target.last_jump.max(number);
                        target.by_address |= !jump;
                    }
                }
                Line::Label(label) => {
                    if label.starts_with(".LLSDACSB") || label.starts_with(".Lcst_begin") {
                        call_sites = Some(0);
                    } else if label.starts_with(".LLSDACSE") || label.starts_with(".Lcst_end") {
                        call_sites = None;
                    }
                }
                Line::Directive(name, arguments) => {
                    sections.read(name, arguments);
                    match (&mut call_sites, name) {
                        // Four values a call site: begin, length, landing pad, action.
                        (Some(value), ".uleb128" | ".byte") => {
                            if *value % 4 == 2 {
                                self.landing_pads.extend(labels(arguments).take(1));
                            }
                            *value += 1;
                        }
                        (_, ".long" | ".quad" | ".value" | ".word" | ".4byte" | ".8byte")
                            if sections.refers_to_code() =>
                        {
                            for label in labels(arguments) {
                                self.targets.entry(label).or_default().by_address = true;
                            }
                        }
                        _ => {}
                    }
                }
                Line::Blank => {}
            }
        }
    }

    /// Refuses procedures in which the register is not free, or whose code is not understood.
    fn refusals(&mut self) {
        let mut inline_begin = None;
        let mut spills = false;
        let mut leaves = false;
        let mut goes_on = true;
        for (number, line) in self.lines.iter().enumerate() {
            let owner = self.owner.get(number).copied().flatten();
            let Some(procedure) = owner.and_then(|owner| self.procedures.get_mut(owner)) else {
                continue;
            };
            match *line {
                Line::InlineBegin => (inline_begin, spills, leaves) = (Some(number), false, false),
                Line::InlineEnd => {
                    if let Some(begin) = inline_begin.take().filter(|_| spills) {
                        self.clobbering.extend([begin, number]);
                        if leaves {
                            procedure.refused =
                                Some("inline assembly changes the register and jumps out");
                        }
                    }
                    goes_on = true;
                }
                Line::Instruction(instruction) if inline_begin.is_some() => {
                    let flow = instruction.flow();
                    spills |= mentions_register(&instruction)
                        || matches!(instruction.mnemonic, "syscall" | "sysenter")
                        || matches!(flow, Flow::Call(_));
                    leaves |= labels(instruction.operands).next().is_some();
                }
                // In inline assembly a statement may follow another on one line, or a label.
                Line::Label(_) | Line::Directive(..) if inline_begin.is_some() => spills = true,
                Line::Instruction(instruction) => {
                    if mentions_register(&instruction) {
                        procedure.refused = Some("the compiler uses the register r11 in it");
                    }
                    let flow = instruction.flow();
                    match flow {
                        Flow::Call(_) => procedure.calls = true,
                        Flow::Indirect => procedure.ends_elsewhere = true,
                        Flow::Jump(label) | Flow::Branch(label) => {
                            let known = self.label_lines.contains_key(label);
                            let cold = is_cold_part(label);
                            procedure.ends_elsewhere |=
                                !cold && (!known || self.by_name.contains_key(label));
                            procedure.blocks += 1;
                        }
                        Flow::Next | Flow::Return | Flow::Stop => {}
                    }
                    goes_on = !matches!(
                        flow,
                        Flow::Jump(_) | Flow::Indirect | Flow::Return | Flow::Stop | Flow::Call(_)
                    );
                }
                Line::Label(label) => {
                    procedure.blocks += usize::from(self.targets.contains_key(label));
                    if self.landing_pads.contains(label)
                        && (goes_on || self.targets.get(label).is_some_and(|to| to.last_jump > 0))
                    {
                        procedure.refused = Some("a landing pad is reached by other ways too");
                    }
                }
                Line::Directive(..) | Line::Blank => {}
            }
            if procedure.blocks > BLOCKS_MAX {
                procedure.refused = Some("it has more than 2000 branches");
            }
        }
    }
}

fn mentions_register(instruction: &Instruction<'_>) -> bool {
    instruction.operands.contains("%r11") || instruction.operands.contains("_r11")
}

/// Local labels that the text names.
fn labels(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$');
    text.split(move |c| !is_part(c)).filter(|word| word.starts_with(".L"))
}

/// The section that lines go to.
#[derive(Debug)]
struct Sections<'a> {
    now: &'a str,
    before: &'a str,
    pushed: Vec<&'a str>,
}

impl Default for Sections<'_> {
    fn default() -> Self {
        Self { now: ".text", before: ".text", pushed: Vec::new() }
    }
}

impl<'a> Sections<'a> {
    fn read(&mut self, directive: &'a str, arguments: &'a str) {
        let name = || arguments.split(',').next().unwrap_or(arguments).trim().trim_matches('"');
        match directive {
            ".text" | ".data" | ".bss" => self.go(directive),
            ".section" => self.go(name()),
            ".pushsection" => {
                self.pushed.push(self.now);
                self.go(name());
            }
            ".popsection" => {
                if let Some(before) = self.pushed.pop() {
                    self.go(before);
                }
            }
            ".previous" => self.go(self.before),
            _ => {}
        }
    }

    fn go(&mut self, to: &'a str) {
        self.before = std::mem::replace(&mut self.now, to);
    }

    fn is_code(&self) -> bool {
        self.now == ".text" || self.now.starts_with(".text.")
    }

    /// Whether addresses of code in the section can be the target of a jump.
    fn refers_to_code(&self) -> bool {
        ![".debug", ".gcc_except_table", ".eh_frame", ".note", ".stab"]
            .iter()
            .any(|begin| self.now.starts_with(begin))
    }
}
