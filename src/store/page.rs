//! The pages of a run's history, by which a long history is read in parts.

use std::collections::VecDeque;

use super::{PAGE_BYTES, PAGE_ENTRIES, PAGES, Reader, StoreError};
use crate::journal::Entry;

/// The position of a page in a run's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageMark {
    /// The lsn of the last entry.
    pub last: u64,
    /// All entries have numbers over this one.
    pub after: u32,
    /// The number of the last entry.
    pub upto: u32,
    /// The bytes of the entries in their stored form.
    pub bytes: usize,
}

impl PageMark {
    /// Creates an empty page that will end with the given row.
    fn ending(last: u64, upto: u32) -> Self {
        Self { last, after: upto, upto, bytes: 0 }
    }

    /// Adds the row before the first one. Returns false if the page is full.
    fn take(&mut self, bytes: usize) -> bool {
        let entries = self.upto - self.after;
        if entries > 0 && (entries >= PAGE_ENTRIES || self.bytes + bytes > PAGE_BYTES) {
            return false;
        }
        self.after = self.after.saturating_sub(1);
        self.bytes += bytes;
        true
    }
}

/// The marks of the first pages of a history, at most [`PAGES`] of them. They are collected from its
/// newest row to its oldest.
#[derive(Default)]
pub(super) struct Pages {
    marks: VecDeque<PageMark>,
}

impl Pages {
    /// Adds the row before the last one that was added.
    pub(super) fn add(&mut self, lsn: u64, seq: u32, bytes: usize) {
        if self.marks.back_mut().is_some_and(|page| page.take(bytes)) {
            return;
        }
        let mut page = PageMark::ending(lsn, seq);
        page.take(bytes);
        self.marks.push_back(page);
        if self.marks.len() > PAGES {
            self.marks.pop_front();
        }
    }

    /// Returns the marks, oldest first.
    pub(super) fn finish(self) -> Vec<PageMark> {
        self.marks.into_iter().rev().collect()
    }
}

/// Calls `each` with the entries of a run's current history with numbers over `after_seq`, oldest
/// first, and those that are added meanwhile. Holds one page of them at a time.
///
/// # Errors
/// Fails when an entry cannot be read or decoded.
pub fn read_in_pages(
    store: &dyn Reader,
    run: u64,
    after_seq: u32,
    mut each: impl FnMut(&Entry),
) -> Result<(), StoreError> {
    let mut after = after_seq.max(store.history_start(run)?.saturating_sub(1));
    loop {
        let pages = store.pages(run, after)?;
        for page in &pages {
            store.page(run, page)?.iter().for_each(&mut each);
            after = page.upto;
        }
        if pages.len() < PAGES {
            return Ok(());
        }
    }
}
