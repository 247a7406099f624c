//! The guest's only file system: an archive that the kernel unpacks into memory
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use anyhow::Context as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive in the format `newc`, not compressed: QEMU copies faster than a guest unpacks.
#[derive(Default)]
pub struct Initramfs {
    bytes: Vec<u8>,
    entries: u32,
}

impl Initramfs {
    /// Adds a folder.
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// Adds a file that may be run.
    pub fn program(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        let content = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        self.entry(name, PROGRAM, &content);
        Ok(())
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (name_bytes, content_bytes) = (name.len() as u32 + 1, content.len() as u32);
        // magic, inode, mode, uid, gid, links, time, size, device and special device (major,
        // minor), length of the name, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, content_bytes, 0, 0, 0, 0, name_bytes, 0];
        let header =
            fields.iter().fold("070701".to_owned(), |header, field| format!("{header}{field:08X}"));
        self.bytes.extend(header.bytes().chain(name.bytes()).chain([0]));
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Ends the archive and writes it.
    pub fn write(mut self, to: &Path) -> anyhow::Result<()> {
        self.entry("TRAILER!!!", 0, &[]);
        let mut file = fs::File::create(to).with_context(|| format!("making {}", to.display()))?;
        file.write_all(&self.bytes).with_context(|| format!("writing {}", to.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::Initramfs;

    #[test]
    fn an_entry_is_a_header_a_name_and_a_content_each_to_four_bytes() {
        let mut archive = Initramfs::default();
        archive.entry("init", 0o100_755, b"hello");
        let text = String::from_utf8(archive.bytes).unwrap();
        let numbers = "00000001000081ED000000000000000000000001000000000000000500000000000000000000000000000000";
        assert_eq!(text, format!("070701{numbers}0000000500000000init\0\0hello\0\0\0"));
    }
}
