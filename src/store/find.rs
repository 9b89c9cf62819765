//! What a search of state looks for, and how it shows what it found: the same for every adapter.

use serde_json::Value;

use super::StateRow;
use crate::protocol::{SearchOptions, StoreOptions};

/// What of a value is searched, in bytes.
const SEARCHED: usize = 64 << 10;
/// The most words of a query that count.
const WORDS: usize = 16;
/// About how many characters of a value stand before and after a hit.
const AROUND: usize = 60;

/// A search of one scope.
#[derive(Debug, Clone, Default)]
pub struct StateSearch {
    /// The scope's text.
    pub scope: String,
    /// The words: a value that has all of them fits. A word that ends in `*` stands for all that
    /// begin like it.
    pub query: String,
    /// Only keys that begin like this.
    pub prefix: String,
    /// At most this many.
    pub limit: usize,
    /// What has expired by then is not found, in Unix milliseconds.
    pub now_ms: u64,
    /// What else is asked for.
    pub options: SearchOptions,
}

/// Which keys of a scope to list.
#[derive(Debug, Clone, Default)]
pub struct StateFilter {
    /// The scope's text.
    pub scope: String,
    /// Only keys that begin like this.
    pub prefix: String,
    /// Only keys after this one (the cursor of the page before).
    pub after: Option<String>,
    /// At most this many.
    pub limit: usize,
    /// What has expired by then is not listed, in Unix milliseconds.
    pub now_ms: u64,
}

/// A value that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct StateHit {
    /// The key.
    pub key: String,
    /// How well it fits; more is better, and 0 is the least.
    pub score: f64,
    /// The part of the value that fits, its words in brackets.
    pub snippet: String,
}

/// A word that is looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Whether it stands for every word that begins like it.
    pub(super) open: bool,
}

/// The words of a query, without what no text has.
pub(super) fn words(query: &str) -> Vec<Word> {
    let mut words = Vec::new();
    for given in query.split_whitespace() {
        let open = given.ends_with('*');
        let mut parts = tokens(given).peekable();
        while let Some(text) = parts.next() {
            // The star belongs to what stands right before it.
            let open = open && parts.peek().is_none();
            words.push(Word { text, open });
        }
    }
    words.truncate(WORDS);
    words
}

/// The words of a text, in lower case.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// What of a value (JSON) is searched.
pub(super) fn text_of(value: &str) -> String {
    let text = if value.contains('\\') {
        // An escape would be read as a part of its word.
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

/// Whether a hit is what the options ask for.
pub(super) fn fits(options: &SearchOptions, score: f64, hints: &StoreOptions) -> bool {
    options.min_score.is_none_or(|least| score >= least)
        && options.tier.is_none_or(|tier| hints.tier == Some(tier))
        && options
            .content_kind
            .as_ref()
            .is_none_or(|kind| hints.content_kind.as_ref() == Some(kind))
}

/// Searches values that are at hand, one by one, for those of the prefix that have every word; a
/// word weighs the more, the fewer of `rows` have it.
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

/// Puts hits in their order: the best first, and by key where none is better.
pub(super) fn rank(hits: &mut [StateHit]) {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.key.cmp(&b.key)));
}

/// A value with the words that it has.
struct Searched<'a> {
    row: &'a StateRow,
    key: Vec<String>,
    text: Vec<String>,
}

impl Searched<'_> {
    /// How well it fits; nothing if a word is missing.
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

/// How much a word says: the fewer values have it, the more.
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

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The part of a text around the first word that fits, with what fits in brackets.
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
