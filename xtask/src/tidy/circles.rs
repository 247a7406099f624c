//! Circles between modules, read from `use` paths: part of `cargo xtask tidy`.
//!
//! A module and its own submodules are one thing and may name each other. Files of different
//! folders may not form a circle in any crate, and no files at all may in those that say so. Nor
//! may modules with submodules form a circle, with all that their submodules name: then none of
//! them can be read without the others.

use std::collections::{BTreeMap, BTreeSet};

/// Crates without any circle.
const STRICT: [&str; 11] = [
    "code",
    "daemon/address-spaces",
    "daemon/dcpid",
    "daemon/inspect",
    "daemon/kernel",
    "daemon/pending",
    "daemon/persistence",
    "daemon/pipeline",
    "daemon/sampling",
    "daemon/settings",
    "estimate",
];

/// The circles of a crate: `files` are the paths below its `src/`, with their texts.
pub fn problems(name: &str, files: &[(&str, &str)]) -> Vec<String> {
    let modules: BTreeMap<String, &str> =
        files.iter().map(|(path, text)| (module(path), *text)).collect();
    let names: BTreeSet<&str> = modules.keys().map(String::as_str).collect();
    let graph: BTreeMap<&str, BTreeSet<&str>> =
        modules.iter().map(|(of, text)| (of.as_str(), named(of, text, &names))).collect();
    let is_strict = STRICT.contains(&name);
    let wrong = |circle: &Vec<&str>| {
        is_strict && !is_one(circle) || !is_one(circle) && !is_of_a_folder(circle, &names)
    };
    let shown = |kind: &str, circle: Vec<&str>| {
        format!("{name}: these {kind} form a circle: {}", circle.join(", "))
    };
    let of_files = circles(&graph).into_iter().filter(wrong).map(|circle| shown("files", circle));
    let has_parts = |room: &&str| names.iter().any(|name| name.starts_with(&format!("{room}/")));
    let of_rooms = circles(&rooms(&graph)).into_iter();
    let of_rooms =
        of_rooms.filter(|circle| circle.iter().filter(|room| has_parts(room)).count() > 1);
    let of_rooms = of_rooms.map(|circle| shown("modules", circle));
    of_files.chain(of_rooms).collect()
}

/// The modules of the crate's root, each with all that its parts name. The root itself may name and
/// be named.
fn rooms<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let room = |module: &'a str| module.split('/').next().unwrap_or(module);
    let is_root = |room: &str| matches!(room, "lib" | "main" | "bin" | "");
    let mut rooms: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in graph {
        let from = room(from);
        let others = to.iter().map(|to| room(to)).filter(|to| *to != from && !is_root(to));
        if !is_root(from) {
            rooms.entry(from).or_default().extend(others);
        }
    }
    rooms
}

/// `a/b/mod.rs` and `a/b.rs` are `a/b`.
fn module(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.strip_suffix("/mod").unwrap_or(path).to_owned()
}

/// Whether all are a module of the circle or parts of it.
fn is_one(circle: &[&str]) -> bool {
    circle.iter().any(|whole| {
        let is_part = |other: &&str| {
            other.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        circle.iter().all(is_part)
    })
}

/// Whether all files lie in one folder: that of a module with parts is its own.
fn is_of_a_folder(circle: &[&str], names: &BTreeSet<&str>) -> bool {
    let folder = |of: &str| {
        let has_parts = names
            .iter()
            .any(|name| name.strip_prefix(of).is_some_and(|rest| rest.starts_with('/')));
        if has_parts {
            of.to_owned()
        } else {
            of.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned()
        }
    };
    circle.iter().map(|of| folder(of)).collect::<BTreeSet<_>>().len() == 1
}

/// The modules of the crate that a file names, except for its tests.
fn named<'a>(of: &str, text: &str, names: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let own = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code: String = own
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = BTreeSet::new();
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code.get(..at).and_then(|before| before.chars().next_back());
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let mut paths = Vec::new();
            expand("", code.get(at..).unwrap_or_default(), &mut paths);
            found.extend(
                paths
                    .iter()
                    .filter_map(|path| resolve(of, path, names))
                    .filter(|module| *module != of),
            );
        }
    }
    found
}

/// The paths of a tree of `use`: `a::{b, c::d}` is `a::b` and `a::c::d`. Gives what follows the
/// tree.
fn expand<'t>(before: &str, tree: &'t str, paths: &mut Vec<String>) -> &'t str {
    let tree = tree.trim_start();
    let end =
        tree.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(tree.len());
    let (path, mut rest) = tree.split_at(end);
    let path = format!("{before}{path}");
    if !path.ends_with("::") || !rest.starts_with('{') {
        paths.push(path);
        return rest;
    }
    while let Some(after) = rest.strip_prefix(['{', ',']) {
        rest = after.trim_start();
        if rest.starts_with('}') {
            break;
        }
        rest = expand(&path, rest, paths).trim_start();
        // `as other`
        rest = rest.find([',', '}']).and_then(|at| rest.get(at..)).unwrap_or_default();
    }
    rest.strip_prefix('}').unwrap_or(rest)
}

/// The module that a path lies in, from a module.
fn resolve<'a>(of: &str, path: &str, names: &BTreeSet<&'a str>) -> Option<&'a str> {
    let mut words: Vec<&str> = path.split("::").filter(|word| !word.is_empty()).collect();
    let mut base: Vec<&str> = of.split('/').collect();
    if words.first() == Some(&"crate") {
        base.clear();
        words.remove(0);
    }
    while words.first() == Some(&"super") {
        base.pop();
        words.remove(0);
    }
    base.extend(words);
    (1..=base.len()).rev().find_map(|len| {
        let name = base.get(..len)?.join("/");
        names.get(name.as_str()).copied()
    })
}

/// Sets of more than one module from each of which all others are reached.
fn circles<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (*from, reach(graph, from))).collect();
    let mut told = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, to) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|all| all.contains(from));
        let circle: Vec<&str> = to.iter().filter(back).copied().collect();
        if circle.len() > 1 && told.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles
}

fn reach<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = graph.get(from).into_iter().flatten().copied().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            next.extend(graph.get(one).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::problems;

    #[test]
    fn circles_between_folders_are_told_and_a_module_may_name_its_parts() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::parts::{X, deep::Y as Z};\n"),
            ("b/mod.rs", "mod parts;\nuse crate::c;\n"),
            ("b/parts.rs", "use super::W;\nfn f() -> crate::a::A {}\n"),
            ("c.rs", "use crate::d::D;\n"),
            ("d.rs", "use super::c::C;\n#[cfg(test)]\nmod tests {\n use crate::a;\n}\n"),
            ("e/mod.rs", "use self::f::F;\nuse super::e::f;\n"),
            ("e/f.rs", "use super::E;\n"),
        ];
        let told = problems("image", &files);
        assert_eq!(
            told,
            ["image: these files form a circle: a, b/parts"],
            "c and d are of one folder"
        );
        let told = problems("code", &files);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].ends_with("circle: c, d"), "{told:?}");
    }

    #[test]
    fn comments_and_other_crates_name_nothing() {
        let files = [
            ("a.rs", "//! [`crate::b`]\nuse some_crate::b;\nuse std::fmt;\n"),
            ("b.rs", "use crate::a::A;\n// use crate::a;\n"),
        ];
        assert!(problems("code", &files).is_empty());
    }
}
