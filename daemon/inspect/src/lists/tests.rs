//! Readers of Ruby and PHP on made-up memory.

use super::*;
use crate::python::tests::Bytes;
use image::Layout as FileLayout;

const ISEQ: u64 = 0x1000;
const BODY: u64 = 0x2000;
const CODE: u64 = 0x3000;
const TABLE: u64 = 0x4000;
const INDEX: u64 = 0x5000;

/// An iseq of Ruby 3.1 named `leaf`, with a line for each of its first 54 instructions and each
/// tenth of those behind.
fn iseq() -> Bytes {
    let memory = Bytes::default();
    memory.put_words(ISEQ, &[(0, 0x1a | 7 << 12), (16, BODY)]);
    memory.put_words(BODY, &[(0, 1000 << 32), (8, CODE), (120, TABLE), (136, 100), (144, INDEX)]);
    // The path is an array of two texts, the label a text in the object.
    memory.put_words(BODY + 64, &[(0, 0x6000), (16, 0x6100), (24, 7 << 1 | 1)]);
    memory.put_words(0x6000, &[(0, 0x07 | 1 << 13), (16, 0x6200), (24, 0x6200)]);
    memory.put_words(0x6100, &[(0, 0x05 | 4 << 14)]);
    memory.put(0x6110, b"leaf");
    memory.put_words(0x6200, &[(0, 0x05 | 1 << 13), (16, 7), (24, 0x6300)]);
    memory.put(0x6300, b"/x/f.rb");
    memory.put_words(CODE, &[(0, 0x77_0010)]);
    for word in 0..6 {
        let ranks = (0..9).fold(0, |all, at| all | (9 * word + at + 1) << (7 * at));
        memory.put_words(INDEX, &[(8 * word, ranks)]);
    }
    let bits = (0..64).step_by(10).fold(0_u64, |all, bit| all | 1 << bit);
    memory.put_words(INDEX + 48, &[(0, 54), (8, 7), (16, bits), (24, 1)]);
    for entry in 0..100 {
        memory.put(TABLE + 12 * entry, &(100 + entry as u32).to_le_bytes());
        memory.put(TABLE + 12 * entry + 4, &[0; 8]);
    }
    memory
}

fn line(memory: &Bytes, instructions: u64) -> Option<u32> {
    iseqs::line(memory, (ISEQ, CODE + 8 * instructions), &iseqs::Layout::of((3, 1)))
}

#[test]
fn functions_of_ruby_have_names_files_and_lines() {
    let memory = iseq();
    let layout = iseqs::Layout::of((3, 1));
    let function = iseqs::function(&memory, ISEQ, &layout);
    assert_eq!(function, Some(("leaf".to_owned(), "/x/f.rb".to_owned(), 7)));
    assert_eq!(iseqs::first_handler(&memory, ISEQ), Some(0x77_0010));
    assert_eq!(line(&memory, 0), Some(100), "it has not begun");
    assert_eq!(line(&memory, 1), Some(100));
    assert_eq!(line(&memory, 54), Some(153), "the last with a rank in the head");
    assert_eq!(line(&memory, 55), Some(154), "the first of a block");
    assert_eq!(line(&memory, 64), Some(154));
    assert_eq!(line(&memory, 65), Some(155));
    assert_eq!(line(&memory, 54 + 65), Some(161), "in the block's second word");
    assert_eq!(line(&memory, 1001), None, "behind the end");
    assert_eq!(iseqs::line(&memory, (ISEQ, CODE - 8), &layout), None);
    assert_eq!(iseqs::line(&memory, (BODY, CODE), &layout), None, "no iseq");
}

#[test]
fn what_is_no_function_of_ruby_has_no_name() {
    let layout = iseqs::Layout::of((3, 1));
    let function = |memory: &Bytes| iseqs::function(memory, ISEQ, &layout);
    for (at, word) in [
        (ISEQ, 0x1a | 6 << 12),
        (ISEQ + 16, 0),
        (ISEQ + 16, 0x9000),
        (BODY + 64, 0x6300),
        (0x6000, 0x0b),
        (0x6100, 0x05 | 1 << 13),
        (0x6100, 0x05 | 31 << 14),
        (0x6110, 0x6601_656c),
        (0x6210, 1 << 40),
        (BODY + 88, 1 << 40),
    ] {
        let memory = iseq();
        assert!(function(&memory).is_some());
        memory.put_words(at, &[(0, word)]);
        assert_eq!(function(&memory), None, "{word:#x} at {at:#x}");
    }
    for (at, word) in [(BODY, 1 << 32), (BODY + 136, 0), (BODY + 144, 0x9000), (INDEX, 0)] {
        let memory = iseq();
        memory.put_words(at, &[(0, word)]);
        assert_eq!(line(&memory, 3), None, "{word:#x} at {at:#x}");
    }
}

fn frame(code: u64, flags: u64) -> PythonFrame {
    PythonFrame { code, instruction: 0, flags }
}

#[test]
fn frames_of_ruby_belong_to_the_call_of_the_loop_that_returns_after_them() {
    let (method, last, of_c, dummy) =
        (frame(1, 0), frame(2, 0x20), frame(0, 0x80), frame(3, 0x7999_0023));
    let shape = |frames: &[PythonFrame]| {
        let groups = ruby::groups(frames);
        groups.iter().map(|group| (group.frames.len(), group.is_whole)).collect::<Vec<_>>()
    };
    assert_eq!(shape(&[method, last, of_c, method, method, last, dummy]), [(2, true), (3, true)]);
    assert_eq!(shape(&[last, of_c, method]), [(1, true), (1, false)]);
    assert_eq!(shape(&[of_c, dummy]), []);
}

const FUNCTION: u64 = 0x1000;

/// A method `A::f` of PHP 8.2, of the lines 5 to 9.
fn method() -> Bytes {
    let memory = Bytes::default();
    memory.put_words(FUNCTION, &[(0, 2), (8, 0x2000), (16, 0x3000), (152, 0x2100)]);
    memory.put_words(FUNCTION + 160, &[(0, 5 | 9 << 32)]);
    for (at, text) in [(0x2000, &b"f"[..]), (0x2100, b"/x/f.php"), (0x2200, b"A")] {
        memory.put_words(at, &[(16, text.len() as u64)]);
        memory.put(at + 24, text);
    }
    memory.put_words(0x3000, &[(8, 0x2200)]);
    memory.put_words(0x4000, &[(24, 6 | 0x3c << 32)]);
    memory
}

fn php() -> php::Program {
    php::Program::with(152, FileLayout::default())
}

#[test]
fn functions_of_php_have_names_files_and_lines() {
    let (memory, php) = (method(), php());
    let function = php.function(&memory, FUNCTION).expect("a method");
    assert_eq!((function.name.as_str(), function.file.as_str()), ("A::f", "/x/f.php"));
    assert_eq!((function.first_line, function.language), (5, crate::questions::Language::Php));
    assert_eq!(php.line_at(&memory, FUNCTION, 0x4000), Some(6));
    assert_eq!(php.line_at(&memory, FUNCTION, 0x4004), None);
    memory.put_words(0x4000, &[(24, 10)]);
    assert_eq!(php.line_at(&memory, FUNCTION, 0x4000), None, "no line of it");
    for (at, word) in [
        (FUNCTION, 1),
        (FUNCTION + 8, 0x9000),
        (FUNCTION + 16, u64::MAX),
        (FUNCTION + 160, 9 | 5 << 32),
        (0x2010, 0),
        (0x2010, 1 << 40),
        (0x2110, u64::MAX),
    ] {
        let memory = method();
        memory.put_words(at, &[(0, word)]);
        assert_eq!(php.function(&memory, FUNCTION), None, "{word:#x} at {at:#x}");
    }
    let main = method();
    main.put_words(FUNCTION, &[(8, 0), (16, 0)]);
    assert_eq!(php.function(&main, FUNCTION).expect("a file").name, "{main}");
}

#[test]
fn frames_of_php_belong_to_the_call_of_the_loop_that_c_has_called() {
    let memory = method();
    memory.put_words(0x5000, &[(0, 1)]);
    let (nested, top, internal) =
        (frame(FUNCTION, 0), frame(FUNCTION, 1 << 17), frame(0x5000, 1 << 17));
    let frames = [nested, top, internal, nested, top];
    let groups = php::groups(&memory, &frames);
    assert_eq!(groups.iter().map(|it| it.frames.len()).collect::<Vec<_>>(), [2, 2]);
    assert!(php::groups(&memory, &[frame(0, 0), frame(0x9000, 0)]).is_empty());
    assert!(!php::groups(&memory, &[nested])[0].is_whole);
}

#[test]
fn versions_are_in_constants_and_names_of_files() {
    assert_eq!(php::version_in(b"\0X-Powered-By: PHP/8.2.36-1~deb\0\0"), Some((8, 2)));
    assert_eq!(php::version_in(b"X-Powered-By: PHP/x.2.36 and more"), None);
    assert_eq!(php::version_in(b"X-Powered-By: PHP/8"), None);
    assert!(may_be_listed(b"/usr/bin/php8.2") && may_be_listed(b"/x/libruby-3.1.so.3.1 (deleted)"));
    assert!(!may_be_listed(b"/usr/lib/php/20220829/json.so") && !may_be_listed(b"/ruby/bin/x"));
}

/// A VM whose main thread has its context at 0x9_0000 and the C library's thread at 0xa_0000, in
/// the word at `thread_at` of the thread's structure or, behind it, of a native thread's.
fn vm(thread_at: u64, native_at: Option<u64>) -> Bytes {
    let memory = Bytes::default();
    memory.put_words(0x1000, &[(0, 0x2000)]);
    memory.put_words(0x2000, &[(0, 5), (8, 0x2000), (16, 0x3000)]);
    memory.put_words(0x3000, &[(0, 1), (8, 0x9_0000)]);
    memory.put_words(0x9_0000, &[(0, 0x10_0000), (8, 1 << 17), (16, 0x10_0000 + (1 << 20) - 56)]);
    let to = match native_at {
        Some(native_at) => {
            memory.put_words(0x5000, &[(0, 0), (8, 0), (16, 0)]);
            memory.put_words(0x5000, &[(native_at, 0xa_0000)]);
            0x5000
        }
        None => 0xa_0000,
    };
    for at in (16..thread_at).step_by(8) {
        memory.put_words(0x3000, &[(at, 0)]);
    }
    memory.put_words(0x3000, &[(thread_at, to)]);
    memory.put(0xa_0000 - 1024, &[0; 1024]);
    memory.put_words(0xa_0000, &[(0, 0xa_0000), (8, 0), (16, 0xa_0000)]);
    memory.put_words(0xa_0000 - 200, &[(0, 0x9_0000)]);
    memory
}

#[test]
fn the_variable_of_rubys_threads_is_found_by_what_is_in_it() {
    let found = |memory: &Bytes| ruby::variable_of_threads(memory, 0x1000);
    assert_eq!(found(&vm(80, None)), Some(-200));
    assert_eq!(found(&vm(40, Some(16))), Some(-200), "as from 3.3 on");
    let twice = vm(80, None);
    twice.put_words(0xa_0000 - 400, &[(0, 0x9_0000)]);
    assert_eq!(found(&twice), None, "which of both is not known");
    let begins = vm(80, None);
    begins.put_words(0x9_0000, &[(16, 0)]);
    assert_eq!(found(&begins), None, "the thread has no frame yet");
    let other = vm(80, None);
    other.put_words(0xa_0010, &[(0, 0xa_0008)]);
    assert_eq!(found(&other), None, "no thread of the C library");
}

/// A random process's memory.
struct Chance(std::cell::Cell<u64>);

impl Memory for Chance {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        for word in buffer.chunks_mut(8) {
            let next = self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at | 1);
            self.0.set(next);
            // Small numbers and addresses are what readers follow.
            let value =
                [next >> 60, next >> 17 & !7, next, 0x1a | 7 << 12][next as usize >> 30 & 3];
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        buffer.len()
    }
}

#[test]
fn nothing_that_a_process_has_in_its_memory_makes_a_reader_fail() {
    let memory = Chance(std::cell::Cell::new(1));
    let php = php();
    for at in 0..20_000_u64 {
        let at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for version in [(3, 0), (3, 1), (3, 4)] {
            let layout = iseqs::Layout::of(version);
            let _ = iseqs::function(&memory, at, &layout);
            let _ = iseqs::line(&memory, (at, at >> 3), &layout);
        }
        let _ = php.function(&memory, at);
        let _ = php::groups(&memory, &[frame(at, at)]);
    }
    for _ in 0..4 {
        let _ = ruby::variable_of_threads(&memory, 0x10_0000);
    }
}
