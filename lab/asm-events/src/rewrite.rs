//! Adds events to a compiler's assembly.
//!
//! The position where the next event goes is in r11 while a procedure with events runs, and in the
//! thread's storage (`dcpi_trace_position`) at all other times: stored before each call, jump or
//! return that leaves code with events, loaded at each entry, after each such call and at each
//! landing pad. The System V ABI lets every procedure change r11 and passes nothing in it, and gcc
//! leaves it free with `-ffixed-r11`. So callbacks, exceptions, longjmp, threads and libraries need
//! nothing else. Calls within a file go behind the load, with the position in the register.
//!
//! An event is two instructions, neither of which touches flags or other registers: 4 bytes with
//! the distance of the event's own address from `dcpi_trace_origin` are stored, and the position
//! moves on. The linker computes the distance, so numbers are unique in a program, whatever files
//! it consists of, and lead to procedure and line like any address.
//!
//! Blocks that are only reached from the block before them are a chain: each but the first
//! overwrites the event of the one before, so an event says how far its chain was executed, and
//! costs one instruction. A chain ends at a label and at a call.
//!
//! A block that is a loop by itself only moves the position on, and stores its event when it is
//! left: places that are 0 before an event are repetitions of the first block of its chain.
//!
//! Most loads would make the next event wait for the one before by way of memory. So the position
//! is compared with the thread's storage, and loaded only where it differs: processors predict
//! that.
//!
//! The bit 15 of a position says that there is room, so moving on by a 16-bit addition says it by
//! the sign flag. Where flags are live, `lea` moves on and room is not checked; at least 32 KiB
//! follow. Each circle is checked: events at labels that jumps from behind lead to, events of
//! entries, and before returns of procedures that call.

use crate::line::{Flow, Instruction, Line};
use crate::survey::{Survey, is_cold_part};
use std::fmt::Write as _;

/// The places that get events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At each basic block.
    Blocks,
    /// At the start of each statement (`.loc` with `is_stmt`).
    Statements,
    /// Nowhere: the list of blocks is written, and no instruction is added.
    Nowhere,
}

/// The data that an event writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its identity, 4 bytes.
    Identity,
    /// The time stamp counter, 8 bytes, and the number of the place in the file, 8 bytes. Needs r9
    /// and r10 as well, in procedures of five parameters at most.
    Time,
    /// As [`Self::Time`], with the counter read between two fences.
    FencedTime,
}

/// The inserted code.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The places that get events.
    pub place: Place,
    /// The data that an event writes.
    pub content: Content,
    /// Events at each place: 1, or 2 to measure the cost of an event there.
    pub times: usize,
    /// Whether only every second place of the file gets an event.
    pub half: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { place: Place::Blocks, content: Content::Identity, times: 1, half: false }
    }
}

impl Options {
    /// Reads the words of the variable `DCPI_EVENTS`, such as `statements,fenced,twice`: which
    /// events are compiled in. None where a word is not known.
    #[must_use]
    pub fn read(words: &str) -> Option<Self> {
        let mut options = Self::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            match word {
                "blocks" => options.place = Place::Blocks,
                "statements" => options.place = Place::Statements,
                "nowhere" => options.place = Place::Nowhere,
                "identities" => options.content = Content::Identity,
                "times" => options.content = Content::Time,
                "fenced" => options.content = Content::FencedTime,
                "twice" => options.times = 2,
                "half" => options.half = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// A file with events.
#[derive(Debug)]
pub struct Rewritten {
    /// The assembly.
    pub text: String,
    /// Number of events.
    pub blocks: usize,
    /// Procedures without events, with the reason.
    pub refused: Vec<(String, &'static str)>,
}

/// The section with the address of each event, 8 bytes each, in the order of the file. Its name
/// begins with `.debug`, so that the linker writes 0 for code that it left out, and no complaint.
pub const BLOCKS_SECTION: &str = ".debug_dcpi_blocks";

/// Added to the address of an event that overwrites the one listed before it.
pub const CHAINED: u64 = 1 << 63;

/// Procedures whose calls are redirected to the tracer's: signal handlers interrupt code between
/// two events, and a vfork child runs in its parent's memory.
const REPLACED: [(&str, &str); 3] = [
    ("sigaction", "dcpi_trace_sigaction"),
    ("signal", "dcpi_trace_signal"),
    ("fork", "dcpi_trace_fork"),
];

/// Adds events to a compiler's assembly.
#[must_use]
pub fn rewrite(text: &str, options: &Options) -> Rewritten {
    let survey = Survey::new(text);
    let mut out = Output {
        survey: &survey,
        options,
        text: String::with_capacity(text.len() * 2),
        apart_count: 0,
        blocks: Vec::new(),
        chain: false,
        repeats: None,
        entry: None,
        begins: None,
        statement: false,
        is_stmt: true,
        stored: false,
    };
    for (number, line) in text.lines().enumerate() {
        out.line(number, line);
    }
    if !out.blocks.is_empty() {
        _ = writeln!(out.text, "\t.section\t{BLOCKS_SECTION},\"\",@progbits");
        for (number, chained) in out.blocks.iter().enumerate() {
            let chained = if *chained { CHAINED } else { 0 };
            _ = writeln!(out.text, "\t.quad\t.Ldcpi_e{number}+{chained}");
        }
    }
    let blocks = out.blocks.len();
    let refused =
        survey.procedures.iter().filter_map(|it| Some((it.name.to_owned(), it.refused?))).collect();
    Rewritten { text: out.text, blocks, refused }
}

/// A block that begins at the next instruction.
#[derive(Clone, Copy, Debug, Default)]
struct Begin {
    load: bool,
    check: bool,
    /// Whether only the block before leads here.
    falls: bool,
    /// Whether the block alone is a loop.
    alone: bool,
}

struct Output<'a> {
    survey: &'a Survey<'a>,
    options: &'a Options,
    text: String,
    apart_count: usize,
    /// For each event so far, whether it overwrites the one before.
    blocks: Vec<bool>,
    /// Whether the next event may overwrite the last one.
    chain: bool,
    /// The event of the loop that this block alone forms.
    repeats: Option<usize>,
    /// The procedure whose entry is at the next instruction.
    entry: Option<usize>,
    begins: Option<Begin>,
    /// Whether a statement begins at the next instruction.
    statement: bool,
    is_stmt: bool,
    /// Whether the code before has stored the position in the thread's memory already, where the
    /// procedure that is called next looks for it.
    stored: bool,
}

impl Output<'_> {
    fn line(&mut self, number: usize, text: &str) {
        let survey = self.survey;
        let owner = survey.owner.get(number).copied().flatten();
        let procedure = owner.and_then(|owner| survey.procedures.get(owner));
        let Some(procedure) = procedure.filter(|it| it.refused.is_none()) else {
            self.copy(text);
            return;
        };
        match survey.lines.get(number) {
            Some(Line::Label(label)) => {
                if survey.by_name.contains_key(label) {
                    (self.entry, self.begins) = (owner, None);
                } else if survey.begins_block(label) || is_cold_part(label) {
                    // A jump to the start of a procedure must not load the position again.
                    self.enter();
                    let before = self.begins.unwrap_or_default();
                    self.begins = Some(Begin {
                        load: before.load || survey.is_landing_pad(label),
                        check: before.check
                            || survey.is_landing_pad(label)
                            || survey.closes_circle(label),
                        falls: false,
                        alone: survey.loops_alone(label, number + 1),
                    });
                }
                self.copy(text);
            }
            Some(Line::Directive(".loc", arguments)) => {
                // The word is left out where the state stays as it is.
                if let Some((_, rest)) = arguments.split_once("is_stmt") {
                    self.is_stmt = rest.trim_start().starts_with('1');
                }
                self.statement |= self.is_stmt;
                self.copy(text);
            }
            Some(Line::InlineBegin) => {
                self.begin(number);
                if survey.clobbering.contains(&number) {
                    self.store();
                }
                self.copy(text);
            }
            Some(Line::InlineEnd) => {
                self.copy(text);
                self.chain = false;
                if survey.clobbering.contains(&number) {
                    self.load();
                }
            }
            Some(Line::Instruction(instruction)) if instruction.mnemonic == "endbr64" => {
                self.copy(text);
            }
            Some(Line::Instruction(instruction)) => {
                self.begin(number);
                self.instruction(text, instruction, procedure.calls);
            }
            _ => self.copy(text),
        }
    }

    fn instruction(&mut self, text: &str, it: &Instruction<'_>, calls: bool) {
        let replaced = self.replaced(text);
        let text = replaced.as_deref().unwrap_or(text);
        match it.flow() {
            Flow::Call(to) => {
                self.chain = false;
                let within = self.survey.within(it.operands);
                match within {
                    Some(callee) if !self.is_plain() => {
                        self.add(&format!("call\t{}", inner(self.survey, callee.name)));
                    }
                    _ => {
                        if !std::mem::take(&mut self.stored) {
                            self.store();
                        }
                        self.copy(text);
                    }
                }
                if within.is_none_or(|callee| callee.ends_elsewhere) {
                    self.confirm(false);
                }
                if to.is_some_and(Survey::returns_twice) {
                    self.begins = Some(Begin::default());
                }
            }
            Flow::Jump(to) if self.survey.stays(to) => self.copy(text),
            Flow::Jump(_) => match self.survey.within(it.operands) {
                Some(callee) if !self.is_plain() => {
                    self.add(&format!("jmp\t{}", inner(self.survey, callee.name)));
                }
                _ => {
                    self.store();
                    self.copy(text);
                }
            },
            Flow::Branch(to) => {
                if !self.survey.stays(to) {
                    self.store();
                }
                self.copy(text);
                if let Some(repeated) = self.repeats.take() {
                    self.add(&format!("movl\t$dcpi_trace_origin-.Ldcpi_e{repeated}, -4(%r11)"));
                }
                self.begins = Some(Begin { falls: true, ..Begin::default() });
            }
            Flow::Indirect => {
                self.store();
                self.copy(text);
            }
            Flow::Return => {
                if calls {
                    self.check(false);
                }
                self.store();
                self.copy(text);
            }
            Flow::Next | Flow::Stop => {
                // The linker knows the sequence that asks for a thread's variable only as a whole.
                if it.operands.contains("@tlsgd") || it.operands.contains("@tlsld") {
                    self.store();
                    self.stored = true;
                }
                self.copy(text);
            }
        }
    }

    /// Begins the procedure, if it has not begun.
    fn enter(&mut self) {
        let Some(owner) = self.entry.take() else { return };
        self.begins = Some(Begin::default());
        if !self.is_plain() {
            self.confirm(true);
            _ = writeln!(self.text, ".Ldcpi_i{owner}:");
            if self.options.content != Content::Identity {
                self.check(false);
            }
        }
    }

    /// Emits the code before an instruction at which a procedure, a block or a statement begins.
    fn begin(&mut self, number: usize) {
        self.enter();
        let begins = self.begins.take();
        let flags_live = begins.is_some() && self.survey.flags_live(number);
        if let Some(begin) = begins {
            if begin.load {
                self.load();
            }
            let checks_itself = !flags_live
                && self.options.content == Content::Identity
                && self.options.place == Place::Blocks;
            if begin.load || (begin.check && !checks_itself) {
                self.check(flags_live);
            }
        }
        let statement = std::mem::take(&mut self.statement);
        match self.options.place {
            Place::Blocks | Place::Nowhere => {
                if let Some(begin) = begins {
                    let alone = begin.alone
                        && !flags_live
                        && !self.is_plain()
                        && self.options.content == Content::Identity
                        && self.options.times == 1
                        && !self.options.half;
                    if alone {
                        self.repeats = Some(self.blocks.len());
                    }
                    self.event(begin.falls && self.chain, flags_live);
                }
            }
            Place::Statements if statement => self.event(false, true),
            Place::Statements => {}
        }
    }

    fn event(&mut self, chained: bool, flags_live: bool) {
        _ = writeln!(self.text, ".Ldcpi_e{}:", self.blocks.len());
        self.blocks.push(chained);
        self.chain = self.options.content == Content::Identity;
        let number = self.blocks.len() - 1;
        if self.is_plain() || (self.options.half && number % 2 == 1) {
            return;
        }
        if chained {
            self.add("movl\t$dcpi_trace_origin-., -4(%r11)");
            return;
        }
        for _ in 0..self.options.times {
            match self.options.content {
                Content::Identity => {
                    if self.repeats.is_none() {
                        self.add("movl\t$dcpi_trace_origin-., (%r11)");
                    }
                    if flags_live {
                        self.add("leaq\t4(%r11), %r11");
                    } else {
                        self.add("addw\t$4, %r11w");
                        self.when_full();
                    }
                }
                Content::Time | Content::FencedTime => {
                    let fence = self.options.content == Content::FencedTime;
                    let fence = if fence { "lfence; " } else { "" };
                    self.add(&format!("movl\t${number}, 8(%r11)"));
                    self.add("movq\t%rax, %r9; movq\t%rdx, %r10");
                    self.add(&format!("{fence}rdtsc; {fence}movl\t%eax, (%r11)"));
                    self.add("movl\t%edx, 4(%r11); leaq\t16(%r11), %r11");
                    self.add("movq\t%r9, %rax; movq\t%r10, %rdx");
                }
            }
        }
    }

    /// Checks that there is room.
    fn check(&mut self, flags_live: bool) {
        if self.is_plain() {
            return;
        }
        if flags_live {
            self.add("leaq\t-128(%rsp), %rsp; pushfq");
        }
        self.add("testw\t%r11w, %r11w");
        self.when_full();
        if flags_live {
            self.add("popfq; leaq\t128(%rsp), %rsp");
        }
    }

    /// Emits a call of the tracer for the case that the sign flag marks the chunk as full.
    fn when_full(&mut self) {
        // Leaf procedures use 128 bytes below their stack.
        let way = "leaq\t-128(%rsp), %rsp; call\tdcpi_trace_full; leaq\t128(%rsp), %rsp";
        self.apart("jns", way);
    }

    /// Loads the position if it is not the register's.
    fn confirm(&mut self, is_entry: bool) {
        if self.is_plain() {
            return;
        }
        self.add("cmpq\t%fs:dcpi_trace_position@tpoff, %r11");
        let load = "movq\t%fs:dcpi_trace_position@tpoff, %r11";
        if is_entry {
            // A thread begins with a position that is full.
            let back = self.apart_count;
            let test = format!("testw\t%r11w, %r11w; js\t.Ldcpi_b{back}");
            let begin = "leaq\t-128(%rsp), %rsp; call\tdcpi_trace_full; leaq\t128(%rsp), %rsp";
            self.apart("jne", &format!("{load}; {test}; {begin}"));
        } else {
            self.apart("jne", load);
        }
    }

    /// Emits a branch to rarely executed code, which is placed after all other code of the section
    /// and jumps back.
    fn apart(&mut self, branch: &str, code: &str) {
        let number = self.apart_count;
        self.apart_count += 1;
        self.add(&format!("{branch}\t.Ldcpi_f{number}"));
        self.add(".subsection\t1");
        _ = writeln!(self.text, ".Ldcpi_f{number}:");
        self.add(code);
        self.add(&format!("jmp\t.Ldcpi_b{number}"));
        self.add(".subsection\t0");
        _ = writeln!(self.text, ".Ldcpi_b{number}:");
    }

    fn load(&mut self) {
        if !self.is_plain() {
            self.add("movq\t%fs:dcpi_trace_position@tpoff, %r11");
        }
    }

    fn store(&mut self) {
        if !self.is_plain() {
            self.add("movq\t%r11, %fs:dcpi_trace_position@tpoff");
        }
    }

    fn replaced(&self, text: &str) -> Option<String> {
        if self.is_plain() {
            return None;
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '$' | '%');
        REPLACED.iter().find_map(|(name, by)| {
            let at = text.find(name)?;
            let (before, rest) = text.split_at_checked(at)?;
            let after = rest.get(name.len()..)?;
            let alone = !before.ends_with(|c| is_part(c) && c != '$')
                && !after.starts_with(is_part)
                && !self.survey.by_name.contains_key(name);
            alone.then(|| format!("{before}{by}{after}"))
        })
    }

    fn is_plain(&self) -> bool {
        self.options.place == Place::Nowhere
    }

    fn copy(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn add(&mut self, instruction: &str) {
        _ = writeln!(self.text, "\t{instruction}");
    }
}

/// The entry of a procedure, after the load of the position.
fn inner(survey: &Survey<'_>, name: &str) -> String {
    survey.by_name.get(name).map_or_else(|| name.to_owned(), |index| format!(".Ldcpi_i{index}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: &str = "%fs:dcpi_trace_position@tpoff, %r11";

    fn rewritten(body: &str) -> Rewritten {
        let text = format!(
            "\t.text\n\t.type\tf, @function\nf:\n{body}\t.size\tf, .-f\n\t.ident\t\"GCC: 12\"\n"
        );
        rewrite(&text, &Options::default())
    }

    /// Lines without the data that is appended after the code.
    fn main_line(text: &str) -> Vec<&str> {
        let mut apart = false;
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim) {
            match line {
                ".subsection\t1" => apart = true,
                ".subsection\t0" => apart = false,
                _ if !apart && !line.starts_with('.') => lines.push(line),
                _ => {}
            }
        }
        lines
    }

    #[test]
    fn the_position_is_stored_where_code_is_left_and_confirmed_where_it_comes_back() {
        let out = rewritten("\tcall\tputs@PLT\n\tret\n");
        let lines = main_line(&out.text);
        let call = lines.iter().position(|line| line.starts_with("call")).unwrap();
        assert_eq!(lines[call - 1], "movq\t%r11, %fs:dcpi_trace_position@tpoff");
        assert_eq!(lines[call + 1], format!("cmpq\t{LOAD}"));
        let end = lines.iter().position(|line| *line == "ret").unwrap();
        assert_eq!(lines[end - 1], "movq\t%r11, %fs:dcpi_trace_position@tpoff");
        assert_eq!((out.blocks, out.refused.len()), (1, 0));
    }

    #[test]
    fn blocks_of_a_chain_overwrite_each_other() {
        let out =
            rewritten("\tcmpl\t$1, %edi\n\tje\t.L2\n\tcmpl\t$2, %edi\n\tje\t.L2\n.L2:\n\tret\n");
        assert_eq!(out.blocks, 3);
        assert_eq!(out.text.matches("dcpi_trace_origin-., -4(%r11)").count(), 1);
        assert_eq!(out.text.matches("dcpi_trace_origin-., (%r11)").count(), 2);
        assert!(out.text.contains(&format!(".quad\t.Ldcpi_e1+{CHAINED}")));
    }

    #[test]
    fn a_loop_by_itself_stores_when_it_is_left() {
        let out = rewritten(
            "\txorl\t%eax, %eax\n.L2:\n\taddl\t$1, %eax\n\tcmpl\t%eax, %edi\n\tjne\t.L2\n\tret\n",
        );
        let lines = main_line(&out.text);
        let label = out.text.find("\n.L2:").unwrap();
        let jump = out.text.find("jne\t.L2").unwrap();
        assert!(!out.text[label..jump].contains("dcpi_trace_origin"));
        let jump = lines.iter().position(|line| *line == "jne\t.L2").unwrap();
        assert!(lines[jump + 1].ends_with("dcpi_trace_origin-.Ldcpi_e1, -4(%r11)"));
    }

    #[test]
    fn flags_that_are_live_are_kept() {
        let out = rewritten("\tcmpl\t$1, %edi\n.L3:\n\tje\t.L2\n\tjmp\t.L3\n.L2:\n\tret\n");
        let label = out.text.find("\n.L3:").unwrap();
        let jump = out.text.find("je\t.L2").unwrap();
        let between = &out.text[label..jump];
        assert!(between.contains("pushfq") && between.contains("popfq"), "{between}");
        assert!(between.contains("leaq\t4(%r11), %r11"), "{between}");
        assert!(!between.contains("addw"), "{between}");
    }

    /// Hundreds of vector instructions do not change the flags.
    #[test]
    fn flags_are_dead_where_the_next_to_touch_them_is_far() {
        let far = "\t.loc 1 2 3\n\taddsd\t%xmm0, %xmm1\n".repeat(1000);
        let body =
            format!("\tcmpl\t$1, %edi\n\tje\t.L2\n.L3:\n{far}\taddl\t$1, %eax\n.L2:\n\tret\n");
        assert!(!rewritten(&body).text.contains("pushfq"));
    }

    #[test]
    fn what_uses_the_register_is_left_as_it_is() {
        let out = rewritten("\tmovq\t%rdi, %r11\n\tret\n");
        assert_eq!(out.blocks, 0);
        assert_eq!(out.refused, [("f".to_owned(), "the compiler uses the register r11 in it")]);
        assert!(!out.text.contains("dcpi_trace"));
    }

    #[test]
    fn inline_assembly_that_may_change_the_register_is_put_between() {
        let out = rewritten("#APP\n\tsyscall\n#NO_APP\n\tret\n");
        let begin = out.text.find("#APP").unwrap();
        assert!(out.text[..begin].trim_end().ends_with("%r11, %fs:dcpi_trace_position@tpoff"));
        let after = out.text.split("#NO_APP\n").nth(1).unwrap();
        assert!(after.starts_with(&format!("\tmovq\t{LOAD}")));
    }

    #[test]
    fn handlers_and_children_go_through_the_tracer() {
        let out = rewritten("\tcall\tsigaction@PLT\n\tcall\tfork\n\tcall\tmy_fork\n\tret\n");
        assert!(out.text.contains("call\tdcpi_trace_sigaction@PLT"));
        assert!(out.text.contains("call\tdcpi_trace_fork\n"));
        assert!(out.text.contains("call\tmy_fork\n"));
    }

    #[test]
    fn nothing_but_labels_is_added_nowhere() {
        let body = "\tcall\tfork\n\tcmpl\t$1, %edi\n\tje\t.L2\n.L2:\n\tret\n";
        let text = format!("\t.text\n\t.type\tf, @function\nf:\n{body}\t.size\tf, .-f\n");
        let options = Options::read("nowhere").unwrap();
        let plain = rewrite(&text, &options);
        let code: Vec<&str> = plain.text.lines().filter(|line| !line.contains("dcpi")).collect();
        let end = code.iter().position(|line| line.contains(".quad")).unwrap_or(code.len());
        assert_eq!(code[..end], text.lines().collect::<Vec<_>>());
        assert_eq!(plain.blocks, rewrite(&text, &Options::default()).blocks);
    }
}
