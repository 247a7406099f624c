//! Builds the page of `dcpi html` and `dcpi serve` from its TypeScript, or checks that the
//! committed files come from it. The check needs no npm: the build notes the hashes of what it read
//! and wrote.

use crate::process::{command, must, output};
use crate::{Outcome, packages};
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the page.
const FOLDER: &str = "face";
/// The hashes, committed beside what is built.
const SUMS: &str = "face/dist/sums";
/// What is built from.
const SOURCES: [&str; 5] =
    ["app", "build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
/// What is built.
const BUILT: [&str; 3] = ["dist/app.js", "dist/licences.txt", "dist/style.css"];

/// Builds the page with npm.
pub fn build() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::PAGE_BUILDER)?;
    // Scripts of packages run on nobody's machine: none of these needs one.
    for line in ["npm ci --ignore-scripts --no-audit --no-fund", "npm run check", "npm run build"] {
        must(command(line).current_dir(FOLDER))?;
    }
    fs::write(SUMS, sums()?)?;
    println!("face/dist is built; commit it");
    Ok(Outcome::Clean)
}

/// Whether the committed files are those that the build made of the committed sources.
pub fn check() -> anyhow::Result<Outcome> {
    if fs::read_to_string(SUMS).unwrap_or_default() == sums()? {
        println!("face/dist comes from face/app");
        return Ok(Outcome::Clean);
    }
    println!("face/dist does not come from face/app; run `cargo xtask face` and commit the result");
    Ok(Outcome::Problems)
}

/// A line with hash and name for each file that is read or written.
fn sums() -> anyhow::Result<String> {
    let mut files = Vec::new();
    for path in SOURCES.iter().chain(&BUILT) {
        collect(&Path::new(FOLDER).join(path), &mut files)?;
    }
    files.sort();
    output(command("git hash-object").args(&files)).map(|hashes| {
        let named = hashes.lines().zip(&files);
        named.map(|(hash, file)| format!("{hash} {}\n", file.display())).collect()
    })
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}
