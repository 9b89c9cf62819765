//! Candidate values for the answer of a language model.

use serde_json::Value;

use super::Json;

/// The number of code fences of a text that are looked at.
const FENCES: usize = 100;

/// Returns the values that an output may stand for, the likeliest first: the output itself; then,
/// for a text, the JSON that it holds, bare or within one of its first 100 Markdown fences. A
/// caller with a schema takes the first value that satisfies it.
pub fn fold(output: &Json) -> Vec<Json> {
    let mut candidates = vec![output.clone()];
    if !output.as_str().trim_start().starts_with('"') {
        return candidates;
    }
    let Ok(text) = output.decode::<String>() else { return candidates };
    for inner in std::iter::once(text.trim()).chain(fences(&text).take(FENCES)) {
        // A document is kept as it was written, so that no number loses a digit. One that is nested
        // too deeply to parse remains a text.
        if serde_json::from_str::<Value>(inner).is_ok() {
            let json = Json::from_trusted(inner);
            if !candidates.contains(&json) {
                candidates.push(json);
            }
        }
    }
    candidates
}

/// Returns the contents of the code fences of a Markdown text, in order.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, opened) = rest.split_once("```")?;
        // The word after the fence is the language.
        let (_, body) = opened.split_once('\n')?;
        let (inside, after) = body.split_once("```")?;
        rest = after;
        Some(inside.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(output: &str) -> Vec<String> {
        let output = Json::from(Value::from(output));
        fold(&output)[1..].iter().map(|json| json.as_str().to_owned()).collect()
    }

    #[test]
    fn what_is_no_text_stands_for_itself_alone() {
        for text in ["1", "null", "[\"1\"]", r#"{"a":"{}"}"#] {
            assert_eq!(fold(&Json::parse(text).unwrap()), [Json::parse(text).unwrap()]);
        }
    }

    #[test]
    fn a_text_of_json_may_stand_for_that_json() {
        assert_eq!(folded(r#" {"a": 1.50} "#), [r#"{"a": 1.50}"#]);
        assert_eq!(folded("plain words"), Vec::<String>::new());
    }

    #[test]
    fn json_in_a_fence_is_found_with_or_without_words_around_it() {
        assert_eq!(folded("```json\n{\"ok\":true}\n```"), [r#"{"ok":true}"#]);
        assert_eq!(folded("Here:\n```\n[1]\n```\nand\n```js\n[2]\n```\nthanks"), ["[1]", "[2]"]);
        assert_eq!(folded("```json\n{\"ok\":"), Vec::<String>::new());
    }

    #[test]
    fn of_very_many_fences_the_first_are_looked_at() {
        let text: String = (0..1_000).map(|n| format!("```\n{n}\n```\n")).collect();
        let first: Vec<String> = (0..FENCES).map(|n| n.to_string()).collect();
        assert_eq!(folded(&text), first);
    }

    #[test]
    fn the_text_itself_is_the_first_candidate() {
        let output = Json::parse(r#""7""#).unwrap();
        assert_eq!(fold(&output), [output, Json::parse("7").unwrap()]);
    }

    #[test]
    fn nesting_without_end_stays_a_text() {
        assert_eq!(folded(&"[".repeat(100_000)), Vec::<String>::new());
    }
}
