//! The numbers of the rows of a lent run: a node that helps gives them for the time being, and the one
//! that commits gives the real ones.

use super::parcel::Parcel;
use crate::store::{Check, RunWrite, StoreError, Writer};

/// Numbers of rows that a node gives from here on stand for those that the committing node gives.
pub const PROVISIONAL: u64 = 1 << 62;

/// Gives the rows of one lent run their numbers.
///
/// A batch names the last row before it, so the last provisional number is all that it may name. One
/// that follows a refused batch names a number that never became true, or one whose row was never
/// stored: it is refused here, or by the check of the store.
#[derive(Debug, Default)]
pub struct Renumbering {
    /// The provisional and the real number of the last row.
    last: Option<(u64, u64)>,
}

impl Renumbering {
    /// Replaces the provisional numbers in a parcel by real ones, in its checks, its rows and its
    /// header. New rows get numbers of `writer`, in their order.
    ///
    /// # Errors
    /// Returns [`StoreError::Moved`] for a provisional number other than the last one, and for a new
    /// row with a number that is not provisional. The parcel must not be committed then.
    pub fn apply(
        &mut self,
        parcel: &mut Parcel,
        writer: &(impl Writer + ?Sized),
    ) -> Result<(), StoreError> {
        let mut last = self.last;
        for check in &mut parcel.checks {
            if let Check::RunAt { run, cursor } = check {
                *cursor = real(last, *run, *cursor)?;
            }
        }
        if let Some(RunWrite { header, expected, entries, .. }) = &mut parcel.run {
            let run = header.num;
            if let Some(expected) = expected {
                *expected = real(last, run, *expected)?;
            }
            let numbers = writer.next_lsns(entries.len());
            for (row, lsn) in entries.iter_mut().zip(numbers) {
                if let Some(before) = &mut row.before {
                    *before = real(last, run, *before)?;
                }
                if row.lsn < PROVISIONAL {
                    return Err(StoreError::Moved { run });
                }
                last = Some((row.lsn, lsn));
                row.lsn = lsn;
            }
            header.cursor = real(last, run, header.cursor)?;
            if entries.last().is_some_and(|row| row.lsn != header.cursor) {
                return Err(StoreError::Moved { run });
            }
        }
        self.last = last;
        Ok(())
    }

    /// Forgets the numbers after a refusal: those given since the refused batch never become true. A
    /// later batch that names one of them is refused.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

/// Returns the number that a row has in the store.
fn real(last: Option<(u64, u64)>, run: u64, number: u64) -> Result<u64, StoreError> {
    match last {
        _ if number < PROVISIONAL => Ok(number),
        Some((provisional, real)) if provisional == number => Ok(real),
        Some(_) | None => Err(StoreError::Moved { run }),
    }
}
