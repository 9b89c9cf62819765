//! The values of state that the batches of a group change: read and locked at the beginning of its
//! transaction, in the order of their places, and kept up to date while the group is planned.
//!
//! Several lanes may change the same value. The row is locked until the commit, so that what a change
//! was computed from is what it replaces. A value that is not there cannot be locked: it is inserted,
//! and if another lane was faster the whole group is made again.

use std::collections::{BTreeSet, HashMap};

use tokio_postgres::Row;

use super::{
    failed::Failed,
    place,
    session::Call,
    state,
    value::{int, text, uint},
};
use crate::{
    protocol::StoreOptions,
    store::{Batch, StateBatch, StateRow, StoreError, Write},
};

/// The statement that reads values by their places, and locks them.
pub const LOCKED: &str = concat!(
    "SELECT ",
    state::columns!(),
    " FROM state WHERE place = ANY($1) ORDER BY place FOR UPDATE"
);

/// The place of a value: a hash over its scope and its key.
pub type Place = [u8; 32];

/// The values that a group changes, as its batches leave them, one after another.
#[derive(Default)]
pub struct Values {
    /// A row that cannot be read refuses the batch that asks for it.
    stored: HashMap<Place, Result<StateRow, StoreError>>,
    receipts: HashMap<(u64, u32), String>,
    /// True if a batch has changed values that are not named here.
    is_stale: bool,
}

/// Returns the places of the values that the batches change.
pub fn places(group: &[&Batch]) -> BTreeSet<Vec<u8>> {
    let places = changes(group).flat_map(|batch| of_batch(batch).map(|place| place.to_vec()));
    places.collect()
}

/// Returns the statement that reads what was answered to the steps of the batches before, if there are
/// any.
pub fn receipts(group: &[&Batch]) -> Option<Call> {
    let asked = changes(group).filter_map(|batch| batch.receipt);
    let (runs, steps): (Vec<i64>, Vec<i64>) =
        asked.map(|(run, step)| (int(run), i64::from(step))).unzip();
    let sql = "SELECT r.run, r.step, r.answer FROM state_receipts r
               JOIN unnest($1::bigint[], $2::bigint[]) AS x (run, step)
                 ON r.run = x.run AND r.step = x.step";
    (!runs.is_empty()).then(|| Call::new(sql).with(runs).with(steps))
}

fn changes<'a>(group: &'a [&'a Batch]) -> impl Iterator<Item = &'a StateBatch> {
    group.iter().flat_map(|batch| &batch.writes).filter_map(|write| match write {
        Write::ChangeState(changes) => Some(&**changes),
        _ => None,
    })
}

/// Returns the places of the values that a batch changes.
pub fn of_batch(batch: &StateBatch) -> impl Iterator<Item = Place> {
    batch.changes.iter().map(|change| place::of(&[&change.scope, &change.key]))
}

impl Values {
    /// Adds a row of [`LOCKED`].
    pub fn add(&mut self, row: &Row) -> Result<(), Failed> {
        let place = place::of(&[&text(row, 0)?, &text(row, 1)?]);
        let value = match state::read(row) {
            Ok(value) => Ok(value),
            Err(Failed::Store(damage)) => Err(damage),
            Err(failed) => return Err(failed),
        };
        self.stored.insert(place, value);
        Ok(())
    }

    /// Adds a row of [`receipts`].
    pub fn add_receipt(&mut self, row: &Row) -> Result<(), Failed> {
        self.receipts.insert((uint(row, 0)?, uint(row, 1)?), text(row, 2)?);
        Ok(())
    }

    /// Takes note that values were changed which are not named: what is known may be out of date.
    pub fn spoil(&mut self) {
        self.is_stale = true;
    }

    /// Returns true if values must be read again for each batch, and forgets what is known of them.
    pub fn is_spoiled(&mut self) -> bool {
        if self.is_stale {
            self.stored.clear();
            self.receipts.clear();
        }
        self.is_stale
    }

    /// Returns a value.
    pub fn get(&self, scope: &str, key: &str) -> Result<Option<StateRow>, StoreError> {
        self.stored.get(&place::of(&[scope, key])).cloned().transpose()
    }

    /// Returns true if a value is there.
    pub fn has(&self, place: &Place) -> bool {
        self.stored.contains_key(place)
    }

    /// A value is replaced.
    pub fn put(
        &mut self,
        (scope, key): (&str, &str),
        (value, hints): (&str, &StoreOptions),
        (expires_ms, updated_ms): (Option<u64>, u64),
    ) {
        let place = place::of(&[scope, key]);
        let before = self.stored.get(&place).and_then(|it| it.as_ref().ok());
        let revision = before.map_or(0, |it| it.revision) + 1;
        let (scope, key) = (scope.to_owned(), key.to_owned());
        let (value, hints) = (value.to_owned(), hints.clone());
        let row = StateRow { scope, key, value, revision, updated_ms, expires_ms, hints };
        self.stored.insert(place, Ok(row));
    }

    /// A value is removed.
    pub fn delete(&mut self, scope: &str, key: &str) {
        self.stored.remove(&place::of(&[scope, key]));
    }

    /// Returns what was answered to a step.
    pub fn receipt(&self, step: (u64, u32)) -> Option<&str> {
        self.receipts.get(&step).map(String::as_str)
    }

    /// A step is answered.
    pub fn answer(&mut self, step: (u64, u32), answer: String) {
        self.receipts.insert(step, answer);
    }

    /// What was answered to a step is forgotten.
    pub fn forget(&mut self, step: (u64, u32)) {
        self.receipts.remove(&step);
    }
}
