//! The words of values and of ended runs, as PostgreSQL's text search stores and seeks them.
//!
//! The words are found in Rust, by the rules of all stores, and given to the database as they are: no
//! configuration of the text search is used. Each word of a value has a prefix for its scope, so a
//! search does not pay for the content of other scopes. Words are cut on both sides at the same
//! length; a search for a longer one looks at the texts as well.

use crate::store::{
    Header,
    find::{self, Word},
    run_filter,
};

/// The maximum number of bytes of a word in the index.
const LONGEST: usize = 255;

/// Returns true if the values of a scope are not indexed: those of one run. They are few, end with
/// the run, and are written at many steps.
pub fn is_of_a_run(scope: &str) -> bool {
    scope.starts_with("run:") || scope.starts_with("operator:run_")
}

/// Returns the words of a value, to be bound as `$n::text::tsvector`; `None` if it is not indexed.
/// Words of the key have the weight A.
pub fn of_value(scope: &str, key: &str, value: &str) -> Option<String> {
    if is_of_a_run(scope) {
        return None;
    }
    let mark = mark(scope);
    let text = find::text_of(value);
    let mut vector = String::with_capacity(2 * (key.len() + text.len()));
    let words = find::tokens(key).map(|word| (word, "A"));
    let words = words.chain(find::tokens(&text).map(|word| (word, "")));
    for (place, (word, weight)) in (1_usize..).zip(words) {
        lexeme(&mut vector, &mark, &word);
        vector.extend([":", &place.to_string(), weight, " "]);
    }
    Some(vector)
}

/// Returns the words of a run, to be bound as `$n::text::tsvector`; `None` if it has none.
pub fn of_run(header: &Header) -> Option<String> {
    let text = run_filter::text_of(header)?;
    let mut vector = String::with_capacity(2 * text.len());
    for word in find::tokens(&text) {
        lexeme(&mut vector, "", &word);
        vector.push(' ');
    }
    Some(vector)
}

/// Returns the query for values of a scope, to be bound as `$n::text::tsquery`.
pub fn query_of_values(scope: &str, words: &[Word]) -> String {
    query(&mark(scope), words)
}

/// Returns the query for runs, to be bound as `$n::text::tsquery`.
pub fn query_of_runs(words: &[Word]) -> String {
    query("", words)
}

/// Returns true if the index finds more than what has the words, because one of them was cut.
pub fn are_cut(words: &[Word]) -> bool {
    words.iter().any(|word| word.text.len() > LONGEST)
}

/// Returns the prefix for the words of a scope. It is short, because it is stored with every word.
/// Two scopes may share a prefix, so results are checked for their scope.
fn mark(scope: &str) -> String {
    blake3::hash(scope.as_bytes()).to_hex()[..10].to_owned()
}

fn query(mark: &str, words: &[Word]) -> String {
    let mut query = String::new();
    for Word { text, open } in words {
        if !query.is_empty() {
            query.push_str(" & ");
        }
        lexeme(&mut query, mark, text);
        if *open {
            query.push_str(":*");
        }
    }
    query
}

/// Appends a quoted word. The lower case of a letter may have marks besides letters, but neither
/// quotes nor backslashes.
fn lexeme(into: &mut String, mark: &str, word: &str) {
    into.extend(["'", mark, find::cut(word, LONGEST), "'"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_marked_and_placed() {
        let mark = mark("global");
        let vector = of_value("global", "a/b", r#""B 'c'""#).unwrap();
        assert_eq!(vector, format!("'{mark}a':1A '{mark}b':2A '{mark}b':3 '{mark}c':4 "));
        let query = query_of_values("global", &find::words("b C*"));
        assert_eq!(query, format!("'{mark}b' & '{mark}c':*"));
        assert_eq!(of_value("run:run_1", "a", "1"), None);
        assert_eq!(of_value("operator:run_1:x", "a", "1"), None);
        assert!(of_value("operator:team:x", "a", "1").is_some());
    }

    #[test]
    fn a_long_word_is_cut_alike_on_both_sides() {
        let long = "ü".repeat(200);
        let words = find::words(&long);
        let cut = format!("'{}{}'", mark("global"), "ü".repeat(127));
        assert_eq!(query_of_values("global", &words), cut);
        let vector = of_value("global", "k", &format!("{long:?}")).unwrap();
        assert!(vector.contains(&cut) && are_cut(&words) && !are_cut(&find::words("a")));
    }
}
