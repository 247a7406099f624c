//! A Debian package of everything, `target/package/dcpi_VERSION_ARCH.deb`, and one of what
//! debuggers and profilers need of its programs, `dcpi-dbgsym_VERSION_ARCH.deb`, by dpkg-deb, which
//! every Debian has. A tool for it would bring a configuration of its own and need no less of it.

use crate::Outcome;
use crate::packages;
use crate::process::{command, must, output};
use crate::{blockcount, blocks, hook};
use anyhow::{Context as _, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const FOLDER: &str = "target/package";
const PROGRAMS: [&str; 4] = ["dcpid", "dcpictl", "dcpilabel", "dcpi"];
/// DCPI's own names of commands, each a link to dcpi.
const CLASSIC: [&str; 6] =
    ["dcpiprof", "dcpilist", "dcpitopcounts", "dcpistats", "dcpidiff", "dcpicalc"];

/// From, to, mode. Documents lie as in the repository, so that links between them lead somewhere.
const FILES: [(&str, &str, u32); 26] = [
    (blockcount::PROGRAM, "usr/lib/dcpi/dcpi-blockcount", 0o755),
    ("target/blocks/as", "usr/lib/dcpi/blocks/as", 0o755),
    ("target/blocks/dcpi.specs", "usr/lib/dcpi/blocks/dcpi.specs", 0o644),
    ("target/blocks/libdcpi_tracer.a", "usr/lib/dcpi/blocks/libdcpi_tracer.a", 0o644),
    ("target/blocks/plain/as", "usr/lib/dcpi/blocks/plain/as", 0o755),
    ("target/blocks/plain/dcpi.specs", "usr/lib/dcpi/blocks/plain/dcpi.specs", 0o644),
    (hook::HOOK, "usr/lib/dcpi/libdcpi_loader_hook.so", 0o644),
    ("systemd/dcpid.service", "lib/systemd/system/dcpid.service", 0o644),
    ("systemd/dcpid-inspector.service", "lib/systemd/system/dcpid-inspector.service", 0o644),
    ("systemd/dcpi-push.service", "lib/systemd/system/dcpi-push.service", 0o644),
    ("systemd/dcpi.slice", "lib/systemd/system/dcpi.slice", 0o644),
    ("systemd/sysusers.d/dcpi.conf", "usr/lib/sysusers.d/dcpi.conf", 0o644),
    ("systemd/tmpfiles.d/dcpi.conf", "usr/lib/tmpfiles.d/dcpi.conf", 0o644),
    ("systemd/dcpid.toml", "etc/dcpi/dcpid.toml", 0o644),
    ("README.md", "usr/share/doc/dcpi/README.md", 0o644),
    ("CHANGELOG.md", "usr/share/doc/dcpi/CHANGELOG.md", 0o644),
    ("docs/src/limits.md", "usr/share/doc/dcpi/LIMITS.md", 0o644),
    ("systemd/README.md", "usr/share/doc/dcpi/systemd/README.md", 0o644),
    (
        "systemd/prometheus/dcpid-metrics.conf",
        "usr/share/doc/dcpi/prometheus/dcpid-metrics.conf",
        0o644,
    ),
    ("systemd/prometheus/dcpi.rules.yml", "usr/share/doc/dcpi/prometheus/dcpi.rules.yml", 0o644),
    (
        "systemd/prometheus/dcpi.rules.test.yml",
        "usr/share/doc/dcpi/prometheus/dcpi.rules.test.yml",
        0o644,
    ),
    ("systemd/prometheus/dashboard.json", "usr/share/doc/dcpi/prometheus/dashboard.json", 0o644),
    ("LICENSE", "usr/share/doc/dcpi/LICENSE", 0o644),
    ("LICENSE-APACHE", "usr/share/doc/dcpi/LICENSE-APACHE", 0o644),
    ("LICENSE-MIT", "usr/share/doc/dcpi/LICENSE-MIT", 0o644),
    ("LICENSE", "usr/share/doc/dcpi/copyright", 0o644),
];

/// Pages of the guide, which README leads to.
const GUIDE: &str = "docs/src";

/// Cargo's profile: its programs go into the package, and the man pages come from the same build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For users.
    Release,
    /// As tests build it.
    Dev,
}

impl Profile {
    /// Builds the programs, and what writes their man pages. For tests it is the build that they
    /// have: without `--tests` dependencies have fewer features and are compiled again.
    fn build(self) -> String {
        match self {
            Self::Release => "cargo build --release -p dcpid -p dcpi -p manual --bins".to_owned(),
            Self::Dev => "cargo build --workspace --bins --tests".to_owned(),
        }
    }

    fn folder(self) -> &'static str {
        if self == Self::Release { "target/release" } else { "target/debug" }
    }
}

/// Builds everything, and the package; `--dev`: as tests have it.
pub fn run(arguments: &[&str]) -> anyhow::Result<Outcome> {
    let profile = match arguments {
        [] => Profile::Release,
        ["--dev"] => Profile::Dev,
        other => bail!("package takes [--dev], not '{}'", other.join(" ")),
    };
    packages::ensure(packages::COMPILER.iter().chain(&packages::PACKAGERS))?;
    let minutes =
        if profile == Profile::Release { "; a first release build takes minutes" } else { "" };
    println!("step 1 of 3: building {}{minutes}", PROGRAMS.join(", "));
    must(&mut command(&profile.build()))?;
    println!("step 2 of 3: building the loader hook");
    hook::build()?;
    blockcount::build()?;
    blocks::build()?;
    println!("step 3 of 3: building man pages and completions, and packing");
    let package = assemble(profile)?;
    print!("{}", next_steps(&package));
    Ok(Outcome::Clean)
}

/// The action for the package.
fn next_steps(package: &Path) -> String {
    format!(
        "{0}; beside it names and lines of its programs for debuggers, dcpi-dbgsym_*.deb\n\
         with systemd:    sudo apt install ./{0}    (starts dcpid)\n\
         without systemd: the same, then start dcpid by hand: sudo dcpid &\n\
         guides:          /usr/share/doc/dcpi: README.md, docs/src, systemd/README.md\n",
        package.display()
    )
}

/// Makes the package of programs that are built, and the one of what debuggers need of them.
/// Returns the former.
pub fn assemble(profile: Profile) -> anyhow::Result<PathBuf> {
    let root = PathBuf::from(format!("{FOLDER}/root"));
    let symbols = PathBuf::from(format!("{FOLDER}/root-dbgsym"));
    // The last packages', if there were some.
    let _ = (fs::remove_dir_all(&root), fs::remove_dir_all(&symbols));
    for (from, to, mode) in FILES {
        copy(Path::new(from), &root.join(to), mode)?;
    }
    for entry in fs::read_dir(GUIDE)? {
        let page = entry?.path();
        copy(&page, &root.join("usr/share/doc/dcpi").join(&page), 0o644)?;
    }
    for program in PROGRAMS {
        let to = root.join("usr/bin").join(program);
        let built = Path::new(profile.folder()).join(program);
        copy(&built, &to, 0o755)?;
        must(command("strip").arg(&to))?;
        keep_symbols(&built, &symbols)?;
    }
    for name in CLASSIC {
        std::os::unix::fs::symlink("dcpi", root.join("usr/bin").join(name))?;
    }
    manuals(&root, profile)?;
    for script in ["postinst", "prerm", "postrm"] {
        copy(&Path::new("systemd/debian").join(script), &root.join("DEBIAN").join(script), 0o755)?;
    }
    fs::write(root.join("DEBIAN/conffiles"), "/etc/dcpi/dcpid.toml\n")?;
    let architecture = output(&mut command("dpkg --print-architecture"))?.trim().to_owned();
    let version = env!("CARGO_PKG_VERSION");
    fs::write(root.join("DEBIAN/control"), control(&root, version, &architecture)?)?;
    fs::create_dir_all(symbols.join("DEBIAN"))?;
    let of_symbols = control_of_symbols(&symbols, version, &architecture)?;
    fs::write(symbols.join("DEBIAN/control"), of_symbols)?;
    let pack = |root: &Path, name: &str| -> anyhow::Result<PathBuf> {
        let package = PathBuf::from(format!("{FOLDER}/{name}_{version}_{architecture}.deb"));
        let build = "dpkg-deb --root-owner-group -Zgzip --build";
        output(command(build).arg(root).arg(&package))?;
        Ok(package)
    };
    pack(&symbols, "dcpi-dbgsym")?;
    pack(&root, "dcpi")
}

/// Keeps what `strip` takes away where debuggers look for it: under the program's build id.
fn keep_symbols(program: &Path, root: &Path) -> anyhow::Result<()> {
    let notes = output(command("readelf --wide --notes").arg(program))?;
    let id = notes.split("Build ID: ").nth(1).and_then(|id| id.split_whitespace().next());
    let (first, rest) = id
        .and_then(|id| id.split_at_checked(2))
        .with_context(|| format!("{} has no build id", program.display()))?;
    let folder = root.join("usr/lib/debug/.build-id").join(first);
    fs::create_dir_all(&folder)?;
    let keep = "objcopy --only-keep-debug --compress-debug-sections=zlib";
    let file = folder.join(format!("{rest}.debug"));
    must(command(keep).arg(program).arg(&file))?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o644))?)
}

fn copy(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    let folder = to.parent().context("a file without a folder")?;
    fs::create_dir_all(folder)?;
    fs::copy(from, to).with_context(|| format!("packing {}; build it first", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Man pages, compressed, completions where each shell looks for them, and the schemas of reports.
fn manuals(root: &Path, profile: Profile) -> anyhow::Result<()> {
    // As the programs were built: of another profile, or with the features of this crate alone,
    // Cargo would compile every crate a second time.
    must(&mut command(&profile.build()))?;
    // A schema of a version that is gone must not stay.
    let _ = fs::remove_dir_all(format!("{FOLDER}/schemas"));
    must(&mut command(&format!("{}/manual {FOLDER}", profile.folder())))?;
    let folders = ["1", "8"].map(|section| {
        (format!("man/{section}"), root.join(format!("usr/share/man/man{section}")))
    });
    for (_, folder) in &folders {
        fs::create_dir_all(folder)?;
    }
    for entry in fs::read_dir(format!("{FOLDER}/man"))? {
        let page = entry?.path();
        let section = page
            .extension()
            .and_then(|section| section.to_str())
            .context("a page without a section")?;
        let name = page.file_name().context("a page without a name")?;
        copy(&page, &root.join(format!("usr/share/man/man{section}")).join(name), 0o644)?;
    }
    for (_, folder) in &folders {
        must(command("gzip -9nr").arg(folder))?;
    }
    for entry in fs::read_dir(format!("{FOLDER}/schemas"))? {
        let schema = entry?.path();
        let name = schema.file_name().context("a schema without a name")?;
        copy(&schema, &root.join("usr/share/dcpi/schemas").join(name), 0o644)?;
    }
    for program in PROGRAMS {
        for (from, to) in [
            (format!("{program}.bash"), format!("bash-completion/completions/{program}")),
            (format!("_{program}"), format!("zsh/vendor-completions/_{program}")),
            (format!("{program}.fish"), format!("fish/vendor_completions.d/{program}.fish")),
        ] {
            let from = PathBuf::from(format!("{FOLDER}/completions")).join(from);
            copy(&from, &root.join("usr/share").join(to), 0o644)?;
        }
    }
    Ok(())
}

/// Size of a package's files, in KiB.
fn installed_kib(root: &Path) -> anyhow::Result<String> {
    let kib = output(command("du -sk --apparent-size").arg(root))?;
    Ok(kib.split_whitespace().next().context("du says nothing")?.to_owned())
}

/// The arguments for dpkg, of the package of symbols.
fn control_of_symbols(root: &Path, version: &str, architecture: &str) -> anyhow::Result<String> {
    let kib = installed_kib(root)?;
    Ok(format!(
        "Package: dcpi-dbgsym\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: the dcpi authors <root@localhost>\n\
         Installed-Size: {kib}\nDepends: dcpi (= {version})\nSection: debug\nPriority: optional\n\
         Description: debug symbols for dcpi\n \
         Names of procedures, and source lines, of dcpid, dcpictl, dcpilabel and dcpi, for \
         debuggers and\n \
         profilers.\n"
    ))
}

/// The arguments for dpkg.
fn control(root: &Path, version: &str, architecture: &str) -> anyhow::Result<String> {
    let mut newest = (2, 0);
    for program in PROGRAMS {
        let needed = output(
            command("readelf --wide --version-info").arg(root.join("usr/bin").join(program)),
        )?;
        newest = newest.max(newest_glibc(&needed));
    }
    let kib = installed_kib(root)?;
    Ok(format!(
        "Package: dcpi\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: the dcpi authors <root@localhost>\n\
         Installed-Size: {kib}\nDepends: libc6 (>= {}.{}), libgcc-s1, systemd, passwd\nSection: \
         devel\nPriority: optional\n\
         Description: always-on profiler for the whole machine\n \
         dcpid samples every CPU of a production host thousands of times a second, programs, \
         libraries and\n \
         the kernel, unmodified, and keeps the counts in a small database; dcpi says where the \
         cycles went.\n",
        newest.0, newest.1
    ))
}

/// The highest `GLIBC_2.N` that a program needs.
fn newest_glibc(needed: &str) -> (u32, u32) {
    let version = |text: &str| {
        let (major, rest) = text.split_once('.')?;
        let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    needed.split("GLIBC_").skip(1).filter_map(version).max().unwrap_or((2, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{go_to_root, must, output};
    use std::process::Command;

    #[test]
    fn the_newest_c_library_that_is_needed() {
        let shown = "0x0020: Name: GLIBC_2.2.5  Flags: none\n Name: GLIBC_2.34 Flags\nName: GLIBC_2.9\n GLIBC_PRIVATE";
        assert_eq!((newest_glibc(shown), newest_glibc("")), ((2, 34), (2, 0)));
    }

    /// The package had systemd/README.md as its README, and neither CHANGELOG nor LIMITS.
    #[test]
    fn documents_are_in_the_package_under_their_own_names() {
        go_to_root().unwrap();
        for (name, own) in [
            ("README.md", "README.md"),
            ("CHANGELOG.md", "CHANGELOG.md"),
            ("docs/src/limits.md", "LIMITS.md"),
            ("LICENSE", "LICENSE"),
            ("systemd/README.md", "systemd/README.md"),
        ] {
            let to = format!("usr/share/doc/dcpi/{own}");
            assert!(FILES.iter().any(|(from, packed, _)| *from == name && *packed == to), "{name}");
            assert!(Path::new(name).is_file(), "{name}");
        }
        let said = next_steps(Path::new("target/package/dcpi.deb"));
        assert!(
            said.contains("apt install ./target/package/dcpi.deb") && said.contains("sudo dcpid &"),
            "{said}"
        );
    }

    /// On a machine whose first process is not systemd the package was installed, nothing started,
    /// and no line said so.
    #[test]
    fn an_installation_without_systemd_says_how_to_start_dcpid() {
        go_to_root().unwrap();
        let root = PathBuf::from("target/postinst-test");
        let _ = fs::remove_dir_all(&root); // the last run's
        for name in ["systemd-sysusers", "systemd-tmpfiles", "systemctl"] {
            let stub = root.join("bin").join(name);
            fs::create_dir_all(root.join("bin")).unwrap();
            fs::write(&stub, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&stub, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let said = |root: &Path| {
            let mut script = Command::new("sh");
            script.args(["systemd/debian/postinst", "configure", ""]).env("DPKG_ROOT", root);
            output(script.env("PATH", format!("{}:/usr/bin:/bin", root.join("bin").display())))
                .unwrap()
        };
        let without = said(&root);
        assert_eq!(without.lines().count(), 2, "{without}");
        let advice = without.lines().last().unwrap().to_owned();
        assert!(advice.ends_with("dcpi machine -o /var/lib/dcpi/machine"), "{advice}");
        assert!(
            without.contains("dcpid is not started") && without.contains("start it as root: dcpid"),
            "{without}"
        );
        must(Command::new("mkdir").arg("-p").arg(root.join("run/systemd/system"))).unwrap();
        assert_eq!(said(&root).trim_end(), advice);
        fs::create_dir_all(root.join("var/lib/dcpi")).unwrap();
        fs::write(root.join("var/lib/dcpi/machine"), "").unwrap();
        assert_eq!(said(&root), "", "it is measured already");
    }
}
