//! Lua, written from foreign values. Every string of a foreign document goes through [`quote`].

use std::fmt::Write as _;

use serde_json::Value;

/// Numbers up to here are exact in Lua.
const EXACT: u64 = 1 << 53;
/// Up to here a table stays on one line.
const LINE: usize = 84;
const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Quotes a string as a Lua literal on one line. Control characters, and characters that are
/// invisible or change the direction of text, are written as escapes.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_hidden(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns true if a character is invisible, or changes the display of its neighbors.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// Quotes a string for a report or a comment, shortened to one readable line.
pub(crate) fn shown(text: &str) -> String {
    let short: String = text.chars().take(100).collect();
    let mut quoted = quote(&short);
    if short.len() < text.len() {
        quoted.insert(quoted.len() - 1, '…');
    }
    quoted
}

/// Writes the key of a table: `name`, or `["any other text"]`.
pub(crate) fn key(name: &str) -> String {
    match is_identifier(name) {
        true => name.to_owned(),
        false => format!("[{}]", quote(name)),
    }
}

fn is_identifier(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !KEYWORDS.contains(&name)
}

/// A literal, and what its text needs.
#[derive(Debug, Default)]
pub(crate) struct Literal {
    /// The text.
    pub text: String,
    /// True if it uses the local `null`.
    pub null: bool,
    /// The integers that Lua cannot hold, which became strings.
    pub inexact: Vec<String>,
}

/// Writes a JSON value as a literal that is indented for a line at `depth`.
pub(crate) fn literal(value: &Value, depth: usize) -> Literal {
    let mut out = Literal::default();
    write(value, depth, &mut out);
    out
}

fn write(value: &Value, depth: usize, out: &mut Literal) {
    match value {
        Value::Null => {
            out.null = true;
            out.text.push_str("null");
        }
        Value::Bool(truth) => out.text.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => {
            let exact = number.is_f64()
                || number.as_i64().is_some_and(|it| it.unsigned_abs() <= EXACT)
                || number.as_u64().is_some_and(|it| it <= EXACT);
            if exact {
                out.text.push_str(&number.to_string());
            } else {
                out.inexact.push(number.to_string());
                out.text.push_str(&quote(&number.to_string()));
            }
        }
        Value::String(text) => out.text.push_str(&quote(text)),
        Value::Array(items) if items.is_empty() => out.text.push_str("swarm.array {}"),
        Value::Object(map) if map.is_empty() => out.text.push_str("{}"),
        Value::Array(items) => {
            table(items.iter().map(|item| (None, item)), depth, out);
        }
        Value::Object(map) => {
            table(map.iter().map(|(name, item)| (Some(name.as_str()), item)), depth, out);
        }
    }
}

fn table<'v>(
    entries: impl Iterator<Item = (Option<&'v str>, &'v Value)>,
    depth: usize,
    out: &mut Literal,
) {
    let mut parts = Vec::new();
    for (name, item) in entries {
        let mut inner = Literal::default();
        write(item, depth + 1, &mut inner);
        out.null |= inner.null;
        out.inexact.append(&mut inner.inexact);
        parts.push(match name {
            Some(name) => format!("{} = {}", key(name), inner.text),
            None => inner.text,
        });
    }
    out.text.push_str(&braces(&parts, depth));
}

/// Writes a table on one line if it fits, and otherwise with one entry a line.
pub(crate) fn braces(entries: &[String], depth: usize) -> String {
    let width: usize = entries.iter().map(|it| it.len() + 2).sum();
    if width + depth * 2 <= LINE && !entries.iter().any(|it| it.contains('\n')) {
        return format!("{{ {} }}", entries.join(", "));
    }
    let indent = "  ".repeat(depth + 1);
    let lines: Vec<_> = entries.iter().map(|it| format!("{indent}{it},\n")).collect();
    format!("{{\n{}{}}}", lines.concat(), "  ".repeat(depth))
}

/// Writes a list of strings.
pub(crate) fn strings(list: &[String], depth: usize) -> String {
    let quoted: Vec<_> = list.iter().map(|it| quote(it)).collect();
    match quoted.is_empty() {
        true => "{}".to_owned(),
        false => braces(&quoted, depth),
    }
}

/// Lines of Lua, with their indentation.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: String,
    /// The indentation of the next line.
    pub depth: usize,
}

impl Lines {
    /// Lines that begin at a depth.
    pub(crate) fn at(depth: usize) -> Self {
        Self { text: String::new(), depth }
    }

    /// Adds a line of code.
    pub(crate) fn line(&mut self, code: impl AsRef<str>) {
        if !code.as_ref().is_empty() {
            self.text.push_str(&"  ".repeat(self.depth));
            self.text.push_str(code.as_ref());
        }
        self.text.push('\n');
    }

    /// Adds a comment. Line breaks cannot end it, and no bracket can begin a long one.
    pub(crate) fn comment(&mut self, text: &str) {
        let one: String = text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect();
        self.line(format!("-- {one}"));
    }

    /// Adds a line after which the indentation is deeper.
    pub(crate) fn open(&mut self, code: impl AsRef<str>) {
        self.line(code);
        self.depth += 1;
    }

    /// Adds a line before which the indentation ends.
    pub(crate) fn close(&mut self, code: impl AsRef<str>) {
        self.depth = self.depth.saturating_sub(1);
        self.line(code);
    }

    /// Returns the length of the text.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// The text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_string_is_one_literal_on_one_line_whatever_is_in_it() {
        for (text, quoted) in [
            ("plain", r#""plain""#),
            ("a\"] os.execute('x') --[[", r#""a\"] os.execute('x') --[[""#),
            ("\\\"", r#""\\\"""#),
            ("a\nb\r\0\u{85}", r#""a\nb\r\u{0}\u{85}""#),
            ("\u{202e}drow\u{2066}\u{200b}", r#""\u{202e}drow\u{2066}\u{200b}""#),
            ("Grüße, 世界", "\"Grüße, 世界\""),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn a_comment_is_one_line_and_never_a_long_one() {
        let mut lines = Lines::default();
        lines.comment("[[\nos.exit()\r]]\u{2028}");
        assert_eq!(lines.into_text(), "-- [[ os.exit() ]] \n");
    }

    #[test]
    fn a_key_is_a_name_or_a_quoted_text() {
        for (name, written) in [
            ("a_1", "a_1"),
            ("end", r#"["end"]"#),
            ("1", r#"["1"]"#),
            ("a] = f(", r#"["a] = f("]"#),
        ] {
            assert_eq!(key(name), written);
        }
    }

    #[test]
    fn a_value_keeps_its_type() {
        let value = json!({"a": [], "b": {}, "c": [null, 1.5, -2], "d": 9_007_199_254_740_993_u64});
        let out = literal(&value, 0);
        assert_eq!(
            out.text,
            r#"{ a = swarm.array {}, b = {}, c = { null, 1.5, -2 }, d = "9007199254740993" }"#
        );
        assert!(out.null);
        assert_eq!(out.inexact, ["9007199254740993"]);
    }
}
