//! Programs that compute for about half a second.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub struct Program {
    pub name: String,
    path: PathBuf,
    arguments: Vec<String>,
}

impl Program {
    fn new(name: &str, path: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { name: name.to_owned(), path: path.into(), arguments }
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

const C: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char name[24]; int number; double weight; } Item;
static int by_name(const void *a, const void *b) { return strcmp(((Item *)a)->name, ((Item *)b)->name); }
static unsigned seed = 1;
static unsigned next(void) { return seed = seed * 1664525 + 1013904223; }
static int step(int op, int64_t a, int64_t b, int64_t *r) {
    switch (op) { /* a table of jumps */
    case 0: *r = a + b; break;       case 1: *r = a - b; break;
    case 2: *r = a * b; break;       case 3: *r = b ? a / (b | 1) : 0; break;
    case 4: *r = a << (b & 63); break; case 5: *r = a >> (b & 31); break;
    case 6: *r = a < b; break;       case 7: *r = (uint64_t)a < (uint64_t)b ? a : b; break;
    case 8: *r = __builtin_popcountll(a); break; case 9: *r = (int8_t)a; break;
    default: return 1;
    }
    return 0;
}
static int (*const tests[])(int) = { 0 };
static int depth(int n) { return n < 2 ? n : depth(n - 1) + depth(n - 2); }
int main(void) {
    int64_t sum = tests[0] != 0;
    for (int round = 0; round < 40; round++) {
        Item *items = calloc(3000, sizeof *items);
        for (int i = 0; i < 3000; i++) { sprintf(items[i].name, "n%u", next() >> 8); items[i].number = i; items[i].weight = i / 3.0; }
        qsort(items, 3000, sizeof *items, by_name);
        for (int i = 0; i < 100000; i++) { int64_t r = 0; if (step(next() >> 28, next(), sum, &r) == 0) sum ^= r; }
        char text[64]; memset(text, 0, sizeof text);
        for (int i = 0; i < 3000; i++) if (memcmp(text, items[i].name, 4) < 0 && items[i].weight > sum % 7) memcpy(text, items[i].name, 8);
        sum += depth(18) + text[2];
        free(items);
    }
    printf("%ld\n", (long)sum);
}
"#;

const CPP: &str = r#"
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
struct Square : Shape { double a; Square(double a) : a(a) {} double area() const override { return a * a; } };
struct Circle : Shape { double r; Circle(double r) : r(r) {} double area() const override { return 3.14 * r * r; } };
int main() {
    unsigned seed = 1; auto next = [&] { return seed = seed * 1664525 + 1013904223; };
    double total = 0;
    for (int round = 0; round < 20; round++) {
        std::map<std::string, int> counts; std::unordered_map<int, std::string> names; std::vector<std::unique_ptr<Shape>> shapes;
        for (int i = 0; i < 4000; i++) {
            counts[std::to_string(next() >> 22)]++; names[next() >> 20] += 'x';
            if (next() & 1024) shapes.push_back(std::make_unique<Square>(i)); else shapes.push_back(std::make_unique<Circle>(i));
        }
        std::sort(shapes.begin(), shapes.end(), [](auto &a, auto &b) { return a->area() < b->area(); });
        std::function<int(int)> f = [&](int n) { return n <= 0 ? 0 : 1 + f(n / 2); };
        for (auto &[name, count] : counts) total += count + f(name.size() * 100);
        for (auto &shape : shapes) total += shape->area();
        try { if (names.size() > 100) throw round; } catch (int n) { total += n; }
    }
    std::printf("%f\n", total);
}
"#;

const RUST: &str = r#"
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
trait Visit { fn visit(&self, n: u64) -> u64; }
struct Odd(u64); struct Even;
impl Visit for Odd { fn visit(&self, n: u64) -> u64 { n.wrapping_mul(self.0) | 1 } }
impl Visit for Even { fn visit(&self, n: u64) -> u64 { n & !1 } }
fn main() {
    let mut seed = 1_u32;
    let mut next = || { seed = seed.wrapping_mul(1664525).wrapping_add(1013904223); seed };
    let mut total = 0_u64;
    for round in 0..20_u64 {
        let mut words: HashMap<String, u32> = HashMap::new();
        let mut tree = BTreeMap::new();
        let mut text = String::new();
        for i in 0..4000 {
            *words.entry(format!("w{}", next() >> 22)).or_default() += 1;
            tree.insert(next() >> 16, i);
            let _ = write!(text, "{:x} ", next());
        }
        let visitors: Vec<Box<dyn Visit>> = (0..100).map(|n| if n % 3 == 0 { Box::new(Odd(n)) as Box<dyn Visit> } else { Box::new(Even) }).collect();
        let mut sorted: Vec<_> = words.into_iter().collect();
        sorted.sort();
        for (word, count) in &sorted { total += word.len() as u64 * u64::from(*count) + round; }
        for part in text.split(' ') { total ^= u64::from_str_radix(part, 16).unwrap_or(7); }
        for visitor in visitors.iter().cycle().take(5000) { total = visitor.visit(total); }
        total += tree.range(1000..30000).map(|(key, value)| u64::from(*key) * value).fold(0, u64::wrapping_add) % 1000;
    }
    println!("{total}");
}
"#;

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

fn compiled(folder: &Path, name: &str, source: &str, compiler: &str, arguments: &[&str]) -> PathBuf {
    let (file, program) = (folder.join(format!("{name}.source")), folder.join(name));
    std::fs::write(&file, source).unwrap();
    run(Command::new(compiler).args(arguments).arg("-o").arg(&program).arg(&file));
    program
}

/// Two megabytes of text and code, the same in every run on one machine.
fn input(folder: &Path) -> String {
    let path = folder.join("input");
    if !path.exists() {
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(1 << 20);
        for line in 0..20_000_u64 {
            let word = line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
            bytes.extend(format!("line {line} of the text says {word} and {:x}\n", word * word).bytes());
        }
        std::fs::write(&path, bytes).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// What every machine has that can build this: no program may be missing.
pub fn that_are_everywhere(folder: &Path) -> Vec<Program> {
    vec![
        Program::new("gzip", "/bin/gzip", &["-6", "-c", &input(folder)]),
        Program::new("c", compiled(folder, "c", C, "cc", &["-O2", "-xc"]), &[]),
        Program::new("rust", compiled(folder, "rust", RUST, "rustc", &["-O", "--edition=2021"]), &[]),
    ]
}

pub fn of_a_development_machine(folder: &Path) -> Vec<Program> {
    let input = input(folder);
    let sql = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12000)
        INSERT INTO t SELECT i, 'word' || (i * 7919 % 10007), i / 3.0 FROM n;
        CREATE INDEX tb ON t(b); SELECT b, count(*), sum(c) FROM t GROUP BY b ORDER BY 3 DESC LIMIT 50;
        SELECT count(*) FROM t x JOIN t y ON x.b = y.b WHERE x.a < y.a AND y.b LIKE '%77%'; UPDATE t SET c = c + length(b) WHERE a % 3 = 0;";
    let python = "import json, re, random
random.seed(1)
class Node:
    def __init__(self, key): self.key, self.left, self.right = key, None, None
    def insert(self, key):
        side = 'left' if key < self.key else 'right'
        child = getattr(self, side)
        if child is None: setattr(self, side, Node(key))
        else: child.insert(key)
for n in range(4):
    root = Node(500)
    for i in range(3000): root.insert(random.randrange(1000))if i < 300 else None
    text = json.dumps([{'k%d' % i: [i, i * 1.5, str(i)]} for i in range(3000)])
    words = re.findall(r'[a-z]+[0-9]+', text); d = {}
    for w in words: d[w] = d.get(w, 0) + 1
    sorted(d.items(), key=lambda kv: (kv[1], kv[0])); sum(x * x % 7 for x in range(40000))
";
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
    let cc1 = String::from_utf8(cc1.stdout).unwrap().trim().to_owned();
    let preprocessed = folder.join("c.i");
    run(Command::new("gcc").args(["-E", "-xc", "-o"]).arg(&preprocessed).arg(folder.join("c.source")));
    vec![
        Program::new("bzip2", "/bin/bzip2", &["-9", "-c", &input]),
        Program::new("xz", "/usr/bin/xz", &["-3", "-T1", "-c", &input]),
        Program::new("sqlite3", "/usr/bin/sqlite3", &[":memory:", sql]),
        Program::new("python3", "/usr/bin/python3", &["-c", python]),
        Program::new("cc1", cc1, &["-O3", "-quiet", "-o", "/dev/null", preprocessed.to_str().unwrap()]),
        Program::new("c++", compiled(folder, "cpp", CPP, "g++", &["-O2", "-xc++"]), &[]),
        Program::new("c -O0", compiled(folder, "c0", C, "cc", &["-O0", "-xc"]), &[]),
    ]
}
