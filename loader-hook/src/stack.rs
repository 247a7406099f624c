//! Reads environment and auxiliary vector (getauxval(3)) from the initial stack. The loader exports
//! its address.

use crate::memory::{self, word};

const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
/// Most entries of a dynamic section, or of one chain of a hash table, that are read.
const ENTRIES_MAX: usize = 256;
/// Bytes of a symbol table's entry.
const SYMBOL_BYTES: usize = 24;

const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const AT_SECURE: usize = 23;
const AT_EXECFN: usize = 31;
const AT_SYSINFO_EHDR: usize = 33;

/// The symbol of ld.so that has the stack's begin, since glibc 2.2 (x86-64) and 2.17 (arm64).
const SYMBOL: &[u8] = b"__libc_stack_end";

/// Values that the kernel passed to the program on the initial stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Address of the program's table of program headers.
    pub headers: usize,
    /// Entries of that table.
    pub headers_len: usize,
    /// True when the exec gained rights (AT_SECURE), so that the environment is not trusted.
    pub secure: bool,
    /// Address of the path given to execve(2).
    pub path: usize,
    /// Address of the kernel's own library (vdso).
    pub vdso: usize,
    /// Address of the first entry of the environment.
    environment: usize,
}

/// The start of the stack, as the object at `base` with this dynamic section exports it; None when
/// the object is not ld.so.
///
/// # Safety
/// The object is mapped, and its dynamic section is as the loader accepts it.
pub unsafe fn beginning(base: usize, dynamic: usize) -> Option<usize> {
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    for entry in 0..ENTRIES_MAX {
        // SAFETY: the section ends with tag 0, where this ends too.
        let (tag, value) = unsafe { (word(dynamic + 16 * entry), word(dynamic + 16 * entry + 8)) };
        match tag {
            0 => break,
            DT_STRTAB => strings = value,
            DT_SYMTAB => symbols = value,
            DT_GNU_HASH => hash = value,
            _ => {}
        }
    }
    if strings == 0 || symbols == 0 || hash == 0 {
        return None;
    }
    // The loader adds the base to these addresses in place, where it can write.
    let moved = |address: usize| if address < base { base + address } else { address };
    // SAFETY: the loader itself looks symbols up in these tables.
    let address = unsafe { lookup(moved(strings), moved(symbols), moved(hash)) }?;
    // SAFETY: a variable of ld.so, which is relocated and running.
    Some(unsafe { word(base.wrapping_add(address)) })
        .filter(|stack| *stack != 0 && stack.is_multiple_of(8))
}

/// The value of [`SYMBOL`], found through the GNU hash table: words of 32 bits: buckets, first
/// symbol, Bloom words, shift; Bloom words of 64 bits; a symbol for each bucket; a hash for each
/// symbol, its lowest bit set in the last of a bucket.
///
/// # Safety
/// The three tables are as the loader accepts them.
unsafe fn lookup(strings: usize, symbols: usize, hash: usize) -> Option<usize> {
    // SAFETY: the caller's promise, for all addresses below.
    let at = |address: usize| unsafe { *(address as *const u32) } as usize;
    let wanted = SYMBOL
        .iter()
        .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
    let (buckets, first, bloom) = (at(hash), at(hash + 4), at(hash + 8));
    let bucket_table = hash + 16 + 8 * bloom;
    let chains = bucket_table + 4 * buckets;
    let bucket = (wanted as usize).checked_rem(buckets)?;
    let start = at(bucket_table + 4 * bucket);
    for symbol in (start >= first && start != 0).then_some(start..start + ENTRIES_MAX)? {
        let found = at(chains + 4 * (symbol - first));
        if (found as u32 | 1) == (wanted | 1) {
            let entry = symbols + SYMBOL_BYTES * symbol;
            // SAFETY: a name is a string in the table of strings.
            let name = unsafe { memory::string((strings + at(entry)) as *const u8, SYMBOL.len()) };
            if name == Some(SYMBOL) {
                // SAFETY: the symbol's value is the second word of its entry.
                return Some(unsafe { word(entry + 8) });
            }
        }
        if found & 1 == 1 {
            break;
        }
    }
    None
}

impl Start {
    /// Values before the stack is found.
    pub const UNKNOWN: Self =
        Self { headers: 0, headers_len: 0, secure: false, path: 0, vdso: 0, environment: 0 };

    /// Reads the stack that begins here: number of arguments, arguments, null, environment, null,
    /// auxiliary vector.
    ///
    /// # Safety
    /// The stack must begin here, and the program must not have run yet.
    pub unsafe fn read(stack: usize) -> Self {
        // SAFETY: these words are the kernel's, up to the null or the type 0 that ends each list.
        let word = |address| unsafe { word(address) };
        let environment = stack + 8 * (word(stack) + 2);
        let mut at = environment;
        while word(at) != 0 {
            at += 8;
        }
        at += 8;
        let mut start = Self { environment, ..Self::UNKNOWN };
        while word(at) != 0 {
            let value = word(at + 8);
            match word(at) {
                AT_PHDR => start.headers = value,
                AT_PHNUM => start.headers_len = value,
                AT_SECURE => start.secure = value != 0,
                AT_EXECFN => start.path = value,
                AT_SYSINFO_EHDR => start.vdso = value,
                _ => {}
            }
            at += 16;
        }
        start
    }

    /// The value of a variable whose name, with `=`, is `name`. The outer None: the variable is not
    /// set; the inner None: the value has more than `max` bytes.
    ///
    /// # Safety
    /// The program has not run yet.
    pub unsafe fn variable(&self, name: &[u8], max: usize) -> Option<Option<&'static [u8]>> {
        let mut at = self.environment;
        loop {
            // SAFETY: the list ends with null, where this ends too.
            let entry = unsafe { word(at) } as *const u8;
            if entry.is_null() {
                return None;
            }
            // SAFETY: strings of the environment end in NUL, so none is read beyond its end.
            let is_it =
                name.iter().enumerate().all(|(at, byte)| unsafe { *entry.add(at) } == *byte);
            if is_it {
                // SAFETY: the same string, after the name.
                return Some(unsafe { memory::string(entry.add(name.len()), max) });
            }
            at += 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_read_as_the_kernel_writes_it() {
        let strings = [c"/bin/x", c"-v", c"HOME=/", c"DCPI=/run/x", c"DCPI_OTHER=1"];
        let [path, flag, home, dcpi, other] = strings.map(|text| text.as_ptr() as usize);
        let stack = [
            2,
            path,
            flag,
            0,
            home,
            other,
            dcpi,
            0,
            AT_SECURE,
            1,
            AT_PHDR,
            0x40,
            AT_PHNUM,
            9,
            AT_EXECFN,
            path,
            AT_SYSINFO_EHDR,
            7,
            0,
            0,
        ];
        // SAFETY: laid out as the kernel does.
        let start = unsafe { Start::read(stack.as_ptr() as usize) };
        let environment = &raw const stack[4] as usize;
        assert_eq!(
            start,
            Start { headers: 0x40, headers_len: 9, secure: true, path, vdso: 7, environment }
        );
        // SAFETY: as above.
        let variable = |name: &str, max| unsafe { start.variable(name.as_bytes(), max) };
        assert_eq!(variable("DCPI=", 100), Some(Some(&b"/run/x"[..])));
        assert_eq!(variable("DCPI=", 3), Some(None), "too long");
        assert_eq!(variable("DCP=", 100), None);
    }
}
