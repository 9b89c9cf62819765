//! Reading a file that somebody else named or put there.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustix::fs::{Mode, OFlags};

/// Reads a regular file of at most `most` bytes: no pipe, which may have no writer, and no device,
/// which may have no end.
///
/// # Errors
/// Fails when it is not a regular file, has more bytes, or cannot be read.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // The open of a pipe would wait for whoever writes into it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(bytes),
    }
}

/// The same, as text.
///
/// # Errors
/// As [`read_regular`], and when it is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read_regular(path, most)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_size_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        std::fs::write(at("file"), "1234").unwrap();
        for name in ["fifo", "zero", "."] {
            let error = read_regular(&at(name), 10).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{name}: {error}");
        }
        assert_eq!(read_text(&at("file"), 4).unwrap(), "1234");
        let error = read_regular(&at("file"), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
