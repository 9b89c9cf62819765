//! Writes a call into each `for … in` of a source, so that the library decides the order.
//!
//! `for k, v in t do` becomes `for k, v in each(t) do`. Luau has no other place for that: its own
//! loop over a table asks nobody. Only tokens are looked at, in one pass; lines stay where they are,
//! and a source that is not valid is left for the compiler to refuse.

use super::tokens::{Kind, Token, is_statement, tokens};

/// The name of the function that is called. No source may use it.
pub const EACH: &str = "__moonswarm_each";

/// The enclosure of a token.
enum Frame {
    /// A bracket, or an expression in a text.
    Bracket,
    /// Between `for` and its `in` or `do`.
    Head,
    /// Between `in` and `do`: where the values begin, and the first of their tokens.
    Values { from: usize, first: usize },
    /// A function's body among the values, and the blocks that are open in it.
    Body(usize),
}

/// The source with the calls, or `None` if it has no such loop.
///
/// # Errors
/// Fails when the source uses the name of the function itself.
pub fn order_loops(source: &str) -> Result<Option<String>, String> {
    let tokens = tokens(source);
    if let Some(token) = tokens.iter().find(|token| token.is_name(EACH)) {
        return Err(format!("{}: the name `{EACH}` is the host's own", token.at.line));
    }
    let loops = Scan { source, tokens: &tokens, keep_ipairs: keeps_ipairs(&tokens) }.loops();
    if loops.is_empty() {
        return Ok(None);
    }
    let mut places: Vec<(usize, String)> = Vec::with_capacity(loops.len() * 2);
    for (from, to) in loops {
        places.push((from, format!(" {EACH}(")));
        places.push((to, ") ".to_owned()));
    }
    places.sort_by_key(|(at, _)| *at);
    let mut out = String::with_capacity(source.len() + places.len() * 12);
    let mut done = 0;
    for (at, text) in places {
        out.push_str(&source[done..at]);
        out.push_str(&text);
        done = at;
    }
    out.push_str(&source[done..]);
    Ok(Some(out))
}

/// Returns true if `ipairs` always is the library's: wherever the name stands, it is called.
fn keeps_ipairs(tokens: &[Token<'_>]) -> bool {
    tokens.iter().enumerate().filter(|(_, token)| token.is_name("ipairs")).all(|(index, _)| {
        let called = tokens.get(index + 1).is_some_and(|next| next.is_symbol("("));
        let before = index.checked_sub(1).map(|before| &tokens[before]);
        called && before.is_none_or(|it| !it.is_name("function"))
    })
}

struct Scan<'t, 's> {
    source: &'s str,
    tokens: &'t [Token<'s>],
    keep_ipairs: bool,
}

impl Scan<'_, '_> {
    /// The start and end of the values of each loop, as byte offsets.
    fn loops(&self) -> Vec<(usize, usize)> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut found = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            match &token.kind {
                Kind::Symbol("(" | "{" | "[") => frames.push(Frame::Bracket),
                Kind::Symbol(")" | "}" | "]") => {
                    if matches!(frames.last(), Some(Frame::Bracket)) {
                        frames.pop();
                    }
                }
                Kind::Interpolation { closes, opens } => {
                    if *closes && matches!(frames.last(), Some(Frame::Bracket)) {
                        frames.pop();
                    }
                    if *opens {
                        frames.push(Frame::Bracket);
                    }
                }
                Kind::Name("for") => frames.push(Frame::Head),
                Kind::Name(word @ "in") => {
                    if let Some(head @ Frame::Head) = frames.last_mut() {
                        let from = self.offset(word) + word.len();
                        *head = Frame::Values { from, first: index + 1 };
                    }
                }
                Kind::Name(word @ "do") => {
                    if let Some(Frame::Head | Frame::Values { .. }) = frames.last()
                        && let Some(Frame::Values { from, first }) = frames.pop()
                        && !self.is_ipairs(first, index)
                    {
                        found.push((from, self.offset(word)));
                    }
                    self.open(&mut frames);
                }
                Kind::Name("function") => match frames.last_mut() {
                    Some(Frame::Values { .. }) => frames.push(Frame::Body(1)),
                    _ => self.open(&mut frames),
                },
                Kind::Name("repeat") => self.open(&mut frames),
                Kind::Name("if") if is_statement(self.tokens, index) => self.open(&mut frames),
                Kind::Name("end" | "until") => {
                    if let Some(Frame::Body(depth)) = frames.last_mut() {
                        *depth -= 1;
                        if *depth == 0 {
                            frames.pop();
                        }
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn open(&self, frames: &mut [Frame]) {
        if let Some(Frame::Body(depth)) = frames.last_mut() {
            *depth += 1;
        }
    }

    /// Returns true if the values from one token to another are one call of `ipairs`, which is in
    /// order.
    fn is_ipairs(&self, first: usize, end: usize) -> bool {
        let values = &self.tokens[first..end];
        if !self.keep_ipairs || !values.first().is_some_and(|token| token.is_name("ipairs")) {
            return false;
        }
        let mut depth = 0_usize;
        for (index, token) in values.iter().enumerate().skip(1) {
            match token.kind {
                Kind::Symbol("(" | "{" | "[") => depth += 1,
                Kind::Symbol(")" | "}" | "]") => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return token.is_symbol(")") && index + 1 == values.len();
            }
        }
        false
    }

    /// Returns the offset of a word that was cut out of the source.
    fn offset(&self, word: &str) -> usize {
        word.as_ptr() as usize - self.source.as_ptr() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(source: &str) -> String {
        let text = order_loops(source).unwrap().unwrap_or_else(|| source.to_owned());
        text.replace(EACH, "E")
    }

    #[test]
    fn loops_over_values_get_the_call_and_others_stay() {
        for (source, expected) in [
            ("for k, v in t do end", "for k, v in E( t ) do end"),
            ("for k in(t)do end", "for k in E((t)) do end"),
            ("for i = 1, 2 do end", "for i = 1, 2 do end"),
            ("for i, v in ipairs(t) do end", "for i, v in ipairs(t) do end"),
            ("for k: string, v in pairs(t) do end", "for k: string, v in E( pairs(t) ) do end"),
            ("for k in next, t do end", "for k in E( next, t ) do end"),
            ("for k in f()\n-- do\ndo end", "for k in E( f()\n-- do\n) do end"),
            ("while a do for k in t do end end", "while a do for k in E( t ) do end end"),
            ("s = 'a\\z\n for k in t do '", "s = 'a\\z\n for k in t do '"),
            ("s = 'a\\\r\n for k in t do '", "s = 'a\\\r\n for k in t do '"),
        ] {
            assert_eq!(ordered(source), expected, "{source}");
        }
    }

    #[test]
    fn what_looks_like_ipairs_is_not_trusted() {
        for source in [
            "for k in ipairs(t).x do end",
            "for k in ipairs(t), 1 do end",
            "local ipairs = f for k in ipairs(t) do end",
            "local function ipairs(t) return t end for k in ipairs(t) do end",
        ] {
            assert!(ordered(source).contains("E( ipairs(t)"), "{source}");
        }
    }

    #[test]
    fn loops_within_the_values_of_a_loop_are_found() {
        assert_eq!(
            ordered("for k in f(function() for x in y do g() end return t end) do end"),
            "for k in E( f(function() for x in E( y ) do g() end return t end) ) do end"
        );
        assert_eq!(
            ordered(
                "for k in function() if a then while b do c() end end repeat d() until e end do end"
            ),
            "for k in E( function() if a then while b do c() end end repeat d() until e end ) do end"
        );
    }

    #[test]
    fn lines_stay_and_what_is_broken_is_left() {
        let source = "for k in t\ndo\nend\nfor x in {\n1 } do end";
        assert_eq!(ordered(source).lines().count(), source.lines().count());
        for broken in
            ["for k in t", "for for in in do do", "for k in ) do", "for k in function end"]
        {
            let _ = ordered(broken);
        }
        assert!(order_loops("local __moonswarm_each = 1").is_err());
    }
}
