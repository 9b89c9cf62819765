//! The search for values of state by their words.

use tokio_postgres::Row;

use super::{
    failed::Failed,
    session::{Param, Session},
    state,
    value::{after_prefix, get, in_row, int, limit, text, text_or_null},
    words,
};
use crate::store::{
    StateHit, StateSearch,
    find::{self, Word},
};

/// Returns the values that contain every word, the best first. Call it within a snapshot.
pub fn search(db: &Session, search: &StateSearch) -> Result<Vec<StateHit>, Failed> {
    let sought = find::words(&search.query);
    if sought.is_empty() || search.limit == 0 {
        return Ok(Vec::new());
    }
    if words::is_of_a_run(&search.scope) {
        let rows = state::list(db, &search.scope)?;
        let mut hits = find::among(search, rows.iter());
        find::rank(&mut hits);
        hits.truncate(search.limit);
        return Ok(hits);
    }
    let (query, scope) = (words::query_of_values(&search.scope, &sought), search.scope.as_bytes());
    let (from, to) = (search.prefix.as_bytes(), after_prefix(&search.prefix));
    let now_ms = int(search.now_ms);
    let mut hits = Vec::new();
    let (mut seen, mut portion) = (0, search.limit.max(AT_ONCE));
    loop {
        let (most, after) = (limit(portion), limit(seen));
        let params: [Param<'_>; 7] = [&query, &scope, &from, &to, &now_ms, &most, &after];
        let found = db.query(FOUND, &params)?;
        hits.extend(hits_of(db, search, &sought, &found)?);
        if hits.len() >= search.limit || found.len() < portion {
            hits.truncate(search.limit);
            return Ok(hits);
        }
        // Each portion is looked for anew: there are few, even if hardly anything fits the options.
        seen += portion;
        portion = portion.saturating_mul(16);
    }
}

/// Returns those of the found values that fit the options, if there are not more than enough.
fn hits_of(
    db: &Session,
    search: &StateSearch,
    sought: &[Word],
    found: &[Row],
) -> Result<Vec<StateHit>, Failed> {
    let mut candidates = Vec::new();
    for row in found {
        let (place, score) = (get::<&[u8]>(row, 0)?, f64::from(get::<f32>(row, 1)?).max(0.0));
        let hints = text_or_null(row, 2)?.and_then(|text| serde_json::from_str(&text).ok());
        if find::fits(&search.options, score, &hints.unwrap_or_default()) {
            candidates.push((place, score));
        }
    }
    let are_cut = words::are_cut(sought);
    let mut hits = Vec::new();
    for some in candidates.chunks(search.limit.min(AT_ONCE)) {
        let places: Vec<&[u8]> = some.iter().map(|(place, _)| *place).collect();
        let values = db.query(VALUES, &[&places])?;
        for (row, (_, score)) in values.iter().zip(some) {
            let hit = hit(row, *score, sought, are_cut);
            hits.extend(hit.map_err(in_row(|| format!("a value of {}", search.scope)))?);
        }
        if hits.len() >= search.limit {
            break;
        }
    }
    Ok(hits)
}

/// The maximum number of values that are read at a time, and the least number of places.
const AT_ONCE: usize = 64;

/// A portion of the places of all values with the words, the best first. Values are read only as
/// needed.
pub(super) const FOUND: &str = "
    SELECT place, ts_rank('{0.25, 0, 0, 1}', words, $1::text::tsquery, 1) AS score, hints
    FROM state
    WHERE words @@ $1::text::tsquery AND scope = $2 AND key >= $3 AND key < $4
      AND (expires_ms IS NULL OR expires_ms > $5)
    ORDER BY score DESC, key LIMIT $6 OFFSET $7";

/// Values, in the order of their places.
pub(super) const VALUES: &str = "
    SELECT s.key, s.value FROM unnest($1::bytea[]) WITH ORDINALITY AS w (place, n)
    JOIN state s ON s.place = w.place ORDER BY w.n";

/// Returns a value as it is shown, if it has the words in full length.
fn hit(row: &Row, score: f64, sought: &[Word], are_cut: bool) -> Result<Option<StateHit>, Failed> {
    let key = text(row, 0)?;
    let text = find::text_of(&text(row, 1)?);
    let has_all = || {
        let tokens: Vec<String> = find::tokens(&key).chain(find::tokens(&text)).collect();
        sought.iter().all(|word| word.is_in(&tokens))
    };
    if are_cut && !has_all() {
        return Ok(None);
    }
    let snippet = find::snippet(&text, sought);
    Ok(Some(StateHit { key, score, snippet }))
}
