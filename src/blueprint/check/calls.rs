//! Names and calls that cannot work: globals that nothing sets, modules that are not there, arguments
//! that `ctx` does not take, and results that are lost.
//!
//! Only what is written out is judged, against the table of the library, and only in sources that
//! [`names`] reads to their end.

use std::collections::BTreeSet;

use super::{checker::Checker, files::is_lua};
use crate::blueprint::{
    allowances::Allowances,
    bundle::Bundle,
    diagnostics::{Finding, Position, code, did_you_mean, hint_for},
    duration::{old_form, parse_duration},
    edition::Edition,
    library::{self, GLOBALS, TYPES, fields_of},
    locate::Outline,
    names::{Call, Global, Names, Returns, Shape, Value, names},
    tokens::{Kind, Token, tokens},
};

/// Findings in one file.
const MOST: usize = 200;
/// Locals of a file, and globals, that a misspelt name is compared with.
const CANDIDATES: usize = 500;
/// The depth to which tables of options are checked.
const DEEPEST: usize = 4;
/// The modules that are not files.
const MODULES: [&str; 2] = ["swarm", "swarm.test"];
/// Words for what a blueprint has no use for; using one has a finding of its own.
const ABSENT: [&str; 6] = ["os", "io", "debug", "collectgarbage", "loadstring", "dofile"];

/// A problem at a token.
struct Wrong {
    at: usize,
    message: String,
    hint: Option<String>,
}

/// A source with its tokens and names.
struct Source<'s> {
    path: &'s str,
    allowances: Allowances<'s>,
    tokens: Vec<Token<'s>>,
}

impl Checker<'_> {
    /// Looks at every Lua file.
    pub(super) fn calls(&mut self) {
        let bundle = self.bundle;
        let sources: Vec<_> = sources(bundle).collect();
        let read: Vec<_> = sources.iter().map(|source| names(&source.tokens)).collect();
        let mut set: BTreeSet<&str> = GLOBALS.iter().chain(&ABSENT).copied().collect();
        set.extend(read.iter().flatten().flat_map(|names| names.assigned.iter().copied()));
        // Where a file could not be read, it may set anything.
        let whole = read.iter().all(Option::is_some);
        for (source, names) in sources.iter().zip(&read) {
            let mut found = missing_modules(source, bundle);
            if let Some(names) = names {
                found.extend(names.calls.iter().flat_map(|call| wrong_call(source, call)));
                if source.path == bundle.entry() {
                    self.second_result(source, names);
                }
            }
            let found = found.into_iter().filter_map(|wrong| {
                let code = match wrong.message.starts_with("there is no module") {
                    true => code::MISSING_FILE,
                    false => code::BAD_ARGUMENT,
                };
                self.finding(source, wrong, code, true)
            });
            let mut found: Vec<_> = found.take(MOST + 1).collect();
            if found.len() > MOST {
                found.truncate(MOST);
                found.last_mut().into_iter().for_each(Finding::and_more);
            }
            self.findings.append(&mut found);
            let Some(names) = names.as_ref().filter(|_| whole) else { continue };
            let mut seen = BTreeSet::new();
            let needed = names.globals.iter().filter(|it| it.needed).map(|it| it.name);
            let needed: BTreeSet<_> = needed.collect();
            let mut globals: Vec<_> =
                names.globals.iter().filter(|it| !set.contains(it.name)).collect();
            // What is left out are no errors, if there is anything else.
            globals.sort_by_key(|it| !needed.contains(it.name));
            globals.retain(|it| seen.insert(it.name));
            let found = globals.into_iter().filter_map(|global| {
                let is_needed = needed.contains(global.name);
                // The hint takes time: it is for those that are shown.
                let wrong = Wrong { at: global.at, message: String::new(), hint: None };
                self.finding(source, wrong, code::UNKNOWN_GLOBAL, is_needed)?;
                Some((global, is_needed))
            });
            let found: Vec<_> = found.take(MOST + 1).collect();
            for (global, is_needed) in found.iter().take(MOST) {
                let wrong = unknown(global, names, &set);
                let finding = self.finding(source, wrong, code::UNKNOWN_GLOBAL, *is_needed);
                self.findings.extend(finding);
            }
            if found.len() > MOST {
                self.findings.last_mut().into_iter().for_each(Finding::and_more);
            }
        }
    }

    /// A call that fails for certain is an error from edition 2 on; in edition 1 it is a warning.
    /// Returns `None` for a warning that the file allows.
    fn finding(
        &self,
        source: &Source<'_>,
        wrong: Wrong,
        code: &'static str,
        certain: bool,
    ) -> Option<Finding> {
        let at = source.tokens.get(wrong.at).map_or(Position::START, |token| token.at);
        let finding = Finding::error(source.path, at, code, wrong.message);
        let finding = Finding { hint: wrong.hint, ..finding };
        let refused = certain && self.edition >= Edition::Two;
        let finding = if refused { finding } else { finding.warning() };
        (!source.allowances.allow(&finding)).then_some(finding)
    }

    /// A second value behind the `return` of the flow.
    fn second_result(&mut self, source: &Source<'_>, names: &Names<'_>) {
        let Some(at) = flow_of(&self.outline, source, names).and_then(|returns| returns.second)
        else {
            return;
        };
        let message = "a flow has one result: this second value is dropped".to_owned();
        let hint = Some("return a table: `return { first, second }`".to_owned());
        let wrong = Wrong { at, message, hint };
        self.findings.extend(self.finding(source, wrong, code::LOST_RESULT, false));
    }
}

/// Returns the finding for a flow that returns nothing.
pub(super) fn without_result(bundle: &Bundle, outline: &Outline) -> Option<Finding> {
    let source = sources(bundle).find(|source| source.path == bundle.entry())?;
    let names = names(&source.tokens)?;
    let returns = flow_of(outline, &source, &names)?;
    if returns.some {
        return None;
    }
    let at = outline.value("/flow");
    let message = "the flow has no `return` with a value: the run's output is null";
    let finding = Finding::error(bundle.entry(), at, code::LOST_RESULT, message);
    Some(finding.note().hint("return what the run is for, or leave it so"))
}

fn sources(bundle: &Bundle) -> impl Iterator<Item = Source<'_>> {
    let files = bundle.files().iter().filter(|(path, _)| is_lua(path));
    files.map(|(path, text)| Source {
        path,
        allowances: Allowances::of(text),
        tokens: tokens(text),
    })
}

/// Returns the return values of a literal flow function.
fn flow_of<'n>(
    outline: &Outline,
    source: &Source<'_>,
    names: &'n Names<'_>,
) -> Option<&'n Returns> {
    let at = outline.spot("/flow")?.value;
    let index = source.tokens.iter().position(|token| token.at == at)?;
    names.functions.get(&index)
}

fn unknown(global: &Global<'_>, names: &Names<'_>, set: &BTreeSet<&str>) -> Wrong {
    let name = global.name;
    let hint = match name {
        "ctx" => Some("a flow gets it first: `flow = function(ctx, input) … end`".to_owned()),
        "swarm" => Some("begin the file with `local swarm = require(\"swarm\")`".to_owned()),
        "s" => Some("`local s = swarm.schema`".to_owned()),
        _ if global.needed && library::names("ctx").contains(&name) => {
            Some(format!("did you mean `ctx:{name}(…)`?"))
        }
        _ if names.locals.contains(name) => {
            Some(format!("there is a local `{name}` elsewhere in the file; it does not hold here"))
        }
        _ => {
            let known = [set, &names.locals].into_iter().flat_map(|it| it.iter().take(CANDIDATES));
            did_you_mean(name, known.copied()).map(|likely| format!("did you mean `{likely}`?"))
        }
    };
    Wrong { at: global.at, message: format!("unknown global `{name}`"), hint }
}

/// Modules that are neither the library nor files.
fn missing_modules(source: &Source<'_>, bundle: &Bundle) -> Vec<Wrong> {
    let tokens = &source.tokens;
    let calls = tokens.iter().enumerate().filter(|(index, token)| {
        let before = index.checked_sub(1).map(|before| &tokens[before]);
        token.is_name("require")
            && !before
                .is_some_and(|it| it.is_symbol(".") || it.is_symbol(":") || it.is_name("function"))
    });
    let mut found = Vec::new();
    for (index, _) in calls {
        let open = tokens.get(index + 1).is_some_and(|token| token.is_symbol("("));
        let at = index + 1 + usize::from(open);
        let ends = !open
            || tokens.get(at + 1).is_some_and(|token| token.is_symbol(")") || token.is_symbol(","));
        let Some(name) = tokens.get(at).filter(|_| ends).and_then(Token::text) else { continue };
        if name.starts_with('.') || MODULES.contains(&name.as_str()) {
            continue;
        }
        let own = format!("./{name}");
        let hint = if bundle.resolve_module(source.path, &own).is_some() {
            format!("did you mean `{own}`?")
        } else if let Some(likely) = did_you_mean(&name, MODULES) {
            format!("did you mean `{likely}`?")
        } else {
            "there is \"swarm\", and the bundle's own files as \"./name\"".to_owned()
        };
        let message = format!("there is no module {name:?}");
        found.push(Wrong { at, message, hint: Some(hint) });
    }
    found
}

fn wrong_call(source: &Source<'_>, call: &Call<'_>) -> Vec<Wrong> {
    let row = library::FUNCTIONS.iter().find(|it| it.of == call.of && it.name == call.method);
    let Some(row) = row else { return Vec::new() };
    let name = format!("{}:{}", call.of, call.method);
    let mut found = Vec::new();
    let needed = row.takes.iter().take_while(|(_, is)| !may_be_nil(is)).count();
    let open = call.arguments.last().is_some_and(|it| matches!(it.is, Shape::Many));
    if call.arguments.len() < needed && !open {
        let lacking = row.takes[call.arguments.len()].0;
        let message = format!("`{name}` needs `{lacking}`");
        let takes: Vec<&str> = row.takes.iter().map(|(name, _)| *name).collect();
        let hint = Some(format!("it is `{name}({})`", takes.join(", ")));
        found.push(Wrong { at: call.at, message, hint });
    }
    for ((argument, is), value) in row.takes.iter().zip(&call.arguments) {
        let what = format!("`{argument}` of `{name}`");
        mismatch(&source.tokens, value, is, &what, 0, &mut found);
    }
    found
}

fn may_be_nil(is: &str) -> bool {
    is.ends_with('?') || is == "any"
}

/// Adds what is wrong with a value where a type is wanted.
fn mismatch(
    tokens: &[Token<'_>],
    value: &Value<'_>,
    is: &str,
    what: &str,
    depth: usize,
    found: &mut Vec<Wrong>,
) {
    let (is, optional) = match is.strip_suffix('?') {
        Some(is) => (is, true),
        None => (is, false),
    };
    let noun = match is {
        "any" | "Schema" | "Node" => return,
        "string" => "text",
        "number" => "a number",
        "boolean" => "true or false",
        "Duration" => "a duration",
        "Time" => "a time",
        _ if is.starts_with('{') => "a table",
        _ if is.contains("->") => "a function",
        _ if is.contains('|') => return,
        _ => "a table",
    };
    let shape = match &value.is {
        Shape::Many | Shape::Other => return,
        Shape::Nil if optional => return,
        Shape::Nil => "nil",
        Shape::Text if matches!(noun, "text" | "a time") => return,
        Shape::Text if noun == "a duration" => {
            wrong_duration(tokens, value, what, found);
            return;
        }
        Shape::Text => "text",
        Shape::Number if matches!(noun, "a number" | "a duration" | "a time") => return,
        Shape::Number => "a number",
        Shape::Boolean if noun == "true or false" => return,
        Shape::Boolean => "a boolean",
        Shape::Function if noun == "a function" => return,
        Shape::Function => "a function",
        Shape::Table(entries, whole) if noun == "a table" => {
            let fields =
                TYPES.iter().find(|(name, _)| *name == is).and_then(|(_, is)| fields_of(is));
            let Some(fields) = fields.filter(|_| depth < DEEPEST) else { return };
            let known: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            for (name, at, value) in entries {
                let Some((_, is)) = fields.iter().find(|(field, _)| field == name) else {
                    let message = format!("{what} has no `{name}`");
                    found.push(Wrong { at: *at, message, hint: hint_for(name, &known) });
                    continue;
                };
                mismatch(tokens, value, is, &format!("`{name}` in {what}"), depth + 1, found);
            }
            let lacking = fields.iter().find(|(field, is)| {
                !may_be_nil(is) && !entries.iter().any(|(name, ..)| name == field)
            });
            if let (Some((field, _)), true) = (lacking, *whole) {
                let message = format!("{what} needs `{field}`");
                found.push(Wrong { at: value.at, message, hint: None });
            }
            return;
        }
        Shape::Table(..) => "a table",
    };
    let message = format!("{what} must be {noun}, and is {shape}");
    found.push(Wrong { at: value.at, message, hint: None });
}

fn wrong_duration(tokens: &[Token<'_>], value: &Value<'_>, what: &str, found: &mut Vec<Wrong>) {
    let token = tokens.get(value.at).filter(|token| matches!(token.kind, Kind::Text { .. }));
    let Some(text) = token.and_then(Token::text) else { return };
    // A loose form has a finding of its own.
    if parse_duration(&text).is_ok() || old_form(&text).is_some() {
        return;
    }
    let shown: String = text.chars().take(80).collect();
    let message = format!("{what}: {shown:?} is not a duration");
    let hint = Some(
        "write \"250ms\", \"90s\", \"20m\", \"1h30m\", \"2d\" or a number of seconds".to_owned(),
    );
    found.push(Wrong { at: value.at, message, hint });
}
