//! The places of things in a Luau source: the entries of the blueprint's table, the files that it
//! refers to, and the agents that its flow runs.
//!
//! Only tokens and brackets are considered. On a valid source that is exact for tables that are
//! written out; what is built elsewhere (a local, a module) is located where it is used.

use std::collections::{HashMap, HashSet};

mod json;

use super::{
    diagnostics::Position,
    template,
    tokens::{Kind, TextForm, Token, tokens},
};

/// Entries that are recorded at most, and how deep: more than any blueprint that is written by hand.
const MAX_SPOTS: usize = 20_000;
const MAX_DEPTH: usize = 24;

const MAX_CLOSED: usize = 32;

/// The module of the library.
const LIBRARY: &str = "swarm";

/// The notation of the value of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Form {
    /// As a string whose first character stands at the place.
    Literal(Position),
    /// As `swarm.template("…")`.
    Template(String),
    /// In another way.
    Other,
}

/// An entry of the blueprint's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub key: Position,
    pub value: Position,
    pub form: Form,
}

/// The references of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// `require("./…")`, relative to the file.
    Module,
    /// `swarm.agent_md("…")`, relative to the bundle.
    AgentFile,
    /// `swarm.template("…")` or an include in a template, relative to the bundle.
    Template,
    /// An include that a template renders without.
    OptionalTemplate,
    /// An include that is seen only when the escapes of the string are resolved.
    EscapedTemplate,
}

/// A file that a source refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub target: Target,
    pub name: String,
    pub at: Position,
}

/// An agent that is run by its literal name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentUse {
    pub agent: String,
    pub at: Position,
}

/// The findings of one source.
#[derive(Debug, Default)]
pub(super) struct Outline {
    /// The place of the call of `swarm.blueprint`.
    pub blueprint: Option<Position>,
    /// The files that it refers to, in their order.
    pub references: Vec<Reference>,
    /// The agents that it runs, in their order.
    pub uses: Vec<AgentUse>,
    spots: HashMap<String, Spot>,
}

impl Outline {
    /// Reads a source.
    pub fn of(source: &str) -> Self {
        let tokens = tokens(source);
        let library = library_names(&tokens);
        let mut scan = Scan { tokens: &tokens, library, frames: Vec::new(), out: Self::default() };
        scan.run();
        scan.out
    }

    /// Reads a JSON document, whose entries are the blueprint's. A document that is only a flow has
    /// its entries below `/flow` as well.
    pub fn of_json(source: &str) -> Self {
        let mut out = Self { blueprint: Some(Position::START), ..Self::default() };
        json::spots(source, &mut out.spots);
        if out.spots.contains_key("/kind") && !out.spots.contains_key("/flow") {
            let below: Vec<_> =
                out.spots.iter().map(|(at, spot)| (format!("/flow{at}"), spot.clone())).collect();
            out.spots.extend(below);
        }
        out
    }

    /// The entry at a JSON pointer into the blueprint's table.
    pub fn spot(&self, pointer: &str) -> Option<&Spot> {
        self.spots.get(pointer)
    }

    /// Returns the place of an entry's key, or of the nearest thing around it that is written out.
    pub fn key(&self, pointer: &str) -> Position {
        self.nearest(pointer).map_or_else(|| self.start(), |(spot, _)| spot.key)
    }

    /// Returns the place of an entry's value, or of the nearest thing around it that is written
    /// out.
    pub fn value(&self, pointer: &str) -> Position {
        match self.nearest(pointer) {
            Some((spot, true)) => spot.value,
            Some((spot, false)) => spot.key,
            None => self.start(),
        }
    }

    /// Returns the start of the blueprint.
    pub fn start(&self) -> Position {
        self.blueprint.unwrap_or(Position::START)
    }

    fn nearest(&self, pointer: &str) -> Option<(&Spot, bool)> {
        let mut prefix = pointer;
        loop {
            if let Some(spot) = self.spots.get(prefix) {
                return Some((spot, prefix.len() == pointer.len()));
            }
            prefix = prefix.rsplit_once('/')?.0;
        }
    }
}

/// The strings of a JSON document, each with the place of its first quote.
pub(super) fn json_strings(source: &str) -> Vec<(Position, String)> {
    json::strings(source)
}

/// A JSON pointer with one more segment.
pub(super) fn pointer(parent: &str, segment: &str) -> String {
    format!("{parent}/{}", segment.replace('~', "~0").replace('/', "~1"))
}

/// The enclosure of a token.
enum Frame {
    /// A table constructor; `path` is its pointer if it belongs to the blueprint.
    Table { path: Option<String>, entries: usize, current: Option<String>, fresh: bool },
    /// Parentheses; tables in them stand for the value that the parentheses belong to.
    Paren { path: Option<String> },
    /// Square brackets or an interpolation.
    Other,
    /// Statements, up to an `end` or `until`.
    Block,
    /// An `if` that is an expression, which has no `end`; up to its `else`.
    IfExpression,
}

/// The names that a source gives to the library: `local name = require("swarm")`.
fn library_names<'s>(tokens: &[Token<'s>]) -> HashSet<&'s str> {
    let named = tokens.windows(5).filter_map(|it| {
        let Kind::Name(name) = it[0].kind else { return None };
        let module = if it[3].is_symbol("(") { &it[4] } else { &it[3] };
        let is_it = it[1].is_symbol("=") && it[2].is_name("require") && is_library(module);
        is_it.then_some(name)
    });
    named.chain([LIBRARY]).collect()
}

fn is_library(token: &Token<'_>) -> bool {
    token.text().is_some_and(|text| text == LIBRARY)
}

struct Scan<'t, 's> {
    tokens: &'t [Token<'s>],
    library: HashSet<&'s str>,
    frames: Vec<Frame>,
    out: Outline,
}

impl Scan<'_, '_> {
    fn run(&mut self) {
        let mut next_is_root = false;
        let mut branch_is_expression = false;
        let mut index = 0;
        while index < self.tokens.len() {
            index = self.entry(index);
            let Some(token) = self.tokens.get(index) else {
                break;
            };
            match &token.kind {
                Kind::Symbol("{") => {
                    let path = self.child_path(next_is_root);
                    self.frames.push(Frame::Table { path, entries: 0, current: None, fresh: true });
                    next_is_root = false;
                }
                Kind::Symbol("(") => {
                    let path = self.child_path(next_is_root);
                    self.frames.push(Frame::Paren { path });
                    next_is_root = false;
                }
                Kind::Symbol("[") => self.frames.push(Frame::Other),
                Kind::Interpolation { closes, opens } => {
                    if *closes {
                        self.close(|frame| matches!(frame, Frame::Other));
                    }
                    if *opens {
                        self.frames.push(Frame::Other);
                    }
                }
                Kind::Symbol("}") => self.close(|frame| matches!(frame, Frame::Table { .. })),
                Kind::Symbol(")") => self.close(|frame| matches!(frame, Frame::Paren { .. })),
                Kind::Symbol("]") => self.close(|frame| matches!(frame, Frame::Other)),
                Kind::Symbol("," | ";") => {
                    if let Some(Frame::Table { fresh, .. }) = self.frames.last_mut() {
                        *fresh = true;
                    }
                }
                Kind::Name("function" | "do" | "repeat") => self.frames.push(Frame::Block),
                Kind::Name("if") => {
                    let expression = self.is_expression(index, branch_is_expression);
                    self.frames.push(if expression { Frame::IfExpression } else { Frame::Block });
                }
                Kind::Name("then") => {
                    branch_is_expression = matches!(self.frames.last(), Some(Frame::IfExpression));
                }
                Kind::Name("else") => {
                    branch_is_expression = matches!(self.frames.last(), Some(Frame::IfExpression));
                    if branch_is_expression {
                        self.frames.pop();
                    }
                }
                Kind::Name("end" | "until") => {
                    if matches!(self.frames.last(), Some(Frame::Block)) {
                        self.frames.pop();
                    }
                }
                Kind::Name(_) => {
                    if self.out.blueprint.is_none() && self.calls_blueprint(index) {
                        self.out.blueprint = self.tokens.get(index.wrapping_sub(2)).map(|t| t.at);
                        next_is_root = true;
                    } else {
                        self.call(index);
                    }
                }
                Kind::Text { .. } => self.includes(token),
                _ => {}
            }
            index += 1;
        }
    }

    /// At the beginning of an entry of the blueprint's table: records it and skips its key.
    fn entry(&mut self, index: usize) -> usize {
        let Some(Frame::Table { path, entries, current, fresh }) = self.frames.last_mut() else {
            return index;
        };
        if !*fresh || self.tokens[index].is_symbol("}") {
            return index;
        }
        *fresh = false;
        let at = |offset: usize| self.tokens.get(index + offset);
        let symbol = |offset: usize, s: &str| at(offset).is_some_and(|token| token.is_symbol(s));
        let (segment, value) = match &self.tokens[index].kind {
            Kind::Name(name) if symbol(1, "=") => (Some((*name).to_owned()), index + 2),
            Kind::Symbol("[") if symbol(2, "]") && symbol(3, "=") => {
                (at(1).and_then(Token::text), index + 4)
            }
            Kind::Symbol("[") => (None, index),
            _ => {
                let position = *entries;
                *entries += 1;
                (Some(position.to_string()), index)
            }
        };
        *current = path.as_ref().zip(segment).map(|(path, segment)| pointer(path, &segment));
        let full = self.out.spots.len() >= MAX_SPOTS;
        if let (Some(current), Some(found), false) = (current.clone(), self.tokens.get(value), full)
        {
            let form = self.form(value);
            let spot = Spot { key: self.tokens[index].at, value: found.at, form };
            self.out.spots.entry(current).or_insert(spot);
        }
        value
    }

    fn form(&self, value: usize) -> Form {
        let token = &self.tokens[value];
        let ends = |index: usize| {
            self.tokens
                .get(index)
                .is_none_or(|next| [",", ";", "}"].iter().any(|s| next.is_symbol(s)))
        };
        match &token.kind {
            Kind::Text { raw, form } if ends(value + 1) => match form {
                TextForm::Quoted if raw.contains('\\') => Form::Other,
                TextForm::Quoted | TextForm::Long => Form::Literal(token.content_at),
            },
            Kind::Name(_) => match self.call_of(value + 2) {
                Some((Target::Template, argument)) => Form::Template(argument.0),
                _ => Form::Other,
            },
            _ => Form::Other,
        }
    }

    /// The pointer of a table or of parentheses that open here.
    fn child_path(&self, root: bool) -> Option<String> {
        if root {
            return Some(String::new());
        }
        let path = match self.frames.last()? {
            Frame::Table { current, .. } => current.clone(),
            Frame::Paren { path } => path.clone(),
            Frame::Other | Frame::Block | Frame::IfExpression => None,
        }?;
        (path.matches('/').count() < MAX_DEPTH).then_some(path)
    }

    /// Closes the nearest frame of a kind, and what is open within it. In a valid source that is
    /// the last one or nearly so; the bound keeps hostile ones linear.
    fn close(&mut self, kind: impl Fn(&Frame) -> bool) {
        let position = self.frames.iter().rev().take(MAX_CLOSED).position(kind);
        if let Some(from_the_end) = position {
            self.frames.truncate(self.frames.len() - 1 - from_the_end);
        }
    }

    /// Returns true if the `if` at `index` stands where an expression does.
    fn is_expression(&self, index: usize, branch_is_expression: bool) -> bool {
        let Some(before) = index.checked_sub(1).map(|index| &self.tokens[index]) else {
            return false;
        };
        match &before.kind {
            Kind::Name("then" | "else") => branch_is_expression,
            Kind::Name(
                "return" | "and" | "or" | "not" | "in" | "while" | "until" | "if" | "elseif",
            ) => true,
            Kind::Name(_) | Kind::Text { .. } | Kind::Number(_) => false,
            Kind::Interpolation { opens, .. } => *opens,
            Kind::Symbol(";") => matches!(self.frames.last(), Some(Frame::Table { .. })),
            Kind::Symbol(")" | "]" | "}") => false,
            Kind::Symbol(_) => true,
        }
    }

    fn calls_blueprint(&self, index: usize) -> bool {
        let before = |back: usize| index.checked_sub(back).map(|index| &self.tokens[index]);
        self.tokens[index].is_name("blueprint")
            && before(1).is_some_and(|token| token.is_symbol("."))
            && before(2)
                .is_some_and(|token| matches!(token.kind, Kind::Name(_)) || token.is_symbol(")"))
            && self.tokens.get(index + 1).is_some_and(|t| t.is_symbol("{") || t.is_symbol("("))
    }

    /// Records the call whose function's name stands at `index`.
    fn call(&mut self, index: usize) {
        if let Some((target, (name, at))) = self.call_of(index) {
            self.out.references.push(Reference { target, name, at });
        } else if (self.tokens[index].is_name("run") || self.tokens[index].is_name("try"))
            && index >= 2
            && self.tokens[index - 1].is_symbol(":")
            && self.tokens[index - 2].is_name("ctx")
            && let Some((agent, at)) = self.literal_argument(index + 1)
        {
            self.out.uses.push(AgentUse { agent, at });
        }
    }

    /// Returns the reference of the call whose function name is at `index`.
    fn call_of(&self, index: usize) -> Option<(Target, (String, Position))> {
        let before = index.checked_sub(1).and_then(|before| self.tokens.get(before));
        let field = before.is_some_and(|before| before.is_symbol("."));
        let target = match &self.tokens.get(index)?.kind {
            Kind::Name("require") if !field => Target::Module,
            Kind::Name("agent_md") if field => Target::AgentFile,
            Kind::Name("template") if field && self.is_of_library(index) => Target::Template,
            // What another module has by this name may be anything.
            Kind::Name("template") if field => Target::OptionalTemplate,
            _ => return None,
        };
        let argument = self.literal_argument(index + 1)?;
        let local = target != Target::Module || argument.0.starts_with('.');
        local.then_some((target, argument))
    }

    /// Returns true if the field at `index` is one of the library.
    fn is_of_library(&self, index: usize) -> bool {
        let before = |back: usize| index.checked_sub(back).map(|index| &self.tokens[index]);
        match before(2).map(|token| &token.kind) {
            Some(Kind::Name(name)) => self.library.contains(name),
            Some(Kind::Symbol(")")) => before(3).is_some_and(is_library),
            _ => false,
        }
    }

    /// The first argument of a call whose arguments begin at `index`, if it is a plain string.
    fn literal_argument(&self, index: usize) -> Option<(String, Position)> {
        let token = self.tokens.get(index)?;
        if !token.is_symbol("(") {
            return Some((token.text()?, token.at));
        }
        let token = self.tokens.get(index + 1)?;
        let after = self.tokens.get(index + 2)?;
        let whole = after.is_symbol(")") || after.is_symbol(",");
        whole.then_some((token.text()?, token.at))
    }

    /// Records the includes in a string that may be a template.
    fn includes(&mut self, token: &Token<'_>) {
        let Kind::Text { raw, .. } = token.kind else { return };
        let Some(text) = token.text() else { return };
        let plain = if raw.contains('\\') { Some(template::includes(raw)) } else { None };
        for include in template::includes(&text) {
            let is_plain =
                plain.as_ref().is_none_or(|it| it.iter().any(|it| it.name == include.name));
            let target = match is_plain {
                _ if include.may_miss => Target::OptionalTemplate,
                true => Target::Template,
                false => Target::EscapedTemplate,
            };
            self.out.references.push(Reference { target, name: include.name, at: token.at });
        }
    }
}
