//! The part of a deletion that one commit makes: everything else waits for the writer meanwhile.

/// The number of files that are deleted in one commit.
const FILES: usize = 128;
/// The number of bytes of entries and files after which no more are deleted in one commit.
const BYTES: u64 = 8 << 20;

/// The rows and bytes that may still be deleted. A single row is deleted whatever its size.
pub struct Portion {
    rows: usize,
    files: usize,
    bytes: u64,
}

impl Portion {
    /// Creates one of at most `rows` rows.
    pub fn new(rows: usize) -> Self {
        Self { rows, files: FILES, bytes: BYTES }
    }

    /// Returns true if a further row may be deleted.
    pub fn has_row(&self) -> bool {
        self.rows > 0 && self.bytes > 0
    }

    /// Returns true if a further file may be deleted.
    pub fn has_file(&self) -> bool {
        self.files > 0 && self.has_row()
    }

    /// Counts a deleted row.
    pub fn take_row(&mut self, bytes: u64) {
        self.rows = self.rows.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Counts a deleted file.
    pub fn take_file(&mut self, bytes: u64) {
        self.files = self.files.saturating_sub(1);
        self.take_row(bytes);
    }
}
