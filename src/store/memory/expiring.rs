//! The records of a host that expire.

use std::collections::HashSet;

use super::tables::Tables;
use crate::store::Expiring;

impl Tables {
    /// Returns true if there are records from before a time.
    pub(super) fn has_expired(&self, what: Expiring, before_ms: u64) -> bool {
        match what {
            Expiring::Answers => self.idempotency.values().any(|row| row.created_ms < before_ms),
            Expiring::Kept => self.kept.values().any(|(_, at)| at.is_some_and(|at| at < before_ms)),
            Expiring::Sessions => {
                self.sessions.values().any(|row| row.closed_ms.is_some_and(|at| at < before_ms))
            }
        }
    }

    /// Removes at most `rows` records from before a time, the oldest first.
    pub(super) fn expire(&mut self, what: Expiring, before_ms: u64, rows: usize) {
        match what {
            Expiring::Answers => {
                let all = self.idempotency.iter().map(|(key, row)| (Some(row.created_ms), key));
                for key in oldest(all, before_ms, rows) {
                    self.idempotency.remove(&key);
                }
            }
            Expiring::Kept => {
                let all = self.kept.iter().map(|(key, (_, at))| (*at, key));
                for key in oldest(all, before_ms, rows) {
                    self.kept.remove(&key);
                }
            }
            Expiring::Sessions => {
                let all = self.sessions.iter().map(|(id, row)| (row.closed_ms, id));
                for id in oldest(all, before_ms, rows) {
                    self.sessions.remove(&id);
                }
            }
        }
    }

    /// Returns at most `most` tokens that expired before a time and that nothing needs.
    pub(super) fn expired_tokens(&self, before_ms: u64, most: usize) -> Vec<String> {
        let needed = self.needed_tokens();
        let over = self.tokens.iter().filter(|row| row.expires_ms < before_ms);
        let over = over.map(|row| &row.jti).filter(|jti| !needed.contains(jti.as_str()));
        over.take(most).cloned().collect()
    }

    /// Returns the ids of the tokens that stay after their expiry: of those from which stored tokens
    /// are made, of open sessions, and with charges.
    fn needed_tokens(&self) -> HashSet<&str> {
        let parents = self.tokens.iter().filter_map(|row| row.parent.as_deref());
        let open = self.sessions.values().filter(|row| row.closed_ms.is_none());
        let charges = self.charges.values().map(|row| row.jti.as_str());
        let charged = self.charged.keys().map(String::as_str);
        parents.chain(open.map(|row| row.jti.as_str())).chain(charges).chain(charged).collect()
    }
}

/// Returns the keys of the oldest records from before a time.
fn oldest<'a, K: Clone + Ord + 'a>(
    all: impl Iterator<Item = (Option<u64>, &'a K)>,
    before_ms: u64,
    rows: usize,
) -> Vec<K> {
    let mut old: Vec<_> = all.filter(|(at, _)| at.is_some_and(|at| at < before_ms)).collect();
    old.sort();
    old.into_iter().take(rows).map(|(_, key)| key.clone()).collect()
}
