//! The table `idempotency`: answers that are sent again for repeated requests.
//!
//! The keys of a group are stored together, in the order of their places. Several lanes may take the same
//! key at the same time: the database gives it to one of them.

use std::collections::BTreeMap;

use super::{session::Call, value::int};
use crate::store::IdempotencyRow;

/// An idempotency key with its answer.
#[derive(Clone, Copy)]
pub struct Claim<'a> {
    /// The row.
    pub row: &'a IdempotencyRow,
    /// True if the batch depends on the key being free.
    pub is_free: bool,
}

/// Begins the statement that stores answers under their keys.
macro_rules! insert_answers {
    ($rest:literal) => {
        concat!(
            "INSERT INTO idempotency (place, principal, route, key, created_ms, body, answer)
             SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[],
                 $6::bytea[], $7::bytea[]) ",
            $rest
        )
    };
}

const REPLACE_ANSWERS: &str = insert_answers!(
    "ON CONFLICT (place) DO UPDATE SET created_ms = excluded.created_ms, body = excluded.body,
         answer = excluded.answer"
);
const NEW_ANSWERS: &str = concat!(
    "WITH put AS (",
    insert_answers!("ON CONFLICT (place) DO NOTHING RETURNING 1"),
    ") SELECT 1 / (CASE WHEN count(*) = cardinality($1) THEN 1 ELSE 0 END) FROM put"
);

/// Appends the statements that store keys, in their order. If one that must be free is not, because
/// another lane was faster, the statement fails, and the group is made again.
pub fn put(claims: BTreeMap<[u8; 32], Claim<'_>>, calls: &mut Vec<Call>) {
    for (is_free, sql) in [(true, NEW_ANSWERS), (false, REPLACE_ANSWERS)] {
        let of_kind = || claims.iter().filter(|(_, claim)| claim.is_free == is_free);
        if of_kind().next().is_none() {
            continue;
        }
        let all = |text: fn(&IdempotencyRow) -> &str| -> Vec<Vec<u8>> {
            of_kind().map(|(_, claim)| text(claim.row).as_bytes().to_vec()).collect()
        };
        calls.push(
            Call::new(sql)
                .with(of_kind().map(|(place, _)| place.to_vec()).collect::<Vec<_>>())
                .with(all(|row| &row.principal))
                .with(all(|row| &row.route))
                .with(all(|row| &row.key))
                .with(of_kind().map(|(_, claim)| int(claim.row.created_ms)).collect::<Vec<_>>())
                .with(all(|row| &row.body))
                .with(all(|row| &row.answer)),
        );
    }
}
