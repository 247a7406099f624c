//! Compares ARCHITECTURE.md's table and drawing of crates with `cargo metadata`: part of `cargo
//! xtask tidy`.

use crate::process::{command, output};
use anyhow::Context;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Workspaces of the repository, by the folder of their manifest.
const WORKSPACES: [&str; 3] = [".", "fleet", "tests/fuzz"];
/// Libraries that only one crate of the daemon may name: they reach into the kernel.
const ONLY_KERNEL: [&str; 2] = ["aya", "perf-event2"];

/// A crate of ours.
pub struct Crate {
    name: String,
    /// The folder of its manifest, from the root.
    pub folder: String,
    /// Its dependencies other than those for tests.
    named: BTreeSet<String>,
}

/// All crates of the repository, as Cargo knows them.
pub fn all() -> anyhow::Result<Vec<Crate>> {
    let root = std::env::current_dir()?;
    let mut crates = Vec::new();
    for workspace in WORKSPACES {
        let asked = format!(
            "cargo metadata --no-deps --format-version 1 --manifest-path {workspace}/Cargo.toml"
        );
        let told: Value = serde_json::from_str(&output(&mut command(&asked))?)?;
        let packages = told.get("packages").and_then(Value::as_array);
        for package in packages.context("cargo metadata has no packages")? {
            crates.push(of_package(package, &root)?);
        }
    }
    Ok(crates)
}

fn of_package(package: &Value, root: &Path) -> anyhow::Result<Crate> {
    let text = |of: &Value| of.as_str().map(str::to_owned).context("not cargo's metadata");
    let manifest = text(&package["manifest_path"])?;
    let folder = Path::new(&manifest).parent().and_then(|folder| folder.strip_prefix(root).ok());
    let folder = folder.context("a crate outside the repository")?.display().to_string();
    let dependencies = package["dependencies"].as_array().context("not cargo's metadata")?;
    let named = dependencies.iter().filter(|of| of["kind"] != "dev").map(|of| text(&of["name"]));
    Ok(Crate { name: text(&package["name"])?, folder, named: named.collect::<Result<_, _>>()? })
}

/// Differences between the crates and the map.
pub fn problems(crates: &[Crate], map: &str) -> Vec<String> {
    let mut problems = of_table(crates, &table(map));
    for layers in drawn(map) {
        problems.extend(of_layers(crates, &layers));
    }
    let of_daemon = |of: &&Crate| of.folder.starts_with("daemon/") && of.name != "kernel";
    for of in crates.iter().filter(of_daemon) {
        let wrong = ONLY_KERNEL.iter().filter(|library| of.named.contains(**library));
        problems.extend(wrong.map(|library| format!("{}: only kernel names {library}", of.name)));
    }
    problems
}

/// Each crate has one row of the table, with its folder and exactly what it names of the others.
fn of_table(crates: &[Crate], rows: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    let ours: BTreeSet<&String> = crates.iter().map(|of| &of.name).collect();
    for of in crates {
        let Some(drawn) = rows.get(&of.folder) else {
            problems.push(format!("ARCHITECTURE.md: no row for the crate `{}`", of.folder));
            continue;
        };
        let named: BTreeSet<&String> = of.named.iter().filter(|name| ours.contains(name)).collect();
        let drawn: BTreeSet<&String> = drawn.iter().collect();
        let difference = |a: &BTreeSet<&String>, b: &BTreeSet<&String>| {
            a.difference(b).map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (more, less) = (difference(&named, &drawn), difference(&drawn, &named));
        if !more.is_empty() {
            problems.push(format!(
                "ARCHITECTURE.md: `{}` depends on {more}, which its row lacks",
                of.folder
            ));
        }
        if !less.is_empty() {
            problems.push(format!(
                "ARCHITECTURE.md: the row of `{}` names {less}, on which it does not depend",
                of.folder
            ));
        }
    }
    let gone = rows.keys().filter(|row| !crates.iter().any(|of| of.folder == **row));
    problems.extend(gone.map(|row| format!("ARCHITECTURE.md: `{row}` is no crate")));
    problems
}

/// No crate depends on one that is drawn after it.
fn of_layers(crates: &[Crate], layers: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let Some(of) = crates.iter().find(|of| of.name == *layer) else {
            problems.push(format!("ARCHITECTURE.md draws `{layer}`, which is no crate"));
            continue;
        };
        let above = layers.iter().skip(at + 1).filter(|above| of.named.contains(*above));
        problems.extend(above.map(|above| {
            format!("ARCHITECTURE.md draws `{layer}` before `{above}`, on which it depends")
        }));
    }
    problems
}

/// The part of the map that is about crates.
fn section(map: &str) -> &str {
    let mut sections = map.split("\n## ");
    sections.find(|section| section.starts_with("Folders and arrows\n")).unwrap_or_default()
}

/// The rows of the table of crates: folder, and the crates of the last column.
fn table(map: &str) -> BTreeMap<String, BTreeSet<String>> {
    let rows = section(map).lines().filter_map(|line| {
        let cells = line.strip_prefix("| `")?.trim_end_matches(" |");
        let (folder, names) = (cells.split_once('`')?.0, cells.rsplit_once(" | ")?.1);
        let names = names.split(", ").filter(|name| *name != "-").map(str::to_owned);
        Some((folder.to_owned(), names.collect()))
    });
    rows.collect()
}

/// The chains of crates that are drawn: `a <- b <- c` in a fenced block.
fn drawn(map: &str) -> Vec<Vec<String>> {
    let fenced = section(map).split("\n```").skip(1).step_by(2).flat_map(str::lines);
    let chain = |line: &str| line.split(" <- ").map(|name| name.trim().to_owned()).collect();
    fenced.filter(|line| line.contains(" <- ")).map(chain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "# Map\n\n## Folders and arrows\n\n```\na <- b <- c\n```\n\n\
        | crate | what | names |\n|---|---|---|\n| `x/a` | one | - |\n| `x/b` | two | a |\n\
        | `x/c` | three | a, b |\n\n## Next\n\n| `x/d` | four | - |\n";

    fn of(name: &str, named: &[&str]) -> Crate {
        let named = named.iter().map(|name| (*name).to_owned()).collect();
        Crate { name: name.to_owned(), folder: format!("x/{name}"), named }
    }

    #[test]
    fn a_true_map_has_no_problems() {
        let crates = [of("a", &["serde"]), of("b", &["a"]), of("c", &["b", "a"])];
        assert_eq!(problems(&crates, MAP), <[String; 0]>::default());
    }

    #[test]
    fn only_the_kernels_border_names_what_reaches_into_the_kernel() {
        let daemon = |name: &str| Crate { folder: format!("daemon/{name}"), ..of(name, &["aya"]) };
        let problems = problems(&[daemon("kernel"), daemon("inspect")], MAP).join("; ");
        assert!(problems.contains("inspect: only kernel names aya"), "{problems}");
        assert!(!problems.contains("kernel: only"), "{problems}");
    }

    #[test]
    fn each_difference_is_named() {
        for (crates, told) in [
            (vec![of("a", &[]), of("b", &["a"])], "`x/c` is no crate"),
            (vec![of("a", &[]), of("b", &["a"])], "draws `c`, which is no crate"),
            (vec![of("d", &[])], "no row for the crate `x/d`"),
            (vec![of("a", &[]), of("b", &[])], "the row of `x/b` names a"),
            (vec![of("a", &[]), of("c", &["a", "b"]), of("b", &["a", "c"])], "`x/b` depends on c"),
            (vec![of("b", &["c"]), of("c", &[])], "draws `b` before `c`"),
        ] {
            let problems = problems(&crates, MAP);
            assert!(problems.iter().any(|problem| problem.contains(told)), "{told}: {problems:?}");
        }
    }
}
