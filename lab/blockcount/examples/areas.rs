//! Prints what the files of counts in a folder say: `cargo run -p blockcount --example areas --
//! FOLDER [instructions]`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use blockcount::area::reader::Counted;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("usage: areas FOLDER [instructions]")?;
    let each = std::env::args_os().nth(2).is_some_and(|word| word == "instructions");
    for entry in std::fs::read_dir(Path::new(&folder))? {
        let path = entry?.path();
        let counted = match Counted::open(&path) {
            Ok(counted) => counted,
            Err(error) => {
                println!("{}: {error}", path.display());
                continue;
            }
        };
        let files = counted.files();
        let instructions: u64 = files
            .iter()
            .flat_map(|file| file.instructions.values())
            .fold(0, |sum, (_, count)| sum.wrapping_add(*count));
        let blocks = counted.blocks.iter().map(|counted| counted.count);
        let flow = counted.flow();
        println!(
            "{} {}: {instructions} instructions, {} blocks, {} translated, {} files, {} events, \
             {} of {} addresses exact, {} differ",
            counted.header.pid,
            String::from_utf8_lossy(&counted.program),
            blocks.fold(0_u64, u64::wrapping_add),
            counted.blocks.len(),
            files.len(),
            counted.events.len(),
            flow.exact,
            flow.addresses,
            flow.differences.len()
        );
        for file in files.iter().filter(|_| each) {
            for (offset, (_, count)) in file.instructions.iter().filter(|(_, (_, n))| *n > 0) {
                println!("  {} {offset:#x} {count}", String::from_utf8_lossy(&file.path));
            }
        }
        for (address, executions, edges) in flow.differences.iter().take(5) {
            println!("  {address:#x}: {executions} executions, {edges} edges");
        }
        for note in &counted.notes {
            println!("  {note}");
        }
    }
    Ok(())
}
