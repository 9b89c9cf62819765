//! The places of the entries of a JSON document.

use std::collections::HashMap;

use super::{Form, MAX_DEPTH, MAX_SPOTS, Spot, pointer};
use crate::blueprint::diagnostics::Position;

/// Records every entry of a document that is JSON; of another as far as it can be read.
pub(super) fn spots(source: &str, into: &mut HashMap<String, Spot>) {
    let mut reader = JsonReader { rest: source, at: Position::START, into };
    reader.space();
    // What cannot be read is reported by whoever evaluates it.
    let _ = reader.value("", 0);
}

/// The strings of a document, each with the place of its first quote, as far as it can be read.
pub(super) fn strings(source: &str) -> Vec<(Position, String)> {
    let mut reader = JsonReader { rest: source, at: Position::START, into: &mut HashMap::new() };
    let mut found = Vec::new();
    while let Some(c) = reader.peek() {
        if c != '"' {
            reader.next();
            continue;
        }
        let (at, from) = (reader.at, reader.rest);
        if reader.string().is_none() {
            break;
        }
        let written = &from[..from.len() - reader.rest.len()];
        let text = serde_json::from_str(written);
        found.push((at, text.unwrap_or_else(|_| written.to_owned())));
    }
    found
}

struct JsonReader<'s, 'm> {
    rest: &'s str,
    at: Position,
    into: &'m mut HashMap<String, Spot>,
}

impl JsonReader<'_, '_> {
    fn next(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.at = Position { line: self.at.line.saturating_add(1), column: 1 };
        } else {
            self.at.column = self.at.column.saturating_add(1);
        }
        Some(c)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.next();
        }
    }

    /// The text between quotes, as it is written.
    fn string(&mut self) -> Option<String> {
        (self.next()? == '"').then_some(())?;
        let mut text = String::new();
        loop {
            match self.next()? {
                '"' => return Some(text),
                '\\' => {
                    text.push('\\');
                    text.push(self.next()?);
                }
                c => text.push(c),
            }
        }
    }

    /// Reads one value and what stands in it, at most as deep as a blueprint is.
    fn value(&mut self, path: &str, depth: usize) -> Option<()> {
        match self.peek()? {
            '{' | '[' if depth > MAX_DEPTH => None,
            '{' => self.entries(path, depth, '}'),
            '[' => self.entries(path, depth, ']'),
            '"' => self.string().map(drop),
            _ => {
                while self
                    .peek()
                    .is_some_and(|c| !matches!(c, ',' | '}' | ']') && !c.is_whitespace())
                {
                    self.next();
                }
                Some(())
            }
        }
    }

    fn entries(&mut self, path: &str, depth: usize, end: char) -> Option<()> {
        self.next();
        for index in 0_usize.. {
            self.space();
            if self.peek()? == end {
                self.next();
                return Some(());
            }
            let key = self.at;
            let name = if end == '}' {
                let name = self.string()?;
                self.space();
                (self.next()? == ':').then_some(())?;
                self.space();
                name
            } else {
                index.to_string()
            };
            let below = pointer(path, &name);
            let value = self.at;
            // Escapes shift the columns behind them: only a string without any is exact.
            let form = match self.rest.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
                Some((text, _)) if !text.contains('\\') => {
                    Form::Literal(Position { column: value.column.saturating_add(1), ..value })
                }
                _ => Form::Other,
            };
            if self.into.len() < MAX_SPOTS {
                self.into.insert(below.clone(), Spot { key, value, form });
            }
            self.value(&below, depth + 1)?;
            self.space();
            if self.peek()? == ',' {
                self.next();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_where_they_stand() {
        let source = "{\n  \"a\": [1, {\"b/c\": \"x\"}],\n  \"d\": true\n}";
        let mut found = HashMap::new();
        spots(source, &mut found);
        let at = |path: &str| {
            let spot = &found[path];
            (spot.key.line, spot.key.column, spot.value.column)
        };
        assert_eq!(at("/a"), (2, 3, 8));
        assert_eq!(at("/a/1"), (2, 12, 12));
        assert_eq!(at("/a/1/b~1c"), (2, 13, 20));
        assert_eq!(at("/d"), (3, 3, 8));
    }

    #[test]
    fn strings_are_read_with_their_escapes_also_behind_lists_in_lists() {
        let source = r#"[[1], {"é": "it's \"x\" \u00e4\n"}]"#;
        let found: Vec<_> = strings(source).into_iter().map(|(at, it)| (at.column, it)).collect();
        assert_eq!(found, [(8, "é".to_owned()), (13, "it's \"x\" ä\n".to_owned())]);
    }

    #[test]
    fn what_is_not_json_is_read_as_far_as_it_goes() {
        for source in ["", "{", "{\"a\"", "{\"a\": [", "nope", "\"a\\", &"[".repeat(10_000)] {
            spots(source, &mut HashMap::new());
            strings(source);
        }
    }
}
