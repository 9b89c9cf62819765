//! Editions of the language that blueprints are written in.
//!
//! A blueprint says its edition as a number in its table: `edition = 2`. One that says nothing is of
//! edition 1. The edition decides how the file itself is evaluated, so it is read from the tokens of
//! the entry before that; `check` then compares it with what the table holds. A stored version keeps
//! its source, and so its edition, for ever.

use super::{
    diagnostics::Position,
    locate::Outline,
    tokens::{Kind, tokens},
};

/// An edition of the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Edition {
    /// The first.
    #[default]
    One,
    /// Tables are gone through in the order of their keys, the bodies of agent files are literal
    /// text, a missing input is `{}`, `ctx.input` cannot be changed, and durations have one form.
    Two,
}

impl Edition {
    /// The latest.
    pub const LATEST: Self = Self::Two;

    /// Its number.
    pub fn number(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }

    /// The edition with a number.
    pub fn of_number(number: u32) -> Option<Self> {
        [Self::One, Self::Two].into_iter().find(|it| it.number() == number)
    }

    /// The edition that a blueprint's main file is written in.
    pub fn of(file: &str, source: &str) -> Self {
        if !source.contains("edition") {
            return Self::One;
        }
        let number = if file.ends_with(".json") { in_json(source) } else { in_lua(source) };
        number.and_then(Self::of_number).unwrap_or_default()
    }
}

fn in_json(source: &str) -> Option<u32> {
    let document: serde_json::Value = serde_json::from_str(source).ok()?;
    u32::try_from(document.get("edition")?.as_u64()?).ok()
}

/// The number that is written out behind `edition =` in the table of `swarm.blueprint`.
fn in_lua(source: &str) -> Option<u32> {
    let at: Position = Outline::of(source).spot("/edition")?.value;
    let tokens = tokens(source);
    let index = tokens.iter().position(|token| token.at == at)?;
    let ends = tokens
        .get(index + 1)
        .is_some_and(|next| [",", ";", "}"].iter().any(|symbol| next.is_symbol(symbol)));
    match tokens[index].kind {
        Kind::Number(digits) if ends => digits.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(table: &str) -> Edition {
        Edition::of("t.lua", &format!("return require('swarm').blueprint {{ {table} }}"))
    }

    #[test]
    fn the_edition_is_the_number_in_the_blueprints_table() {
        assert_eq!(of("name = 't'"), Edition::One);
        assert_eq!(of("name = 't', edition = 1"), Edition::One);
        assert_eq!(of("edition = 2, name = 't'"), Edition::Two);
        assert_eq!(of("['edition'] = 2"), Edition::Two);
    }

    #[test]
    fn what_is_not_written_out_is_edition_1() {
        for table in [
            "limits = { edition = 2 }",
            "edition = 1 + 1",
            "edition = two",
            "edition = '2'",
            "edition = 3",
            "-- edition = 2",
            "description = 'edition = 2'",
        ] {
            assert_eq!(of(table), Edition::One, "{table}");
        }
    }

    #[test]
    fn a_document_says_its_edition_too() {
        assert_eq!(Edition::of("t.json", r#"{"name":"t","edition":2}"#), Edition::Two);
        assert_eq!(Edition::of("t.json", r#"{"limits":{"edition":2}}"#), Edition::One);
        assert_eq!(Edition::of("t.json", r#"{"edition":"#), Edition::One);
    }
}
