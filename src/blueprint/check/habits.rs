//! Finds code in a Lua source that cannot work, or not as it seems: calls that do not exist, branches
//! that nobody waits for, loops without an end, and values that differ in a replay.
//!
//! The check looks at tokens, and so at names as they are usually written: `ctx` is the flow's argument.

use std::collections::{HashMap, HashSet};

use super::{checker::Checker, files::is_lua};
use crate::blueprint::{
    allowances::Allowances,
    diagnostics::{Finding, Position, Severity, code, hint_for},
    duration::old_form,
    edition::Edition,
    library,
    tokens::{Kind, Token, is_statement, tokens},
};

/// Findings in one file, and errors beside as many others.
const MOST: usize = 200;

/// The functions that the sandbox lacks, because they differ in a replay.
const REFUSED: [(&str, Option<&str>, &str); 9] = [
    ("os", None, "the time is `ctx:now()`; what touches the system is a process agent"),
    ("io", None, "files are for process agents; `ctx:artifact` keeps what a run makes"),
    ("math", Some("random"), "use `ctx:random`, which gives the same number in a replay"),
    ("math", Some("randomseed"), "`ctx:random` is seeded by the run"),
    ("debug", None, "errors carry their file and line"),
    ("collectgarbage", None, "memory is the host's to look after"),
    ("loadstring", None, "code is in the bundle: `require(\"./name\")`"),
    ("dofile", None, "code is in the bundle: `require(\"./name\")`"),
    ("newproxy", None, "use a table with a metatable"),
];

impl Checker<'_> {
    /// Looks at every Lua file.
    pub(super) fn habits(&mut self) {
        let bundle = self.bundle;
        for (path, text) in bundle.files().iter().filter(|(path, _)| is_lua(path)) {
            let tokens = tokens(text);
            let edition = self.edition;
            let mut found = Look::new(path, edition, &tokens, Allowances::of(text));
            found.all();
            found.durations();
            if found.is_cut {
                let last = found.found.iter_mut().max_by_key(|it| (it.line, it.column));
                last.into_iter().for_each(Finding::and_more);
            }
            self.findings.append(&mut found.found);
        }
    }

    /// Agents that nothing names: neither a call with their name, nor a text that could become one.
    pub(super) fn unused_agents(
        &mut self,
        names: &[&str],
        flow: Option<&serde_json::Value>,
        tree: &serde_json::Value,
    ) {
        let bundle = self.bundle;
        let mut texts = HashSet::new();
        for (_, text) in bundle.files().iter().filter(|(path, _)| is_lua(path)) {
            texts.extend(tokens(text).iter().filter_map(Token::text));
        }
        if bundle.entry().ends_with(".json") {
            texts_in(tree, &mut texts);
        }
        let mut computed = false;
        if let Some(flow) = flow {
            let mut agents = Vec::new();
            step_agents(flow, &mut agents);
            computed = agents.iter().any(|agent| agent.contains("{{"));
            texts.extend(agents);
        }
        let sources = bundle.files().iter().filter(|(path, _)| is_lua(path));
        let mut literal = flow.is_some();
        for (_, text) in sources {
            let (some, others) = runs(&tokens(text));
            literal |= some;
            computed |= others;
        }
        // A name that is put together at run time may be any of them, a misspelt one is reported as
        // such, and where no task is seen at all the flow is written in another way.
        let misspelt = self.findings.iter().any(|it| it.code == code::UNKNOWN_AGENT);
        if computed || misspelt || !literal {
            return;
        }
        for name in names.iter().filter(|name| !texts.contains(**name)) {
            let at = crate::blueprint::locate::pointer("/agents", name);
            let finding = self
                .at_key(&at, code::UNUSED_AGENT, format!("nothing runs the agent `{name}`"))
                .hint(format!("run it with `ctx:run(\"{name}\", …)`, or remove it"));
            self.findings.push(finding.warning());
        }
    }
}

/// The texts in a document, without its keys.
fn texts_in(value: &serde_json::Value, into: &mut HashSet<String>) {
    match value {
        serde_json::Value::String(text) => {
            into.insert(text.clone());
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| texts_in(item, into)),
        serde_json::Value::Object(map) => map.values().for_each(|part| texts_in(part, into)),
        _ => {}
    }
}

/// The agents that the steps of a table flow name.
fn step_agents(value: &serde_json::Value, into: &mut Vec<String>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| step_agents(item, into)),
        serde_json::Value::Object(map) => {
            let agent = map.get("agent").and_then(serde_json::Value::as_str);
            into.extend(agent.map(str::to_owned));
            map.values().for_each(|part| step_agents(part, into));
        }
        _ => {}
    }
}

/// Returns true if a source runs agents by their literal names, and by others.
fn runs(tokens: &[Token<'_>]) -> (bool, bool) {
    let mut found = (false, false);
    for at in tokens.windows(5) {
        let call = at[0].is_name("ctx")
            && at[1].is_symbol(":")
            && (at[2].is_name("run") || at[2].is_name("try"));
        let argument = if at[3].is_symbol("(") { &at[4] } else { &at[3] };
        if call {
            match argument.text() {
                Some(_) => found.0 = true,
                None => found.1 = true,
            }
        }
    }
    found
}

struct Look<'t, 's> {
    path: &'t str,
    edition: Edition,
    tokens: &'t [Token<'s>],
    allowances: Allowances<'t>,
    /// The last place of each name.
    last: HashMap<&'s str, usize>,
    /// The names that are declared: locals, functions, their arguments, and those of loops.
    own: HashSet<&'s str>,
    /// The brackets whose content has a `:` behind it: a method is called there.
    called_on: HashSet<usize>,
    /// The tokens that loops may still be looked through for: each is in few of them.
    in_loops: usize,
    found: Vec<Finding>,
    /// True if findings are left out.
    is_cut: bool,
}

impl<'t, 's> Look<'t, 's> {
    fn new(
        path: &'t str,
        edition: Edition,
        tokens: &'t [Token<'s>],
        allowances: Allowances<'t>,
    ) -> Self {
        let (mut last, mut own) = (HashMap::new(), HashSet::new());
        let (mut declares, mut is_behind_name) = (false, false);
        let (mut open, mut called_on) = (Vec::new(), HashSet::new());
        for (index, token) in tokens.iter().enumerate() {
            let mut is_name = false;
            match token.kind {
                Kind::Name("local" | "function" | "for") => declares = true,
                Kind::Name("in" | "do") | Kind::Symbol("=" | ")") => declares = false,
                Kind::Name(name) => {
                    last.insert(name, index);
                    // A name behind another one begins the next statement.
                    declares &= !is_behind_name;
                    if declares {
                        own.insert(name);
                    }
                    is_name = true;
                }
                _ => {}
            }
            is_behind_name = is_name;
            match token.kind {
                Kind::Symbol("(" | "{" | "[") => open.push(index),
                Kind::Symbol(")" | "}" | "]") => {
                    let is_called = tokens.get(index + 1).is_some_and(|it| it.is_symbol(":"));
                    called_on.extend(open.pop().filter(|_| is_called));
                }
                _ => {}
            }
        }
        let (in_loops, found, is_cut) = (tokens.len().saturating_mul(20), Vec::new(), false);
        Self { path, edition, tokens, allowances, last, own, called_on, in_loops, found, is_cut }
    }
}

impl Look<'_, '_> {
    fn at(&self, index: usize) -> Option<&Token<'_>> {
        self.tokens.get(index)
    }

    fn symbol(&self, index: usize, symbol: &str) -> bool {
        self.at(index).is_some_and(|token| token.is_symbol(symbol))
    }

    fn name(&self, index: usize) -> Option<&str> {
        match self.tokens.get(index)?.kind {
            Kind::Name(name) => Some(name),
            _ => None,
        }
    }

    fn all(&mut self) {
        for index in 0..self.tokens.len() {
            if self.found.len() >= 2 * MOST {
                self.is_cut = true;
                return;
            }
            let Some(name) = self.name(index) else { continue };
            let field = index > 0 && (self.symbol(index - 1, ".") || self.symbol(index - 1, ":"));
            match name {
                "ctx" if !field => {
                    self.method(index);
                    self.spawned(index);
                }
                "while" => self.endless(index),
                _ if !field => self.refused(index),
                _ => {}
            }
        }
    }

    /// Durations in a form that will go: of `ctx:sleep` and `ctx:timeout`, and in options of calls.
    fn durations(&mut self) {
        let mut open: Vec<bool> = Vec::new();
        for index in 0..self.tokens.len() {
            match &self.tokens[index].kind {
                Kind::Symbol("(" | "{" | "[") => {
                    let inside = open.last().copied().unwrap_or_default();
                    open.push(inside || self.called(index).is_some());
                }
                Kind::Symbol(")" | "}" | "]") => drop(open.pop()),
                _ => {}
            }
            let Some((text, (why, instead))) = self.tokens[index]
                .text()
                .and_then(|text| old_form(&text).map(|found| (text, found)))
            else {
                continue;
            };
            let first = index > 0 && self.symbol(index - 1, "(");
            let method = self.called(if first { index - 1 } else { index });
            let option = open.last() == Some(&true)
                && index >= 2
                && self.symbol(index - 1, "=")
                && matches!(self.name(index - 2), Some("timeout" | "backoff" | "remind"));
            if option || matches!(method, Some("sleep" | "timeout")) {
                let message = format!("the duration \"{text}\" {why}");
                let hint = Some(format!("write \"{instead}\""));
                let severity = match self.edition {
                    Edition::One => Severity::Warning,
                    Edition::Two => Severity::Error,
                };
                self.say(index, severity, code::OLD_DURATION, message, hint);
            }
        }
    }

    /// The method of `ctx` that is called with what begins at a token.
    fn called(&self, index: usize) -> Option<&str> {
        let before = index.checked_sub(3)?;
        let is_ctx = self.name(before) == Some("ctx") && self.symbol(before + 1, ":");
        self.name(before + 2).filter(|_| is_ctx)
    }

    fn say(
        &mut self,
        index: usize,
        severity: Severity,
        code: &'static str,
        message: String,
        hint: Option<String>,
    ) {
        let at = self.at(index).map_or(Position::START, |token| token.at);
        let finding = Finding { severity, hint, ..Finding::error(self.path, at, code, message) };
        let most = if severity == Severity::Error { 2 * MOST } else { MOST };
        if self.allowances.allow(&finding) {
            return;
        }
        if self.found.len() >= most {
            self.is_cut = true;
            return;
        }
        self.found.push(finding);
    }

    /// A call of something that `ctx` does not have.
    fn method(&mut self, index: usize) {
        self.dotted(index);
        let (of, at) = match (self.symbol(index + 1, "."), self.name(index + 2)) {
            (true, Some("state")) if self.symbol(index + 3, ":") => ("ctx.state", index + 4),
            _ if self.symbol(index + 1, ":") => ("ctx", index + 2),
            _ => return,
        };
        let Some(name) = self.name(at) else { return };
        let known = library::names(of);
        if known.contains(&name) {
            return;
        }
        let message = format!("`{of}:{name}` does not exist");
        let hint = hint_for(name, &known);
        self.say(at, Severity::Error, code::UNKNOWN_METHOD, message, hint);
    }

    /// A method that is called with a dot, and so without `ctx`.
    fn dotted(&mut self, index: usize) {
        let (of, at) = match (self.symbol(index + 1, "."), self.name(index + 2)) {
            (true, Some("state")) if self.symbol(index + 3, ".") => ("ctx.state", index + 4),
            (true, Some(_)) => ("ctx", index + 2),
            _ => return,
        };
        let Some(name) = self.name(at) else { return };
        let is_call = self.symbol(at + 1, "(") && self.name(at + 2) != Some("ctx");
        if is_call && library::FUNCTIONS.iter().any(|it| it.of == of && it.name == name) {
            let message = format!("`{of}.{name}` is called with a colon");
            let hint = Some(format!("write `{of}:{name}(…)`"));
            self.say(at, Severity::Error, code::UNKNOWN_METHOD, message, hint);
        }
    }

    /// A spawned branch that nobody waits for.
    fn spawned(&mut self, index: usize) {
        if !(self.symbol(index + 1, ":") && self.name(index + 2) == Some("spawn")) {
            return;
        }
        let hint =
            Some("keep it: `local f = ctx:spawn(…)`, and wait for it: `f:await()`".to_owned());
        let kept = index.checked_sub(1).is_some_and(|before| self.symbol(before, "="));
        let statement = match index.checked_sub(1).and_then(|before| self.at(before)) {
            None => true,
            Some(before) => match &before.kind {
                Kind::Symbol(symbol) => matches!(*symbol, ")" | "}" | "]" | ";"),
                Kind::Name(word) => matches!(*word, "do" | "then" | "else" | "end" | "repeat"),
                Kind::Text { .. } | Kind::Number(_) => true,
                Kind::Interpolation { .. } => false,
            },
        };
        if self.called_on.contains(&(index + 3)) {
            return;
        }
        if statement {
            let message = "nobody waits for this branch, and nobody sees its error".to_owned();
            self.say(index, Severity::Warning, code::NOT_AWAITED, message, hint);
        } else if kept
            && index >= 3
            && self.name(index - 3) == Some("local")
            && let Some(name) = self.name(index - 2).map(str::to_owned)
        {
            let used = self.last.get(name.as_str()).is_some_and(|last| *last >= index);
            if !used {
                let message = format!("nobody waits for `{name}`, and nobody sees its error");
                self.say(index - 2, Severity::Warning, code::NOT_AWAITED, message, hint);
            }
        }
    }

    /// `while true do` without a way out, or without anything to wait for.
    fn endless(&mut self, index: usize) {
        if !(self.name(index + 1) == Some("true") && self.name(index + 2) == Some("do")) {
            return;
        }
        let (mut depth, mut at) = (1_u32, index + 3);
        let (mut leaves, mut waits, mut renews) = (false, false, false);
        // Whether a `break` in here belongs to a loop within.
        let mut loops: Vec<u32> = Vec::new();
        // Each `if` that is open, with its depth if it is a statement, and whether what follows a
        // `then` or `else` is a part of an expression.
        let mut ifs: Vec<Option<u32>> = Vec::new();
        let mut is_part = false;
        while depth > 0 && at < self.tokens.len() {
            let Some(left) = self.in_loops.checked_sub(1) else { return };
            self.in_loops = left;
            match self.name(at) {
                Some("function" | "repeat") => depth += 1,
                Some("do") => depth += 1,
                Some("for" | "while") => loops.push(depth + 1),
                Some("if") => {
                    let is_expression = match self.name(at - 1) {
                        Some("then" | "else") => is_part,
                        _ => !is_statement(self.tokens, at),
                    };
                    depth += u32::from(!is_expression);
                    ifs.push((!is_expression).then_some(depth));
                }
                Some(word @ ("then" | "else")) => {
                    is_part = ifs.last() == Some(&None);
                    if word == "else" && is_part {
                        ifs.pop();
                    }
                }
                Some("end" | "until") => {
                    ifs.pop_if(|of| *of == Some(depth));
                    while loops.pop_if(|within| *within >= depth).is_some() {}
                    depth -= 1;
                }
                Some("return" | "error" | "fail") => leaves = true,
                Some("break") if loops.is_empty() => leaves = true,
                Some("continue_as") => renews = true,
                Some("ctx") => waits = true,
                _ => {}
            }
            at += 1;
        }
        if leaves || renews {
            return;
        }
        let (message, hint) = match waits {
            false => (
                "this loop never ends and waits for nothing: it runs into the limit of CPU time",
                "leave it with `break`, or wait in it: `ctx:sleep(\"1m\")`",
            ),
            true => (
                "this loop never ends, and its history grows with every round",
                "leave it with `break`, or begin anew now and then: `ctx:continue_as(input)`",
            ),
        };
        self.say(
            index,
            Severity::Warning,
            code::ENDLESS_LOOP,
            message.to_owned(),
            Some(hint.to_owned()),
        );
    }

    /// Reports the use of functions that the sandbox lacks.
    fn refused(&mut self, index: usize) {
        let Some(name) = self.name(index) else { return };
        let member = self.symbol(index + 1, ".").then(|| self.name(index + 2)).flatten();
        let found = REFUSED.iter().find(|(owner, of, _)| {
            *owner == name
                && match of {
                    Some(of) => member == Some(of),
                    None => member.is_some() || self.symbol(index + 1, "("),
                }
        });
        let Some((owner, _, instead)) = found else { return };
        if self.own.contains(*owner) {
            return;
        }
        let shown = member.map_or_else(|| name.to_owned(), |member| format!("{name}.{member}"));
        let message =
            format!("`{shown}` is not there in a blueprint: a replay would see something else");
        self.say(
            index,
            Severity::Warning,
            code::NOT_DETERMINISTIC,
            message,
            Some((*instead).to_owned()),
        );
    }
}
