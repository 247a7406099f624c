//! The guide as a book: `docs` rendered by mdBook.

use crate::Outcome;
use crate::process::{command, must};
use std::path::Path;

/// The renderer. Its own server and search are not built: the book is a folder of files.
const VERSION: &str = "0.5.4";
const ROOT: &str = "target/tools";

/// Renders the guide into `target/book`. A page without its place in the contents, or contents
/// without a page, fail.
pub fn run() -> anyhow::Result<Outcome> {
    let tool = format!("{ROOT}/bin/mdbook");
    if !Path::new(&tool).exists() {
        println!("building mdBook {VERSION} into {ROOT}, a minute or two");
        let install = format!(
            "cargo install --quiet --locked --debug --no-default-features --root {ROOT} \
             --version {VERSION} mdbook"
        );
        must(command(&install).env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS"))?;
    }
    let pages = pages(Path::new("docs/src"))?;
    let contents = std::fs::read_to_string("docs/src/SUMMARY.md")?;
    let missing: Vec<&String> =
        pages.iter().filter(|page| !contents.contains(&format!("({page})"))).collect();
    if !missing.is_empty() {
        println!("docs/src/SUMMARY.md has no line for {missing:?}");
        return Ok(Outcome::Problems);
    }
    must(&mut command(&format!("{tool} build docs")))?;
    println!("target/book/index.html");
    Ok(Outcome::Clean)
}

/// The names of the guide's pages.
fn pages(folder: &Path) -> anyhow::Result<Vec<String>> {
    let names = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<std::io::Result<Vec<_>>>()?;
    let names = names.into_iter().filter_map(|name| name.into_string().ok());
    Ok(names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect())
}
