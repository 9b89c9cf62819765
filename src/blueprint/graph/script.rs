//! The graph of a flow that is a function: its `ctx` calls, and what stands around them.

use super::{GraphPart, Shape};
use crate::blueprint::{
    diagnostics::Position,
    tokens::{Kind, Token, tokens},
};

/// Parts that are drawn at most.
const MOST: usize = 2_000;

/// Something in the source that is not closed yet.
struct Frame {
    closes: Closes,
    shape: Shape,
    label: String,
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
    fn new(closes: Closes, shape: Shape, label: impl Into<String>) -> Self {
        let cases = vec![(String::new(), Vec::new())];
        Self { closes, shape, label: label.into(), cases }
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
    let from = start.and_then(|at| tokens.iter().position(|token| token.at == at));
    let from = from.filter(|index| tokens[*index].is_name("function"));
    let mut reader = Reader { tokens: &tokens, frames: Vec::new(), made: 0 };
    reader.read(from.unwrap_or(0), from.is_some())
}

struct Reader<'t, 's> {
    tokens: &'t [Token<'s>],
    frames: Vec<Frame>,
    made: usize,
}

impl Reader<'_, '_> {
    fn read(&mut self, from: usize, one: bool) -> Vec<(String, GraphPart)> {
        self.frames.push(Frame::new(Closes::End, Shape::Seq, ""));
        let mut index = from + usize::from(one);
        while let Some(token) = self.tokens.get(index) {
            match &token.kind {
                Kind::Name("function") => self.open(Closes::End, Shape::Seq, ""),
                Kind::Name("for" | "while") => {
                    let label = self.words(index, "do");
                    self.open(Closes::End, Shape::Loop, label);
                    // The `do` belongs to it.
                    while self.tokens.get(index).is_some_and(|token| !token.is_name("do")) {
                        index += 1;
                    }
                }
                Kind::Name("do") => self.open(Closes::End, Shape::Seq, ""),
                Kind::Name("repeat") => self.open(Closes::Until, Shape::Loop, "repeat"),
                Kind::Name("if") if self.is_statement(index) => {
                    let label = self.words(index, "then");
                    self.open(Closes::End, Shape::Choice, label);
                    self.case("then");
                }
                Kind::Name(word @ ("elseif" | "else")) if self.in_choice() => self.case(word),
                Kind::Name("end") => {
                    if self.frames.len() == 1 && one {
                        break;
                    }
                    self.close(Closes::End);
                }
                Kind::Name("until") => self.close(Closes::Until),
                Kind::Name("ctx") => self.call(index),
                Kind::Symbol(bracket @ ("(" | "{" | ")" | "}")) => self.bracket(bracket),
                _ => {}
            }
            index += 1;
        }
        while self.frames.len() > 1 {
            self.pop();
        }
        let frame = self.frames.pop().expect("the first frame is never popped");
        let parts = frame.cases.into_iter().flat_map(|(_, parts)| parts);
        parts.map(|part| (String::new(), part)).collect()
    }

    fn open(&mut self, closes: Closes, shape: Shape, label: impl Into<String>) {
        self.frames.push(Frame::new(closes, shape, label));
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
                around.push(GraphPart::leaf(frame.label));
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
        around.push(GraphPart::new(frame.shape, frame.label, parts));
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
            ("run" | "try", argument) => format!("run {}", argument.as_deref().unwrap_or("…")),
            ("map", _) => "map".to_owned(),
            (method, Some(argument)) => format!("{} {argument}", method.replace('_', " ")),
            (method, None) => method.replace('_', " "),
        };
        let shape = match *method {
            "all" | "race" | "spawn" => Shape::Fork,
            "map" => Shape::Loop,
            "run" | "try" | "wait" | "sleep" | "sleep_until" | "call" | "approve" | "signal"
            | "continue_as" | "defer" | "timeout" | "artifact" | "read_artifact" => Shape::Seq,
            // What only speaks or asks for the time is nothing to draw.
            _ => return,
        };
        match at(3).map(|token| &token.kind) {
            Some(Kind::Symbol("(")) => self.open(Closes::Bracket("(", 0), shape, label),
            Some(Kind::Symbol("{")) => self.open(Closes::Bracket("{", 0), shape, label),
            _ => {
                if let Some(frame) = self.frames.last_mut() {
                    frame.push(GraphPart::leaf(label));
                }
            }
        }
    }

    /// Returns true if the `if` at `index` begins a statement: an expression has no `end`.
    fn is_statement(&self, index: usize) -> bool {
        let Some(before) = index.checked_sub(1).and_then(|index| self.tokens.get(index)) else {
            return true;
        };
        match &before.kind {
            Kind::Name(word) => {
                !matches!(*word, "return" | "and" | "or" | "not" | "in" | "if" | "elseif" | "while")
            }
            Kind::Symbol(symbol) => matches!(*symbol, ")" | "]" | "}" | ";"),
            Kind::Interpolation { opens, .. } => !opens,
            Kind::Text { .. } | Kind::Number(_) => true,
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
