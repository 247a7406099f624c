//! One line of a compiler's assembly for x86-64, in AT&T syntax.

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Empty, or only a comment.
    Blank,
    /// The start of inline assembly, which gcc and clang mark with `#APP`.
    InlineBegin,
    /// The end of inline assembly, `#NO_APP`.
    InlineEnd,
    /// `NAME:`
    Label(&'a str),
    /// `.NAME ARGUMENTS`
    Directive(&'a str, &'a str),
    /// An instruction.
    Instruction(Instruction<'a>),
}

/// An instruction: its mnemonic without prefixes, and its operands as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// The mnemonic, with its size suffix.
    pub mnemonic: &'a str,
    /// All operands.
    pub operands: &'a str,
}

/// Prefixes that compilers write before the mnemonic on the same line.
const PREFIXES: [&str; 10] =
    ["rep", "repz", "repe", "repnz", "repne", "lock", "notrack", "bnd", "data16", "rex64"];

impl<'a> Line<'a> {
    /// Reads a line. A label with an instruction on the same line is not what compilers write
    /// outside inline assembly, so the rest of a label's line is taken for a comment.
    #[must_use]
    pub fn parse(line: &'a str) -> Self {
        let text = line.trim();
        match text.split_whitespace().next() {
            None => return Self::Blank,
            Some("#APP") => return Self::InlineBegin,
            Some("#NO_APP") => return Self::InlineEnd,
            Some(word) if word.starts_with('#') => return Self::Blank,
            Some(word) => {
                if let Some(label) = word.strip_suffix(':') {
                    return Self::Label(label.trim_matches('"'));
                }
            }
        }
        let text = text.split_once('#').map_or(text, |(before, _)| before.trim_end());
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if word.starts_with('.') {
            return Self::Directive(word, rest.trim());
        }
        let (mut mnemonic, mut operands) = (word, rest.trim());
        while PREFIXES.contains(&mnemonic) && !operands.is_empty() {
            let (next, rest) = operands.split_once(char::is_whitespace).unwrap_or((operands, ""));
            (mnemonic, operands) = (next, rest.trim());
        }
        Self::Instruction(Instruction { mnemonic, operands })
    }
}

/// The effect of an instruction on the order of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow<'a> {
    /// Execution continues with the next instruction.
    Next,
    /// Calls a procedure by name, or indirectly.
    Call(Option<&'a str>),
    /// Jumps to a label or symbol.
    Jump(&'a str),
    /// Branches to a label or symbol, or falls through.
    Branch(&'a str),
    /// Jumps to an address in a register or memory.
    Indirect,
    /// Returns.
    Return,
    /// Ends execution, such as `ud2`.
    Stop,
}

impl<'a> Instruction<'a> {
    /// The effect of the instruction on the order of execution.
    #[must_use]
    pub fn flow(&self) -> Flow<'a> {
        let operand = self.operands.trim_end_matches("@PLT");
        match self.mnemonic {
            "call" | "callq" if operand.starts_with('*') => Flow::Call(None),
            "call" | "callq" => Flow::Call(Some(operand)),
            "jmp" | "jmpq" if operand.starts_with('*') => Flow::Indirect,
            "jmp" | "jmpq" => Flow::Jump(operand),
            "ret" | "retq" | "iretq" => Flow::Return,
            "ud2" | "hlt" | "int3" => Flow::Stop,
            mnemonic if mnemonic.starts_with('j') || mnemonic.starts_with("loop") => {
                Flow::Branch(operand)
            }
            _ => Flow::Next,
        }
    }

    /// The effect of the instruction on the flags.
    #[must_use]
    pub fn flags(&self) -> Flags {
        let name = self.mnemonic;
        let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        if begins(&["adc", "sbb", "rcl", "rcr", "lahf", "pushf", "set", "cmov", "fcmov", "cmc"]) {
            return Flags::Reads;
        }
        match self.flow() {
            Flow::Branch(_) => return Flags::Reads,
            Flow::Call(_) | Flow::Return | Flow::Stop => return Flags::Kills,
            Flow::Jump(_) | Flow::Indirect | Flow::Next => {}
        }
        // Each of these writes all six flags, or leaves those that it does not write undefined.
        let integer = ["cmp", "test", "add", "sub", "and", "or", "xor", "neg", "imul", "mul"];
        let sizes = ["", "b", "w", "l", "q"];
        let is_integer = integer
            .iter()
            .any(|word| name.strip_prefix(word).is_some_and(|size| sizes.contains(&size)));
        if is_integer || begins(&["ucomis", "comis", "vucomis", "vcomis"]) {
            return Flags::Kills;
        }
        Flags::Keeps
    }
}

/// The effect of an instruction on the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// Reads some of them.
    Reads,
    /// Overwrites all flags and reads none, or leads to code where the ABI makes them dead.
    Kills,
    /// None of these for certain.
    Keeps,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_compilers_mean_by_them() {
        let instruction =
            |mnemonic, operands| Line::Instruction(Instruction { mnemonic, operands });
        for (text, expected) in [
            ("", Line::Blank),
            ("\t# a comment", Line::Blank),
            ("#APP", Line::InlineBegin),
            ("\t#NO_APP", Line::InlineEnd),
            (".L3:", Line::Label(".L3")),
            (".LBB0_1:                  # =>This Inner Loop", Line::Label(".LBB0_1")),
            ("\t.type\tmain, @function", Line::Directive(".type", "main, @function")),
            ("\tmovq\t%rsp, %rbp", instruction("movq", "%rsp, %rbp")),
            ("\tret", instruction("ret", "")),
            ("\tnotrack jmp\t*%rax", instruction("jmp", "*%rax")),
            ("\trep stosq", instruction("stosq", "")),
            ("\tlock cmpxchgl %edx, (%rdi)", instruction("cmpxchgl", "%edx, (%rdi)")),
        ] {
            assert_eq!(Line::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn flow_and_flags_of_instructions() {
        let read = |text| match Line::parse(text) {
            Line::Instruction(instruction) => instruction,
            other => panic!("{text}: {other:?}"),
        };
        for (text, flow, flags) in [
            ("call puts@PLT", Flow::Call(Some("puts")), Flags::Kills),
            ("call *8(%rax)", Flow::Call(None), Flags::Kills),
            ("jmp .L3", Flow::Jump(".L3"), Flags::Keeps),
            ("jne .L3", Flow::Branch(".L3"), Flags::Reads),
            ("jmp *%rax", Flow::Indirect, Flags::Keeps),
            ("ret", Flow::Return, Flags::Kills),
            ("ud2", Flow::Stop, Flags::Kills),
            ("cmpq $3, %rax", Flow::Next, Flags::Kills),
            ("sete %al", Flow::Next, Flags::Reads),
            ("sbbl %eax, %eax", Flow::Next, Flags::Reads),
            ("incl %eax", Flow::Next, Flags::Keeps),
            ("addsd %xmm0, %xmm1", Flow::Next, Flags::Keeps),
            ("orps %xmm0, %xmm1", Flow::Next, Flags::Keeps),
            ("movsd %xmm0, %xmm1", Flow::Next, Flags::Keeps),
        ] {
            assert_eq!(read(text).flow(), flow, "{text}");
            assert_eq!(read(text).flags(), flags, "{text}");
        }
    }
}
