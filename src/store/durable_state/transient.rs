//! The values that live only as long as the process, and the room that they take.

use std::{collections::BTreeMap, sync::Arc};

use crate::{protocol::RunId, store::StateRow};

/// The values by scope and key, and those that expire by their time.
#[derive(Default)]
pub(super) struct Transient {
    rows: BTreeMap<(String, String), Numbered>,
    /// The values that expire, by the time at which they do and their number.
    ends: BTreeMap<(u64, u64), Arc<StateRow>>,
    /// The number of the next value.
    next: u64,
    /// The bytes of all scopes, keys and values.
    bytes: usize,
}

struct Numbered {
    number: u64,
    row: Arc<StateRow>,
}

impl Transient {
    /// Returns true if there are no values.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the number of values.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the bytes of all scopes, keys and values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of values that expire.
    #[cfg(test)]
    pub(super) fn expiring(&self) -> usize {
        self.ends.len()
    }

    /// Returns a value, even if it has expired.
    pub(super) fn get(&self, scope: &str, key: &str) -> Option<&StateRow> {
        self.rows.get(&(scope.to_owned(), key.to_owned())).map(|it| &*it.row)
    }

    /// Returns the values of a scope whose keys start with `prefix`, sorted by key, with those that
    /// have expired.
    pub(super) fn of_prefix(
        &self,
        scope: &str,
        prefix: &str,
    ) -> impl Iterator<Item = &Arc<StateRow>> {
        self.rows
            .range((scope.to_owned(), prefix.to_owned())..)
            .map(|(_, it)| &it.row)
            .take_while(move |row| row.scope == scope && row.key.starts_with(prefix))
    }

    /// Sets a value.
    pub(super) fn put(&mut self, row: StateRow) {
        self.remove(&row.scope, &row.key);
        self.bytes += bytes_of(&row.scope, &row.key, &row.value);
        let (number, row) = (self.next, Arc::new(row));
        self.next += 1;
        if let Some(at) = row.expires_ms {
            self.ends.insert((at, number), Arc::clone(&row));
        }
        self.rows.insert((row.scope.clone(), row.key.clone()), Numbered { number, row });
    }

    /// Removes a value, if there is one.
    pub(super) fn remove(&mut self, scope: &str, key: &str) {
        let place = (scope.to_owned(), key.to_owned());
        let Some(Numbered { number, row }) = self.rows.remove(&place) else { return };
        self.bytes -= bytes_of(&row.scope, &row.key, &row.value);
        if let Some(at) = row.expires_ms {
            self.ends.remove(&(at, number));
        }
    }

    /// Removes what has expired. Looks at nothing else.
    pub(super) fn expire(&mut self, now_ms: u64) {
        while self.ends.first_key_value().is_some_and(|((at, _), _)| *at <= now_ms) {
            if let Some((_, row)) = self.ends.pop_first() {
                self.remove(&row.scope, &row.key);
            }
        }
    }

    /// Removes the values of a run and of its operators.
    pub(super) fn remove_run(&mut self, run: RunId) {
        let own = format!("run:{run}");
        let after_own = format!("{own}\0");
        let within = (format!("operator:{run}:"), format!("operator:{run};"));
        for (first, end) in [(own, after_own), within] {
            let of_run = self.rows.range((first, String::new())..(end, String::new()));
            let places: Vec<(String, String)> = of_run.map(|(place, _)| place.clone()).collect();
            for (scope, key) in places {
                self.remove(&scope, &key);
            }
        }
    }
}

/// Returns the bytes that count for a value.
pub(super) fn bytes_of(scope: &str, key: &str, value: &str) -> usize {
    scope.len() + key.len() + value.len()
}
