//! Builds the pages of `dcpi html`, `dcpi serve` and of a fleet's review from their TypeScript, or
//! checks that the committed files come from it. The check needs no npm: the build notes the hashes
//! of what it read and wrote. What is built is looked at in Chromium: errors of scripts, and what
//! axe finds.

use crate::process::{command, must, output, succeeds};
use crate::{Outcome, packages};
use anyhow::Context as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Folder of the page.
const FOLDER: &str = "face";
/// The hashes, committed beside what is built.
const SUMS: &str = "face/dist/sums";
/// What is built from.
const SOURCES: [&str; 5] =
    ["app", "build.mjs", "package-lock.json", "package.json", "tsconfig.json"];
/// What is built.
const BUILT: [&str; 4] = ["dist/app.js", "dist/fleet.js", "dist/licences.txt", "dist/style.css"];
/// A review of a made-up fleet with as many procedures as one has.
const REVIEW: &str =
    "cargo run --quiet --manifest-path fleet/Cargo.toml -p review --example large -- 20000";

/// The guide's database, of which the page is looked at.
const EXAMPLE: &str = "docs/example/calls";
/// The guide's database of two builds, which a page compares.
const BUILDS: &str = "docs/example/db";

/// Builds the page with npm, and looks at each of its views.
pub fn build() -> anyhow::Result<Outcome> {
    packages::ensure(&packages::PAGE_BUILDER)?;
    // Scripts of packages run on nobody's machine: none of these needs one.
    for line in ["npm ci --ignore-scripts --no-audit --no-fund", "npm run check", "npm run build"] {
        must(command(line).current_dir(FOLDER))?;
    }
    fs::write(SUMS, sums()?)?;
    println!("face/dist is built; commit it");
    look()
}

/// Looks at each view of the guide's example, as a file and served, and of a review in Chromium
/// (`face/test/page.mjs`), and runs the commands that the page offers to copy. Needs what [`build`]
/// installed.
pub fn look() -> anyhow::Result<Outcome> {
    must(&mut command("cargo build --workspace --bin dcpi"))?;
    let page = std::path::absolute("target/face.html")?;
    let db = std::path::absolute(EXAMPLE)?;
    must(command("target/debug/dcpi html --db").arg(db).arg("-o").arg(&page))?;
    let compared = std::path::absolute("target/face-compared.html")?;
    let sets = "--epoch all --diff label:before --diff label:after -o";
    let mut line = command("target/debug/dcpi html");
    must(line.args(sets.split(' ')).arg(&compared).arg("--db").arg(std::path::absolute(BUILDS)?))?;
    let review = std::path::absolute("target/face-fleet.html")?;
    fs::write(&review, output(command(REVIEW).env("CARGO_TARGET_DIR", "target/fleet"))?)?;
    let server = Server::start()?;
    let mut looked = command("node test/page.mjs --untimed --dcpi ../target/debug/dcpi");
    let passed = succeeds(looked.arg(&page).arg(&review).arg(&server.link).current_dir(FOLDER))?;
    Ok(if passed { Outcome::Clean } else { Outcome::Problems })
}

/// `dcpi serve` of the example, until it is dropped.
struct Server {
    process: Child,
    link: String,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        // Copied commands are run in another directory than this one.
        let db = std::path::absolute(EXAMPLE)?;
        let mut line = command("target/debug/dcpi serve --listen 127.0.0.1:0 --db");
        let mut process = line.arg(db).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        if let Some(out) = process.stdout.take() {
            BufReader::new(out).read_line(&mut said)?;
        }
        let link = said.trim().strip_prefix("open ").map(str::to_owned);
        let mut server = Self { process, link: String::new() };
        server.link = link.with_context(|| format!("dcpi serve says {said:?}"))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it has ended by itself
        let _ = self.process.wait();
    }
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
