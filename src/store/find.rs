//! The rules of a state search and the form of its results, shared by all adapters.

use serde_json::Value;

use super::StateRow;
use crate::protocol::{SearchOptions, StoreOptions};

/// The maximum number of bytes of a value that are searched.
const SEARCHED: usize = 64 << 10;
/// The maximum number of words of a query. Others are ignored.
const WORDS: usize = 16;
/// The approximate number of characters before and after a hit in a snippet.
const AROUND: usize = 60;

/// A search in one scope.
#[derive(Debug, Clone, Default)]
pub struct StateSearch {
    /// The scope.
    pub scope: String,
    /// The words. A value must contain all of them. A word that ends in `*` matches every word with
    /// that prefix.
    pub query: String,
    /// The prefix of the keys.
    pub prefix: String,
    /// The maximum number of results.
    pub limit: usize,
    /// The current time in Unix milliseconds. Values that have expired by then are not found.
    pub now_ms: u64,
    /// Further conditions.
    pub options: SearchOptions,
}

/// The selection of keys in a listing of a scope.
#[derive(Debug, Clone, Default)]
pub struct StateFilter {
    /// The scope.
    pub scope: String,
    /// The prefix of the keys.
    pub prefix: String,
    /// Only keys after this one (the cursor of the previous page).
    pub after: Option<String>,
    /// The maximum number of results.
    pub limit: usize,
    /// The current time in Unix milliseconds. Values that have expired by then are not listed.
    pub now_ms: u64,
}

impl StateFilter {
    /// Returns true if a row belongs to the page or to a later one.
    pub(super) fn fits(&self, row: &StateRow) -> bool {
        row.scope == self.scope
            && row.key.starts_with(&self.prefix)
            && self.after.as_ref().is_none_or(|after| row.key > *after)
            && row.is_live(self.now_ms)
    }
}

/// A key in a listing of a scope, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateKey {
    /// The key.
    pub key: String,
    /// Increases with every write.
    pub revision: u64,
    /// When it was written, in Unix milliseconds.
    pub updated_ms: u64,
    /// The expiry, in Unix milliseconds.
    pub expires_ms: Option<u64>,
}

impl StateKey {
    /// Returns the key of a row.
    pub fn of(row: &StateRow) -> Self {
        let StateRow { key, revision, updated_ms, expires_ms, .. } = row;
        Self {
            key: key.clone(),
            revision: *revision,
            updated_ms: *updated_ms,
            expires_ms: *expires_ms,
        }
    }

    /// Returns true if the value has not expired.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }
}

/// The selection of scopes in a listing.
#[derive(Debug, Clone, Default)]
pub struct ScopeFilter {
    /// The prefix of the scopes.
    pub prefix: String,
    /// Only scopes after this one.
    pub after: Option<String>,
    /// The maximum number of results.
    pub limit: usize,
    /// The current time in Unix milliseconds. Values that have expired by then are not counted.
    pub now_ms: u64,
}

/// A stored version of a blueprint without its bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionRow {
    /// The bundle's hash, in hex.
    pub hash: String,
    /// The time at which it was stored, in Unix milliseconds.
    pub created_ms: u64,
    /// True if it was published, and did not only come with a request.
    pub published: bool,
}

/// A value that a middleware layer stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRow {
    /// The key.
    pub key: String,
    /// The value, as JSON.
    pub value: String,
    /// When it expires, in Unix milliseconds.
    pub expires_ms: Option<u64>,
}

/// Open tasks of one queue that are in the same hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuedRow {
    /// The queue.
    pub queue: String,
    /// The worker that holds them; `None` for those that wait.
    pub worker: Option<String>,
    /// The number of tasks.
    pub tasks: u64,
    /// When the oldest was scheduled, in Unix milliseconds.
    pub oldest_ms: u64,
}

/// Open tasks of one operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTasksRow {
    /// The operator.
    pub operator: String,
    /// Its kind.
    pub kind: String,
    /// The number of tasks.
    pub tasks: u64,
    /// When the oldest was scheduled, in Unix milliseconds.
    pub oldest_ms: u64,
}

/// The maximum number of keys of one scope that are counted.
pub const MOST_COUNTED: u64 = 1_000;

/// A scope of state, with the number and the size of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeRow {
    /// The scope.
    pub scope: String,
    /// The number of its keys, at most [`MOST_COUNTED`].
    pub keys: u64,
    /// The size of these keys and their values, in bytes.
    pub bytes: u64,
    /// True if there are more keys.
    pub more: bool,
}

/// A value that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct StateHit {
    /// The key.
    pub key: String,
    /// The relevance: higher is better, 0 is the lowest.
    pub score: f64,
    /// The matching part of the value, with its words in brackets.
    pub snippet: String,
}

/// A word of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// True if the word is a prefix.
    pub(super) open: bool,
}

impl Word {
    /// Returns true if one of the tokens is this word, or begins with it if it is a prefix.
    pub(super) fn is_in(&self, tokens: &[String]) -> bool {
        count(self, tokens) > 0
    }
}

/// Returns the words of a query. Punctuation is dropped.
pub(super) fn words(query: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for given in query.split_whitespace() {
        let open = given.ends_with('*');
        let mut parts = tokens(given).peekable();
        while let Some(text) = parts.next() {
            // The star belongs to the word directly before it.
            let open = open && parts.peek().is_none();
            words.push(Word { text, open });
        }
    }
    words.truncate(WORDS);
    words
}

/// Returns the words of a text, in lower case.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// Returns the searchable text of a value (JSON).
pub(super) fn text_of(value: &str) -> String {
    let text = if value.contains('\\') {
        // Unescape first. Otherwise an escape would become part of a word.
        let mut leaves = String::new();
        if let Ok(value) = serde_json::from_str(value) {
            gather(&value, &mut leaves);
        }
        leaves
    } else {
        value.to_owned()
    };
    cut(&text, SEARCHED).to_owned()
}

/// Returns true if a hit meets the conditions of the options.
pub(super) fn fits(options: &SearchOptions, score: f64, hints: &StoreOptions) -> bool {
    options.min_score.is_none_or(|least| score >= least)
        && options.tier.is_none_or(|tier| hints.tier == Some(tier))
        && options
            .content_kind
            .as_ref()
            .is_none_or(|kind| hints.content_kind.as_ref() == Some(kind))
}

/// Searches the given rows for values with the prefix that contain every word. A word weighs more
/// if fewer `rows` contain it.
pub(super) fn among<'a>(
    search: &StateSearch,
    rows: impl Iterator<Item = &'a StateRow>,
) -> Vec<StateHit> {
    let words = words(&search.query);
    if words.is_empty() {
        return Vec::new();
    }
    let texts: Vec<Searched<'_>> = rows
        .map(|row| Searched {
            row,
            key: tokens(&row.key).collect(),
            text: tokens(&text_of(&row.value)).collect(),
        })
        .collect();
    let rarity: Vec<f64> = words.iter().map(|word| rarity(word, &texts)).collect();
    let fits_row =
        |row: &StateRow| row.key.starts_with(&search.prefix) && row.is_live(search.now_ms);
    let hit = |it: &Searched<'_>| {
        let score = it.score(&words, &rarity)?;
        fits(&search.options, score, &it.row.hints).then(|| StateHit {
            key: it.row.key.clone(),
            score,
            snippet: snippet(&text_of(&it.row.value), &words),
        })
    };
    texts.iter().filter(|it| fits_row(it.row)).filter_map(hit).collect()
}

/// Sorts hits by score, the best first, and then by key.
pub(super) fn rank(hits: &mut [StateHit]) {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.key.cmp(&b.key)));
}

/// A value with its words.
struct Searched<'a> {
    row: &'a StateRow,
    key: Vec<String>,
    text: Vec<String>,
}

impl Searched<'_> {
    /// Returns the score; `None` if a word is missing.
    #[expect(clippy::cast_precision_loss, reason = "a rank needs no exact numbers")]
    fn score(&self, words: &[Word], rarity: &[f64]) -> Option<f64> {
        let mut sum = 0.0;
        for (word, rarity) in words.iter().zip(rarity) {
            let times = (4 * count(word, &self.key) + count(word, &self.text)) as f64;
            if times == 0.0 {
                return None;
            }
            sum += rarity * times / (times + 1.0 + self.text.len() as f64 / 64.0);
        }
        Some(sum)
    }
}

fn count(word: &Word, tokens: &[String]) -> usize {
    let same = |token: &&String| {
        **token == word.text || (word.open && token.starts_with(word.text.as_str()))
    };
    tokens.iter().filter(same).count()
}

/// Returns the weight of a word: higher if fewer values contain it.
#[expect(clippy::cast_precision_loss, reason = "a rank needs no exact numbers")]
fn rarity(word: &Word, texts: &[Searched<'_>]) -> f64 {
    let has = |it: &&Searched<'_>| count(word, &it.key) + count(word, &it.text) > 0;
    let having = texts.iter().filter(has).count();
    (1.0 + (texts.len() as f64) / (1.0 + having as f64)).ln()
}

fn gather(value: &Value, into: &mut String) {
    let mut say = |text: &str| {
        if !into.is_empty() {
            into.push(' ');
        }
        into.push_str(text);
    };
    match value {
        Value::String(text) => say(text),
        Value::Array(items) => items.iter().for_each(|item| gather(item, into)),
        Value::Object(members) => {
            for (key, value) in members {
                gather(&Value::String(key.clone()), into);
                gather(value, into);
            }
        }
        other => say(&other.to_string()),
    }
}

/// Returns the beginning of a text, of at most `most` bytes.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the part of a text around the first match, with all matches in brackets.
pub(super) fn snippet(text: &str, words: &[Word]) -> String {
    let fits = |token: &str| {
        let token = token.to_lowercase();
        words
            .iter()
            .any(|word| token == word.text || (word.open && token.starts_with(word.text.as_str())))
    };
    let mut hits: Vec<(usize, usize)> = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (start, c.is_alphanumeric()) {
            (None, true) => start = Some(at),
            (Some(from), false) => {
                if fits(&text[from..at]) {
                    hits.push((from, at));
                }
                start = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }
    let first = hits.first().map_or(0, |hit| hit.0);
    let begin = text[..first].char_indices().rev().nth(AROUND - 1).map_or(0, |(at, _)| at);
    let end = text[first..].char_indices().nth(2 * AROUND).map_or(text.len(), |(at, _)| first + at);
    let mut shown = String::new();
    if begin > 0 {
        shown.push('…');
    }
    let mut at = begin;
    for (from, to) in hits.into_iter().filter(|hit| hit.1 <= end) {
        shown.push_str(&text[at..from]);
        shown.push('[');
        shown.push_str(&text[from..to]);
        shown.push(']');
        at = to;
    }
    shown.push_str(&text[at..end]);
    if end < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_words_whatever_else_stands_in_it() {
        assert_eq!(words("  \"' OR ( * ! "), [Word { text: "or".into(), open: false }]);
        let word = |text: &str, open| Word { text: text.into(), open };
        assert_eq!(words("Net-work*"), [word("net", false), word("work", true)]);
        assert_eq!(words(&"a ".repeat(99)).len(), WORDS);
    }

    #[test]
    fn escapes_are_no_part_of_a_word() {
        assert_eq!(text_of(r#"["a\nb",{"k":1.5}]"#), "a\nb k 1.5");
        assert_eq!(text_of(r#"{"k":"v"}"#), r#"{"k":"v"}"#);
        assert!(text_of(&format!("\"{}\"", "ü".repeat(SEARCHED))).len() <= SEARCHED);
    }

    #[test]
    fn a_snippet_stands_around_the_first_hit() {
        let shown = snippet("the Quick brown fox", &words("quick FO*"));
        assert_eq!(shown, "the [Quick] brown [fox]");
        let long = format!("{} needle {}", "ä ".repeat(100), "ö ".repeat(100));
        let shown = snippet(&long, &words("needle"));
        assert!(shown.starts_with('…') && shown.ends_with('…') && shown.contains("[needle]"));
        assert!(shown.chars().count() < 200, "{shown}");
        assert_eq!(snippet("nothing", &words("else")), "nothing");
    }
}
