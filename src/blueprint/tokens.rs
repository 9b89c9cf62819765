//! Luau's tokens, with their places: as much as finding things in a source needs.
//!
//! Any text is read in linear time without recursion, so a hostile upload costs nothing.
//! Reading never fails: whether the source is valid is for the Luau compiler to say.

use std::collections::BTreeSet;

use super::diagnostics::Position;

/// The kind of a token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind<'s> {
    /// A name or a keyword.
    Name(&'s str),
    /// A string; `raw` is what stands between its delimiters.
    Text { raw: &'s str, form: TextForm },
    /// A number, up to a point in it.
    Number(&'s str),
    /// An operator or a bracket, one character except for `==`, `~=`, `<=`, `>=`, `::`, `..`, `...`
    /// and `->`.
    Symbol(&'s str),
    /// A piece of an interpolated string, between expressions or its ends.
    Interpolation {
        /// True if an expression ends before it.
        closes: bool,
        /// True if an expression begins after it.
        opens: bool,
    },
}

/// The notation of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextForm {
    /// Between quotes, with escapes.
    Quoted,
    /// Between long brackets.
    Long,
}

/// A token and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token<'s> {
    pub kind: Kind<'s>,
    pub at: Position,
    /// For a string: where its first character stands (for a long one after the newline that
    /// does not count).
    pub content_at: Position,
}

impl Token<'_> {
    pub fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.kind, Kind::Symbol(found) if found == symbol)
    }

    pub fn is_name(&self, name: &str) -> bool {
        matches!(self.kind, Kind::Name(found) if found == name)
    }

    /// The value of a string token without interpolation.
    pub fn text(&self) -> Option<String> {
        match self.kind {
            Kind::Text { raw, form: TextForm::Long } => Some(
                raw.strip_prefix("\r\n")
                    .or_else(|| raw.strip_prefix('\n'))
                    .unwrap_or(raw)
                    .to_owned(),
            ),
            Kind::Text { raw, form: TextForm::Quoted } => Some(unescape(raw)),
            _ => None,
        }
    }
}

/// Resolves the escapes that stand for one character; others stay as they are written.
fn unescape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n' | '\n') => out.push('\n'),
            Some('\r') => {
                chars.next_if_eq(&'\n');
                out.push('\n');
            }
            Some('z') => while chars.next_if(|c| is_blank(*c)).is_some() {},
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(c @ ('\\' | '"' | '\'' | '`')) => out.push(c),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// Reads all tokens of a source.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    Lexer { source, offset: 0, at: Position::START, braces: Vec::new(), out: Vec::new() }.run()
}

/// Returns true if the `if` at `index` begins a statement: an expression has no `end`.
pub(super) fn is_statement(tokens: &[Token<'_>], index: usize) -> bool {
    match index.checked_sub(1).and_then(|before| tokens.get(before)).map(|token| &token.kind) {
        None => true,
        Some(Kind::Name(word)) => {
            !matches!(*word, "return" | "and" | "or" | "not" | "in" | "if" | "elseif" | "while")
        }
        Some(Kind::Symbol(symbol)) => matches!(*symbol, ")" | "]" | "}" | ";"),
        Some(Kind::Interpolation { opens, .. }) => !opens,
        Some(Kind::Text { .. } | Kind::Number(_)) => true,
    }
}

/// Returns the lines of a source on which no statement can begin: those inside of a bracket that has
/// no function before them.
pub fn lines_without_statements(source: &str) -> BTreeSet<u32> {
    // For each open bracket: whether there is a function in it.
    let mut brackets: Vec<bool> = Vec::new();
    let (mut lines, mut others) = (BTreeSet::new(), BTreeSet::new());
    for token in tokens(source) {
        let set = match brackets.last() {
            Some(false) if !token.is_name("function") => &mut lines,
            _ => &mut others,
        };
        set.insert(token.at.line);
        match token.kind {
            Kind::Symbol("(" | "{" | "[") => brackets.push(false),
            Kind::Symbol(")" | "}" | "]") => drop(brackets.pop()),
            Kind::Name("function") => brackets.last_mut().into_iter().for_each(|it| *it = true),
            _ => {}
        }
    }
    lines.difference(&others).copied().collect()
}

struct Lexer<'s> {
    source: &'s str,
    offset: usize,
    at: Position,
    /// Open braces; true where the brace belongs to an interpolated string.
    braces: Vec<bool>,
    out: Vec<Token<'s>>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.offset..]
    }

    fn advance(&mut self, bytes: usize) -> &'s str {
        let taken = &self.rest()[..bytes];
        for c in taken.chars() {
            if c == '\n' {
                self.at = Position { line: self.at.line.saturating_add(1), column: 1 };
            } else {
                self.at.column = self.at.column.saturating_add(1);
            }
        }
        self.offset += bytes;
        taken
    }

    fn push(&mut self, kind: Kind<'s>, at: Position) {
        self.out.push(Token { kind, at, content_at: at });
    }

    fn run(mut self) -> Vec<Token<'s>> {
        if self.rest().starts_with("#!") {
            self.skip_line();
        }
        while let Some(first) = self.rest().chars().next() {
            let at = self.at;
            match first {
                c if c.is_whitespace() => {
                    self.advance(c.len_utf8());
                }
                '-' if self.rest().starts_with("--") => self.comment(),
                '"' | '\'' => self.quoted(first, at),
                '`' => {
                    self.advance(1);
                    self.interpolated(false, at);
                }
                '[' if long_bracket(self.rest()).is_some() => {
                    let (raw, content_at) = self.long();
                    let kind = Kind::Text { raw, form: TextForm::Long };
                    self.out.push(Token { kind, at, content_at });
                }
                c if c.is_ascii_digit() => {
                    let end = self.rest().find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                    let digits = self.advance(end.unwrap_or(self.rest().len()));
                    self.push(Kind::Number(digits), at);
                }
                c if c.is_alphabetic() || c == '_' => {
                    let end = self.rest().find(|c: char| !(c.is_alphanumeric() || c == '_'));
                    let name = self.advance(end.unwrap_or(self.rest().len()));
                    self.push(Kind::Name(name), at);
                }
                _ => self.symbol(first, at),
            }
        }
        self.out
    }

    fn skip_line(&mut self) {
        let end = self.rest().find('\n').unwrap_or(self.rest().len());
        self.advance(end);
    }

    fn comment(&mut self) {
        self.advance(2);
        if long_bracket(self.rest()).is_some() {
            self.long();
        } else {
            self.skip_line();
        }
    }

    fn long(&mut self) -> (&'s str, Position) {
        let level = long_bracket(self.rest()).unwrap_or(0);
        self.advance(level + 2);
        let mut content_at = self.at;
        if self.rest().starts_with('\n') || self.rest().starts_with("\r\n") {
            content_at = Position { line: self.at.line.saturating_add(1), column: 1 };
        }
        let close = format!("]{}]", "=".repeat(level));
        let end = self.rest().find(&close);
        let raw = self.advance(end.unwrap_or(self.rest().len()));
        if end.is_some() {
            self.advance(close.len());
        }
        (raw, content_at)
    }

    fn quoted(&mut self, quote: char, at: Position) {
        self.advance(1);
        let content_at = self.at;
        let end = unescaped(self.rest(), &[quote, '\n']);
        let raw = self.advance(end);
        if self.rest().starts_with(quote) {
            self.advance(1);
        }
        let kind = Kind::Text { raw, form: TextForm::Quoted };
        self.out.push(Token { kind, at, content_at });
    }

    /// Reads a piece of an interpolated string, up to `{` or the closing backtick.
    fn interpolated(&mut self, closes: bool, at: Position) {
        let end = unescaped(self.rest(), &['`', '{']);
        self.advance(end);
        let opens = self.rest().starts_with('{');
        if opens {
            self.braces.push(true);
        }
        if !self.rest().is_empty() {
            self.advance(1);
        }
        self.push(Kind::Interpolation { closes, opens }, at);
    }

    fn symbol(&mut self, first: char, at: Position) {
        const LONG: [&str; 8] = ["...", "..", "==", "~=", "<=", ">=", "::", "->"];
        let long = LONG.into_iter().find(|symbol| self.rest().starts_with(symbol));
        let symbol = self.advance(long.map_or(first.len_utf8(), str::len));
        match symbol {
            "{" => self.braces.push(false),
            "}" if self.braces.pop() == Some(true) => {
                self.interpolated(true, at);
                return;
            }
            _ => {}
        }
        self.push(Kind::Symbol(symbol), at);
    }
}

/// The number of `=` if `text` begins with a long bracket.
fn long_bracket(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('[')?;
    let level = inner.len() - inner.trim_start_matches('=').len();
    inner[level..].starts_with('[').then_some(level)
}

/// Returns the offset of the first of `ends` that belongs to no escape, or the end of the text.
fn unescaped(text: &str, ends: &[char]) -> usize {
    let mut offset = 0;
    while let Some(c) = text[offset..].chars().next() {
        if ends.contains(&c) {
            break;
        }
        offset += if c == '\\' { escape(&text[offset..]) } else { c.len_utf8() };
    }
    offset
}

/// Returns the length of the escape that a text begins with. `\z` takes the blanks and line breaks
/// that follow it; a line break is one character, also as CR LF; the brace of `\u{…}` opens
/// nothing.
fn escape(text: &str) -> usize {
    let escaped = &text[1..];
    match escaped.chars().next() {
        Some('z') => text.len() - escaped[1..].trim_start_matches(is_blank).len(),
        Some('\r') if escaped.starts_with("\r\n") => 3,
        Some('u') if escaped.starts_with("u{") => 3,
        Some(c) => 1 + c.len_utf8(),
        None => 1,
    }
}

/// Returns true for what Luau takes for a blank.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(source: &str) -> Vec<String> {
        tokens(source).iter().filter_map(Token::text).collect()
    }

    #[test]
    fn strings_of_every_form_are_read() {
        assert_eq!(
            texts(
                r#"a = "x\"y" .. 'z' .. [[
long]] .. [==[a]]b]==]"#
            ),
            ["x\"y", "z", "long", "a]]b"]
        );
    }

    #[test]
    fn an_escape_takes_all_that_belongs_to_it() {
        assert_eq!(texts("a = 'x\\z \n \t y' .. \"z\""), ["xy", "z"]);
        assert_eq!(texts("a = 'x\\\r\ny' .. 'z\\\ny'"), ["x\ny", "z\ny"]);
        assert_eq!(texts("a = `\\u{e9} {'b'} \\{` .. 'c\\u{e9}'"), ["b", "c\\u{e9}"]);
        assert!(!tokens("a = `\\u{e9}`").iter().any(|token| token.is_name("e9")));
    }

    #[test]
    fn comments_hold_no_tokens() {
        assert!(tokens("-- require('x')\n--[[ 'y'\n ]] --[==[ z ]==]").is_empty());
        assert!(tokens("#!/usr/bin/env moonswarm").is_empty());
    }

    #[test]
    fn expressions_in_interpolated_strings_are_tokens() {
        assert_eq!(texts("x = `a {f('in', {1})} b \\{ {'c'}` .. 'out'"), ["in", "c", "out"]);
    }

    #[test]
    fn places_are_lines_and_characters() {
        let found = tokens("ä = 1\n  b = [[\nx]]");
        let b = found.iter().find(|token| token.is_name("b")).unwrap();
        assert_eq!(b.at, Position { line: 2, column: 3 });
        assert_eq!(found.last().unwrap().content_at, Position { line: 3, column: 1 });
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[-\\[\\]={}`'\"\\\\a-z0-9\n.:ä ]{0,200}") {
            tokens(&text);
        }
    }

    #[test]
    fn a_statement_can_begin_outside_of_brackets_and_in_functions() {
        let source = "local t = {\n  a = n.seq {\n    1,\n  },\n  b = function()\n    go()\n  end,\n}\nreturn t";
        assert_eq!(Vec::from_iter(lines_without_statements(source)), [2, 3, 4]);
    }
}
