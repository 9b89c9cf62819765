//! `stop`: the texts that end an answer, which the client does not get.
//!
//! A model whose API knows the word stops by itself; the answer is cut here all the same, so that it
//! ends there whoever answers.

use serde_json::Value;

use crate::respond::{Refused, open_responses::Fields};

/// The most texts of one request.
const MOST: usize = 4;
/// The longest of them, in bytes.
const LONGEST: usize = 1_024;

/// The texts that end an answer, and how much of it was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stops {
    texts: Vec<String>,
    /// The end of what was seen, which may be the beginning of one of them.
    held: String,
    /// The one that was met.
    met: Option<String>,
}

impl Stops {
    /// Reads the parameter `stop` of a body: a text, or up to four.
    ///
    /// # Errors
    /// Fails when it is something else.
    pub fn read(body: &Value) -> Result<Self, Refused> {
        Self::of(body, "stop", MOST)
    }

    /// Reads a parameter of a body: a text, or up to `most`.
    ///
    /// # Errors
    /// Fails when it is something else.
    pub fn of(body: &Value, name: &str, most: usize) -> Result<Self, Refused> {
        let Value::Object(map) = body else { return Ok(Self::default()) };
        let fields = Fields::at(map, "");
        let wrong = || {
            let what =
                format!("must be a text or a list of at most {most}, of 1 to {LONGEST} bytes");
            fields.wrong(name, &what)
        };
        let texts: Vec<String> = match fields.get(name) {
            None => Vec::new(),
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(list)) if list.len() <= most => list
                .iter()
                .map(|it| it.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(wrong()),
        };
        if texts.iter().any(|text| text.is_empty() || text.len() > LONGEST) {
            return Err(wrong());
        }
        Ok(Self { texts, ..Self::default() })
    }

    /// The parameter as models are asked with it, if there is any.
    pub fn option(&self) -> Option<Value> {
        (!self.texts.is_empty()).then(|| self.texts.clone().into())
    }

    /// Returns true if one of them was met.
    pub(super) fn is_over(&self) -> bool {
        self.met.is_some()
    }

    /// Returns the one that was met.
    pub fn met(&self) -> Option<&str> {
        self.met.as_deref()
    }

    /// Takes a piece, and returns the text to send on: all but what may be the beginning of a stop
    /// text.
    pub(in crate::respond) fn feed(&mut self, piece: &str) -> String {
        if self.is_over() || self.texts.is_empty() {
            return if self.is_over() { String::new() } else { piece.to_owned() };
        }
        self.held.push_str(piece);
        let found = self.texts.iter().filter_map(|text| Some((self.held.find(text)?, text)));
        if let Some((at, text)) = found.min_by_key(|(at, _)| *at) {
            self.met = Some(text.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: &usize| {
            let rest = &self.held[*at..];
            self.texts.iter().any(|text| text.starts_with(rest))
        };
        let places = self.held.char_indices().map(|(at, _)| at);
        let keep = places.into_iter().find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the text that is left once everything was said.
    pub(in crate::respond) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cut(stop: Value, pieces: &[&str]) -> (String, bool) {
        let mut stops = Stops::read(&json!({ "stop": stop })).unwrap();
        let mut text: String = pieces.iter().map(|piece| stops.feed(piece)).collect();
        text.push_str(&stops.rest());
        (text, stops.is_over())
    }

    #[test]
    fn an_answer_ends_before_the_first_of_them_also_where_it_comes_in_pieces() {
        assert_eq!(cut(json!("END"), &["one E", "N", "D two"]), ("one ".to_owned(), true));
        assert_eq!(cut(json!(["x", "two"]), &["one two x"]), ("one ".to_owned(), true));
        assert_eq!(cut(json!("END"), &["one EN", "Ough"]), ("one ENOugh".to_owned(), false));
        assert_eq!(cut(json!("é!"), &["cafés é", "é", "!"]), ("cafés é".to_owned(), true));
        assert_eq!(cut(json!("aab"), &["aa", "ab"]), ("a".to_owned(), true));
        assert_eq!(cut(json!(null), &["all ", "of it"]), ("all of it".to_owned(), false));
    }

    #[test]
    fn what_is_no_stop_is_refused_by_its_name() {
        for wrong in [json!(7), json!([""]), json!(["a", 1]), json!(["a", "b", "c", "d", "e"])] {
            let refused = Stops::read(&json!({ "stop": wrong })).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some("stop"));
        }
    }
}
