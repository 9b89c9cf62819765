//! A tar archive of plain files (POSIX ustar).

/// The size of a block, in bytes.
const BLOCK: usize = 512;
/// The longest name, in bytes.
const NAME: usize = 100;

/// An archive in the making.
#[derive(Debug, Default)]
pub(super) struct Archive(Vec<u8>);

impl Archive {
    /// Adds a file. Its name is ASCII, and cut to what the format takes.
    pub(super) fn add(&mut self, name: &str, data: &[u8]) {
        let mut head = [0_u8; BLOCK];
        let name = &name.as_bytes()[..name.len().min(NAME)];
        head[..name.len()].copy_from_slice(name);
        let mut put =
            |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(100, "0000644\0");
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", data.len()));
        put(136, "00000000000\0");
        put(148, "        ");
        put(156, "0");
        put(257, "ustar\x0000");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&head);
        self.0.extend_from_slice(data);
        let odd = data.len() % BLOCK;
        self.0.resize(self.0.len() + (BLOCK - odd) % BLOCK, 0);
    }

    /// Returns the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tar_is_read_by_tar() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::default();
        archive.add("steps/0001-plan.json", b"{\"a\":1}");
        archive.add("artifacts/0002-empty", b"");
        archive.add("artifacts/0003-block", &[b'x'; BLOCK]);
        let path = dir.path().join("context.tar");
        std::fs::write(&path, archive.finish()).unwrap();
        let mut tar = std::process::Command::new("tar");
        let done = tar.arg("xf").arg(&path).current_dir(dir.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        assert_eq!(read("steps/0001-plan.json"), b"{\"a\":1}");
        assert_eq!(
            (read("artifacts/0002-empty").len(), read("artifacts/0003-block").len()),
            (0, BLOCK)
        );
    }
}
