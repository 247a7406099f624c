//! Debian packages without installing them: apt with folders of its own under `target/vm`, and
//! `dpkg -x`.
//!
//! Nothing of the system's apt is written: sources, lists, cache and status are ours. The mirror is
//! the one that the system uses.

use crate::process::{command, exists, must, output};
use anyhow::{Context as _, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Package lists older than this are fetched again.
const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Kernels that a mirror lists but no longer has, tried before giving up.
const ATTEMPTS_MAX: usize = 16;

/// Where this machine gets Debian from.
pub struct Mirrors {
    main: String,
    security: Option<String>,
    /// Of the Debian that runs here: `bookworm`.
    pub codename: String,
}

impl Mirrors {
    /// Reads them from apt's own sources.
    pub fn of_this_machine() -> anyhow::Result<Self> {
        ensure!(
            exists("apt-get") && exists("dpkg") && Path::new(KEYRING).exists(),
            "QEMU and the kernels come from Debian's archive, and this machine has no apt-get, no dpkg or no {KEYRING}; \
             run this on a Debian machine"
        );
        let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let codename = codename
            .context("/etc/os-release has no VERSION_CODENAME")?
            .trim_matches('"')
            .to_owned();
        let mut text = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
        let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
        for part in parts.filter_map(|entry| fs::read_to_string(entry.path()).ok()) {
            text = format!("{text}\n{part}\n\n");
        }
        let sources = sources(&text);
        let named = |wanted: &str| {
            sources.iter().find(|(_, suite)| suite == wanted).map(|(uri, _)| uri.clone())
        };
        let main = named(&codename)
            .with_context(|| format!("apt's sources (/etc/apt) name no mirror of {codename}"))?;
        Ok(Self { main, security: named(&format!("{codename}-security")), codename })
    }
}

/// Every (URI, suite) of apt's sources, in either format of sources.list(5).
fn sources(text: &str) -> Vec<(String, String)> {
    let mut sources = Vec::new();
    for stanza in text.split("\n\n") {
        let field = |name: &str| {
            stanza.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
        };
        for uri in field("URIs:").split_whitespace() {
            sources.extend(
                field("Suites:").split_whitespace().map(|suite| (uri.to_owned(), suite.to_owned())),
            );
        }
        for line in stanza.lines().filter_map(|line| line.strip_prefix("deb ")) {
            // deb [options] URI SUITE COMPONENTS...
            let line = line.trim_start();
            let line = if line.starts_with('[') {
                line.split_once(']').map_or("", |(_, rest)| rest)
            } else {
                line
            };
            let mut words = line.split_whitespace();
            if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
                sources.push((uri.to_owned(), suite.to_owned()));
            }
        }
    }
    sources
}

/// Some suites of the archive, for amd64 and arm64.
pub struct Archive {
    folder: PathBuf,
}

impl Archive {
    /// Fetches the lists of `suites`, unless they were today.
    pub fn open(vm: &Path, mirrors: &Mirrors, suites: &[&str]) -> anyhow::Result<Self> {
        let folder = vm.join("apt").join(suites.first().context("an archive has a suite")?);
        for part in ["lists/partial", "cache/archives/partial", "parts"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let mut list = String::new();
        for suite in suites {
            let uri = if suite.ends_with("-security") {
                mirrors.security.as_ref()
            } else {
                Some(&mirrors.main)
            };
            let Some(uri) = uri else { continue }; // a machine without security updates
            list.push_str(&format!("deb [signed-by={KEYRING}] {uri} {suite} main\n"));
        }
        fs::write(folder.join("sources.list"), list)?;
        // Packages that are installed here need not be fetched.
        fs::copy("/var/lib/dpkg/status", folder.join("status")).context("copying dpkg's status")?;
        fs::write(folder.join("apt.conf"), configuration(&folder))?;
        let archive = Self { folder };
        archive.update(suites)?;
        Ok(archive)
    }

    fn update(&self, suites: &[&str]) -> anyhow::Result<()> {
        let stamp = self.folder.join("updated");
        let age = fs::metadata(&stamp).and_then(|stamp| stamp.modified()).ok();
        let age = age.and_then(|written| SystemTime::now().duration_since(written).ok());
        if age.is_some_and(|age| age < LISTS_AGE_MAX) {
            return Ok(());
        }
        println!("fetching the package lists of {}", suites.join(", "));
        match output(&mut self.apt("apt-get -qq update")) {
            Ok(_) => Ok(fs::write(stamp, "")?),
            Err(error) if age.is_some() => {
                println!(
                    "using the package lists of {} hours ago: {error:#}",
                    age.unwrap_or_default().as_secs() / 3600
                );
                Ok(())
            }
            Err(error) => Err(error.context(format!("no package lists of {}", suites.join(", ")))),
        }
    }

    fn apt(&self, line: &str) -> Command {
        let mut command = command(line);
        command.env("APT_CONFIG", self.folder.join("apt.conf"));
        command
    }

    /// Unpacks packages, and those of their dependencies that are not installed here, to `to`,
    /// once.
    pub fn unpack_with_dependencies(&self, packages: &str, to: &Path) -> anyhow::Result<()> {
        let line = "apt-get install -y -qq --download-only --no-install-recommends";
        self.fetch(
            &mut self.apt(&format!("{line} {packages}")),
            &self.folder.join("cache/archives"),
            to,
        )
    }

    /// Unpacks packages alone to `to`, once.
    pub fn unpack(&self, packages: &str, to: &Path) -> anyhow::Result<()> {
        let downloads = self.folder.join("downloads");
        fs::create_dir_all(&downloads)?;
        let mut download = self.apt(&format!("apt-get download -qq {packages}"));
        self.fetch(download.current_dir(&downloads), &downloads, to)
    }

    /// Runs a command that leaves packages in `from`; moves their content to `to` as a whole, or
    /// not at all.
    fn fetch(&self, command: &mut Command, from: &Path, to: &Path) -> anyhow::Result<()> {
        if to.exists() {
            return Ok(());
        }
        remove_packages(from)?; // of a run that was ended halfway
        // Not the user's standard input, and no chatter: errors are in the answer.
        output(command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()))?;
        let unpacked = to.with_extension("partial");
        let _ = fs::remove_dir_all(&unpacked); // the same
        fs::create_dir_all(&unpacked)?;
        for package in packages(from)? {
            must(Command::new("dpkg").arg("-x").arg(&package).arg(&unpacked))?;
        }
        remove_packages(from)?;
        fs::rename(&unpacked, to).with_context(|| format!("making {}", to.display()))
    }

    /// The newest kernel of a series that the mirror has: its package, and the file to boot.
    /// Fetched once.
    pub fn kernel(
        &self,
        vm: &Path,
        series: &str,
        architecture: &str,
    ) -> anyhow::Result<(String, PathBuf)> {
        let names = output(&mut self.apt("apt-cache pkgnames linux-"))?;
        let candidates = kernels(&names, series, architecture);
        let mut refusals = Vec::new();
        for package in candidates.iter().take(ATTEMPTS_MAX) {
            let folder = vm.join("kernels").join(package);
            if !folder.exists() {
                println!("fetching {package}");
                fs::create_dir_all(vm.join("kernels"))?;
                if let Err(error) = self.unpack(&format!("{package}:{architecture}"), &folder) {
                    // Listed, but gone from the mirror: an older one may be there.
                    refusals.push(format!("{error:#}"));
                    continue;
                }
            }
            if let Some(file) = bootable(&folder) {
                return Ok((package.clone(), file));
            }
        }
        bail!(
            "{} kernels of {series} for {architecture} are listed, and none could be fetched: {}",
            candidates.len(),
            { refusals.first().map_or("none of them contains a kernel", String::as_str) }
        )
    }
}

fn configuration(folder: &Path) -> String {
    let at = |part: &str| folder.join(part).display().to_string();
    [
        ("APT::Architecture", "amd64".to_owned()),
        ("APT::Architectures::", "amd64".to_owned()),
        ("APT::Architectures::", "arm64".to_owned()),
        // The folders are ours, not those of apt's own user.
        ("APT::Sandbox::User", "root".to_owned()),
        ("Acquire::Languages", "none".to_owned()),
        ("Acquire::Check-Valid-Until", "false".to_owned()), // old releases are frozen
        ("Dir::Etc::sourcelist", at("sources.list")),
        ("Dir::Etc::sourceparts", at("parts")),
        ("Dir::Etc::preferences", at("preferences")),
        ("Dir::Etc::preferencesparts", at("parts")),
        ("Dir::State::lists", at("lists")),
        ("Dir::State::status", at("status")),
        ("Dir::State::extended_states", at("extended_states")),
        ("Dir::Cache", at("cache")),
        ("Dir::Cache::archives", at("cache/archives")),
        ("Debug::NoLocking", "true".to_owned()), // the locks are the system's
    ]
    .map(|(key, value)| format!("{key} \"{value}\";\n"))
    .concat()
}

fn packages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let files = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let files = files.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path());
    Ok(files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect())
}

fn remove_packages(folder: &Path) -> anyhow::Result<()> {
    packages(folder)?
        .iter()
        .try_for_each(fs::remove_file)
        .with_context(|| format!("emptying {}", folder.display()))
}

/// Packages of a series' kernels, newest first: `linux-image-6.1.0-56-arm64`, and where the kernel
/// itself has a package of its own (Debian's 7.x), that one first:
/// `linux-binary-7.2.12+deb13-arm64`. amd64 in the cloud flavour, which is small.
fn kernels(names: &str, series: &str, architecture: &str) -> Vec<String> {
    let suffix = if architecture == "amd64" {
        "-cloud-amd64".to_owned()
    } else {
        format!("-{architecture}")
    };
    let version = |name: &str| -> Option<Vec<u32>> {
        let rest =
            name.strip_prefix("linux-binary-").or_else(|| name.strip_prefix("linux-image-"))?;
        let middle = rest.strip_prefix(series)?.strip_prefix('.')?.strip_suffix(&suffix)?;
        // "0-56" or "117+deb13.1", not "0-56-rt".
        let numbers =
            middle.split(['.', '-', '+']).map(|part| part.trim_start_matches("deb").parse().ok());
        numbers.collect()
    };
    let mut kernels: Vec<_> = names
        .lines()
        .filter_map(|name| {
            Some((version(name)?, name.starts_with("linux-binary-"), name.to_owned()))
        })
        .collect();
    kernels.sort();
    kernels.into_iter().rev().map(|(_, _, name)| name).collect()
}

/// `boot/vmlinuz-VERSION`, or `usr/lib/modules/VERSION/vmlinuz` from 7.x on.
fn bootable(folder: &Path) -> Option<PathBuf> {
    let entries = |path: &str| {
        fs::read_dir(folder.join(path)).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let in_boot = entries("boot").find(|path| path.display().to_string().contains("/vmlinuz-"));
    in_boot.or_else(|| {
        entries("usr/lib/modules").map(|path| path.join("vmlinuz")).find(|path| path.is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::{kernels, sources};

    #[test]
    fn both_formats_of_sources() {
        let deb822 = "Types: deb\nURIs: http://m/debian\nSuites: bookworm bookworm-updates\nComponents: main\n\n\
                      Types: deb\nURIs: http://m/security\nSuites: bookworm-security\n";
        let lines = "# deb http://no no main\ndeb [signed-by=/a b=c] http://m/debian trixie main\ndeb-src http://m x main\n\
                     deb http://m/security trixie-security main\n";
        let pairs = |text: &str| {
            sources(text).iter().map(|(uri, suite)| format!("{uri} {suite}")).collect::<Vec<_>>()
        };
        assert_eq!(
            pairs(deb822),
            [
                "http://m/debian bookworm",
                "http://m/debian bookworm-updates",
                "http://m/security bookworm-security"
            ]
        );
        assert_eq!(pairs(lines), ["http://m/debian trixie", "http://m/security trixie-security"]);
    }

    #[test]
    fn the_newest_kernel_of_a_series_comes_first() {
        let names = "linux-image-6.1.0-9-arm64\nlinux-image-6.1.0-56-arm64\nlinux-image-6.1.0-56-rt-arm64\n\
                     linux-image-6.1.0-56-cloud-arm64\nlinux-image-6.12.117+deb13-arm64\n\
                     linux-image-6.12.90+deb13.1-arm64\n\
                     linux-image-6.1.0-57-cloud-amd64\n\
                     linux-image-6.1.0-57-cloud-amd64-unsigned\nlinux-image-arm64\n\
                     linux-image-7.2.12+deb13-arm64\nlinux-binary-7.2.12+deb13-arm64\n\
                     linux-image-7.2.9+deb13-arm64\n";
        for (series, architecture, expected) in [
            ("6.1", "arm64", vec!["linux-image-6.1.0-56-arm64", "linux-image-6.1.0-9-arm64"]),
            ("6.1", "amd64", vec!["linux-image-6.1.0-57-cloud-amd64"]),
            (
                "6.12",
                "arm64",
                vec!["linux-image-6.12.117+deb13-arm64", "linux-image-6.12.90+deb13.1-arm64"],
            ),
            (
                "7.2",
                "arm64",
                vec![
                    "linux-binary-7.2.12+deb13-arm64",
                    "linux-image-7.2.12+deb13-arm64",
                    "linux-image-7.2.9+deb13-arm64",
                ],
            ),
            ("5.10", "arm64", vec![]),
        ] {
            assert_eq!(kernels(names, series, architecture), expected, "{series} {architecture}");
        }
    }
}
