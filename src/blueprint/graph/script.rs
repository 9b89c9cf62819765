//! The graph of a flow that is a function: its `ctx` calls, and what stands around them.
//!
//! A local function is drawn where its name is called or passed, not where it is defined.

use std::collections::{HashMap, HashSet};

use super::{GraphPart, PartPlace, Shape};
use crate::blueprint::{
    diagnostics::Position,
    tokens::{Kind, Token, is_statement, tokens},
};

/// Parts that are drawn at most.
const MOST: usize = 2_000;
/// Tokens that are read at most: functions are read again wherever they are used.
const MOST_TOKENS: usize = 200_000;
/// Functions within functions that are followed at most.
const MOST_DEEP: usize = 16;
/// Characters of an argument that is no literal.
const ARGUMENT: usize = 40;

/// Something in the source that is not closed yet.
struct Frame {
    closes: Closes,
    shape: Shape,
    label: String,
    line: u32,
    /// The finished cases, and the parts of the one that is being read.
    cases: Vec<(String, Vec<GraphPart>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Closes {
    End,
    Until,
    /// The bracket that a call's arguments began with, and others within it.
    Bracket(&'static str, usize),
}

impl Frame {
    fn new(closes: Closes, shape: Shape, label: impl Into<String>, line: u32) -> Self {
        let cases = vec![(String::new(), Vec::new())];
        Self { closes, shape, label: label.into(), line, cases }
    }

    fn push(&mut self, part: GraphPart) {
        if let Some((_, parts)) = self.cases.last_mut() {
            parts.push(part);
        }
    }
}

/// The parts of the function that begins at `start`, or of the whole source.
pub(super) fn parts(source: &str, start: Option<Position>) -> Vec<(String, GraphPart)> {
    let tokens = tokens(source);
    let functions = functions(&tokens);
    let from = start.and_then(|at| tokens.iter().position(|token| token.at == at));
    let body = from.and_then(|from| match &tokens[from].kind {
        Kind::Name("function") => Some((from, end(&tokens, from))),
        Kind::Name(name) => functions.get(name).copied(),
        _ => None,
    });
    let (from, to) = body.map_or((0, tokens.len()), |(from, to)| (from + 1, to));
    let mut reader = GraphReader {
        tokens: &tokens,
        functions,
        frames: vec![Frame::new(Closes::End, Shape::Seq, "", 1)],
        inside: Vec::new(),
        made: 0,
        read: 0,
    };
    reader.range(from, to);
    while reader.frames.len() > 1 {
        reader.pop();
    }
    let frame = reader.frames.pop().expect("the first frame is never popped");
    let parts = frame.cases.into_iter().flat_map(|(_, parts)| parts);
    parts.map(|part| (String::new(), part)).collect()
}

/// The functions that have a name and are used by it: where each begins, and where its `end` is.
fn functions<'s>(tokens: &[Token<'s>]) -> HashMap<&'s str, (usize, usize)> {
    let mut found = HashMap::new();
    let mut twice = HashSet::new();
    for (index, token) in tokens.iter().enumerate() {
        if !token.is_name("function") {
            continue;
        }
        let at = |index: Option<usize>| index.and_then(|index| tokens.get(index));
        let name = match (at(Some(index + 1)), at(index.checked_sub(1)), index.checked_sub(2)) {
            // `function one(`
            (Some(name), ..) if at(Some(index + 2)).is_some_and(|it| it.is_symbol("(")) => {
                Some((name, index + 1))
            }
            // `one = function`
            (_, Some(equals), Some(at)) if equals.is_symbol("=") => Some((&tokens[at], at)),
            _ => None,
        };
        let Some((Token { kind: Kind::Name(name), .. }, at)) = name else { continue };
        let is_field = at > 0 && (tokens[at - 1].is_symbol(".") || tokens[at - 1].is_symbol(":"));
        if is_field {
            continue;
        }
        if found.insert(*name, (index, end(tokens, index))).is_some() {
            twice.insert(*name);
        }
    }
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for (index, token) in tokens.iter().enumerate() {
        if let Kind::Name(name) = &token.kind
            && is_use(tokens, index)
        {
            *uses.entry(name).or_default() += 1;
        }
    }
    // Two functions of one name cannot be told apart here: each is drawn where it stands.
    found.retain(|name, _| uses.contains_key(name) && !twice.contains(name));
    found
}

/// Returns true if the name at `index` is a variable that is called or passed, and no field, key or
/// definition.
fn is_use(tokens: &[Token<'_>], index: usize) -> bool {
    let before = index.checked_sub(1).and_then(|index| tokens.get(index));
    let defines = |token: &Token<'_>| {
        [".", ":"].iter().any(|it| token.is_symbol(it))
            || ["function", "local"].iter().any(|it| token.is_name(it))
    };
    !before.is_some_and(defines) && !tokens.get(index + 1).is_some_and(|it| it.is_symbol("="))
}

/// The `end` of the function that begins at `from`, or the end of the source.
fn end(tokens: &[Token<'_>], from: usize) -> usize {
    let mut open = 0_usize;
    let mut heads = 0_usize;
    for index in from..tokens.len() {
        match &tokens[index].kind {
            Kind::Name("function" | "repeat") => open += 1,
            // The `do` of a loop belongs to it.
            Kind::Name("for" | "while") => {
                open += 1;
                heads += 1;
            }
            Kind::Name("do") if heads > 0 => heads -= 1,
            Kind::Name("do") => open += 1,
            Kind::Name("if") if is_statement(tokens, index) => open += 1,
            Kind::Name("end" | "until") => {
                open = open.saturating_sub(1);
                if open == 0 {
                    return index;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

struct GraphReader<'t, 's> {
    tokens: &'t [Token<'s>],
    functions: HashMap<&'s str, (usize, usize)>,
    frames: Vec<Frame>,
    /// The functions that are being followed.
    inside: Vec<&'s str>,
    made: usize,
    read: usize,
}

impl<'s> GraphReader<'_, 's> {
    fn range(&mut self, from: usize, to: usize) {
        let mut index = from;
        while index < to && self.read < MOST_TOKENS {
            self.read += 1;
            index = self.token(index);
        }
    }

    /// Reads the token at `index`, and returns the next one to read.
    fn token(&mut self, index: usize) -> usize {
        let tokens = self.tokens;
        let mut next = index + 1;
        match &tokens[index].kind {
            Kind::Name("function") => match self.defined(index) {
                Some(end) => next = end + 1,
                None => self.open(Closes::End, Shape::Seq, "", index),
            },
            Kind::Name("for" | "while") => {
                let label = self.words(index, "do");
                self.open(Closes::End, Shape::Loop, label, index);
                // The `do` belongs to it.
                let head = tokens[index..].iter().take_while(|token| !token.is_name("do"));
                next = index + head.count() + 1;
            }
            Kind::Name("do") => self.open(Closes::End, Shape::Seq, "", index),
            Kind::Name("repeat") => self.open(Closes::Until, Shape::Loop, "repeat", index),
            Kind::Name("if") if is_statement(tokens, index) => {
                let label = self.words(index, "then");
                self.open(Closes::End, Shape::Choice, label, index);
                self.case("then");
            }
            Kind::Name(word @ ("elseif" | "else")) if self.in_choice() => self.case(word),
            Kind::Name("end") => self.close(Closes::End),
            Kind::Name("until") => self.close(Closes::Until),
            Kind::Name("ctx") => self.call(index),
            Kind::Name(name) if self.functions.contains_key(name) && is_use(tokens, index) => {
                next = self.follow(name, index);
            }
            Kind::Symbol(bracket @ ("(" | "{" | ")" | "}")) => self.bracket(bracket),
            _ => {}
        }
        next
    }

    /// The end of the function that begins at `index`, if it is drawn where it is used.
    fn defined(&self, index: usize) -> Option<usize> {
        let mut found = self.functions.values();
        found.find_map(|(from, to)| (*from == index).then_some(*to))
    }

    /// Draws a local function where it is called or passed. The arguments of a call come before it.
    fn follow(&mut self, name: &'s str, index: usize) -> usize {
        let mut next = index + 1;
        if self.tokens.get(next).is_some_and(|token| token.is_symbol("(")) {
            let mut depth = 0_usize;
            let closes = self.tokens[next..].iter().position(|token| {
                depth += usize::from(token.is_symbol("("));
                depth -= usize::from(token.is_symbol(")"));
                depth == 0
            });
            let after = closes.map_or(self.tokens.len(), |closes| next + closes + 1);
            self.range(next, after);
            next = after;
        }
        let Some(&(from, to)) = self.functions.get(name) else { return next };
        if self.inside.contains(&name) || self.inside.len() >= MOST_DEEP {
            if let Some(frame) = self.frames.last_mut()
                && self.made < MOST
            {
                self.made += 1;
                let line = self.tokens[index].at.line;
                frame.push(GraphPart::leaf(format!("{name} again")).at(PartPlace::Line(line)));
            }
            return next;
        }
        self.inside.push(name);
        self.range(from + 1, to);
        self.inside.pop();
        next
    }

    fn open(&mut self, closes: Closes, shape: Shape, label: impl Into<String>, index: usize) {
        let line = self.tokens.get(index).map_or(1, |token| token.at.line);
        self.frames.push(Frame::new(closes, shape, label, line));
    }

    fn case(&mut self, word: &str) {
        if let Some(frame) = self.frames.last_mut() {
            frame.cases.push((word.to_owned(), Vec::new()));
        }
    }

    fn in_choice(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.shape == Shape::Choice)
    }

    /// A block, or a call, is over: it becomes a part of what is around it.
    fn pop(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        let empty = frame.cases.iter().all(|(_, parts)| parts.is_empty());
        let is_call = matches!(frame.closes, Closes::Bracket(..));
        let Some(around) = self.frames.last_mut() else { return };
        if empty {
            if is_call && self.made < MOST {
                self.made += 1;
                around.push(GraphPart::leaf(frame.label).at(PartPlace::Line(frame.line)));
            }
            return;
        }
        if frame.shape == Shape::Seq && frame.label.is_empty() {
            for part in frame.cases.into_iter().flat_map(|(_, parts)| parts) {
                around.push(part);
            }
            return;
        }
        let mut parts = Vec::new();
        for (word, mut inside) in frame.cases {
            match (frame.shape, inside.len()) {
                (_, 0) => {}
                (Shape::Choice, 2..) => {
                    let inside = inside.into_iter().map(|part| (String::new(), part)).collect();
                    parts.push((word, GraphPart::new(Shape::Seq, "seq", inside)));
                }
                (Shape::Choice, _) => parts.extend(inside.pop().map(|part| (word, part))),
                _ => parts.extend(inside.into_iter().map(|part| (String::new(), part))),
            }
        }
        let part = GraphPart::new(frame.shape, frame.label, parts);
        around.push(part.at(PartPlace::Line(frame.line)));
    }

    fn close(&mut self, closes: Closes) {
        if self.frames.len() > 1 && self.frames.last().is_some_and(|frame| frame.closes == closes) {
            self.pop();
        }
    }

    fn bracket(&mut self, bracket: &str) {
        let Some(Frame { closes: Closes::Bracket(open, depth), .. }) = self.frames.last_mut()
        else {
            return;
        };
        let end = if *open == "(" { ")" } else { "}" };
        if bracket == *open {
            *depth += 1;
        } else if bracket == end {
            *depth -= 1;
            if *depth == 0 {
                self.pop();
            }
        }
    }

    /// A call of `ctx` begins at `index`.
    fn call(&mut self, index: usize) {
        let at = |offset: usize| self.tokens.get(index + offset);
        let Some(Kind::Name(method)) = at(2).map(|token| &token.kind) else { return };
        if !at(1).is_some_and(|token| token.is_symbol(":")) {
            return;
        }
        let argument = match at(3) {
            Some(token) if token.is_symbol("(") => at(4).and_then(Token::text),
            other => other.and_then(Token::text),
        };
        let label = match (*method, argument) {
            ("run" | "try", Some(agent)) => format!("run {agent}"),
            ("run" | "try", None) => format!("run {}", self.argument(index + 4)),
            ("map", _) => "map".to_owned(),
            ("defer", _) => "defer, if the flow fails".to_owned(),
            (method, Some(argument)) => format!("{} {argument}", method.replace('_', " ")),
            (method, None) => method.replace('_', " "),
        };
        let shape = match *method {
            "all" | "race" | "spawn" => Shape::Fork,
            "map" => Shape::Loop,
            "defer" => Shape::Aside,
            "run" | "try" | "wait" | "sleep" | "sleep_until" | "call" | "approve" | "signal"
            | "continue_as" | "timeout" | "artifact" | "read_artifact" => Shape::Seq,
            // What only speaks or asks for the time is nothing to draw.
            _ => return,
        };
        match at(3).map(|token| &token.kind) {
            Some(Kind::Symbol("(")) => self.open(Closes::Bracket("(", 0), shape, label, index),
            Some(Kind::Symbol("{")) => self.open(Closes::Bracket("{", 0), shape, label, index),
            _ => {
                let line = self.tokens[index].at.line;
                if let Some(frame) = self.frames.last_mut() {
                    frame.push(GraphPart::leaf(label).at(PartPlace::Line(line)));
                }
            }
        }
    }

    /// The first argument of a call, where it is no literal: `<step.agent>`.
    fn argument(&self, index: usize) -> String {
        let mut open = 0_usize;
        let mut out = String::new();
        for token in &self.tokens[index.min(self.tokens.len())..] {
            match &token.kind {
                Kind::Symbol("," | ")") if open == 0 => break,
                Kind::Symbol("(" | "{" | "[") => open += 1,
                Kind::Symbol(")" | "}" | "]") => open -= 1,
                _ => {}
            }
            match &token.kind {
                Kind::Name(word @ ("and" | "or" | "not" | "if" | "then" | "else")) => {
                    out.push_str(&format!(" {word} "));
                }
                Kind::Name(text) | Kind::Symbol(text) | Kind::Number(text) => out.push_str(text),
                Kind::Text { raw, .. } => out.push_str(&format!("{raw:?}")),
                Kind::Interpolation { .. } => out.push('`'),
            }
            if out.chars().count() > ARGUMENT {
                return format!("<{}…>", out.chars().take(ARGUMENT).collect::<String>());
            }
        }
        match out.trim() {
            "" => "…".to_owned(),
            argument => format!("<{argument}>"),
        }
    }

    /// The words from `index` up to `end`, as a label.
    fn words(&self, index: usize, end: &str) -> String {
        let mut out = String::new();
        for token in self.tokens[index..].iter().take(24).take_while(|token| !token.is_name(end)) {
            let text = match &token.kind {
                Kind::Name(name) => (*name).to_owned(),
                Kind::Symbol(symbol) => (*symbol).to_owned(),
                Kind::Text { raw, .. } => format!("{raw:?}"),
                Kind::Number(digits) => (*digits).to_owned(),
                Kind::Interpolation { .. } => String::new(),
            };
            let tight = matches!(text.as_str(), "." | ":" | "," | ")" | "(")
                || out.ends_with(['.', ':', '(', '#']);
            if !out.is_empty() && !tight {
                out.push(' ');
            }
            out.push_str(&text);
        }
        out
    }
}
