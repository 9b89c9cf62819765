//! The one way in which rows of a journal are made: numbered, chained, and counted in the header.

use super::{Header, JournalRow, Writer};
use crate::journal::Entry;

/// Makes rows of new entries of the header's run, whose last row so far is `before`, and brings the
/// cursor, the number of the last entry and the bytes of the header up to them.
pub fn append(
    writer: &(impl Writer + ?Sized),
    header: &mut Header,
    before: Option<u64>,
    entries: &[Entry],
) -> Vec<JournalRow> {
    let mut last = before;
    let mut rows = Vec::with_capacity(entries.len());
    for (entry, lsn) in entries.iter().zip(writer.next_lsns(entries.len())) {
        let row = JournalRow::new(header.num, lsn, last, entry);
        header.bytes += row.bytes.len() as u64;
        (header.cursor, header.seq) = (lsn, entry.seq);
        last = Some(lsn);
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{Fact, SignalReceived},
        protocol::Json,
        store::Memory,
    };

    #[test]
    fn rows_follow_each_other_and_the_header_counts_them() {
        let signal = SignalReceived { name: "go".into(), payload: Json::null(), sender: None };
        let entries: Vec<_> =
            (4..7).map(|seq| Entry::new(seq, 9, Fact::SignalReceived(signal.clone()))).collect();
        let (store, mut header) = (Memory::default(), Header::fresh(1, 0));
        let rows = append(&store, &mut header, Some(3), &entries);
        let before: Vec<_> = rows.iter().map(|row| row.before).collect();
        assert_eq!(before, [Some(3), Some(rows[0].lsn), Some(rows[1].lsn)]);
        assert_eq!((header.cursor, header.seq), (rows[2].lsn, 6));
        assert_eq!(header.bytes, rows.iter().map(|row| row.bytes.len() as u64).sum::<u64>());
    }
}
