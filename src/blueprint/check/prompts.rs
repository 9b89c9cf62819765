//! The templates of an agent: whether they parse, and whether each name can be defined.
//!
//! The known slots: the fixed ones always are there; a closed input schema with `properties`
//! says which further slots there can be. Without one any name may come with the input, and only
//! the attributes of `run` are checked.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::{checker::Checker, value::Table};
use crate::blueprint::{
    agent_md,
    bundle::{self, Bundle},
    diagnostics::{Finding, Position, code, hint_for},
    locate::{Form, pointer},
    template::{DIRECTIVE, FIXED_SLOTS, TemplateError, includes},
};

/// Undefined names of one template that are reported.
const MOST: usize = 200;
const RUN: &[&str] = &["id", "input"];
/// The slots of the run in a command or an environment, and the others.
const RUN_OF_COMMANDS: &[&str] = &["id"];
const OF_COMMANDS: &[&str] = &["bundle", "moonswarm"];

impl Checker<'_> {
    pub(super) fn prompts(
        &mut self,
        table: &Table<'_>,
        input: Option<&Value>,
        run_input: Option<&Value>,
    ) {
        let known = DefinedNames {
            input: Names::of(input),
            run_input: Names::of(run_input),
            run: RUN,
            besides: &[],
        };
        let literal = table.get("template") == Some(&Value::Bool(false));
        for key in ["system", "prompt"] {
            if key == "system" && literal {
                continue;
            }
            if let Some(Value::String(template)) = table.get(key) {
                let place = self.place(&table.pointer(key), template);
                self.template(template, &place, &format!("`{key}` of {}", table.what()), &known);
            }
        }
    }

    /// The templates of a process: its command and its environment.
    pub(super) fn commands(&mut self, table: &Table<'_>, input: Option<&Value>) {
        let known = DefinedNames {
            input: Names::of(input),
            run_input: Names::Any,
            run: RUN_OF_COMMANDS,
            besides: OF_COMMANDS,
        };
        let parts = |key: &str| match table.get(key) {
            Some(Value::Array(items)) => {
                items.iter().enumerate().map(|(n, it)| (n.to_string(), it.clone())).collect()
            }
            Some(Value::Object(map)) => {
                map.iter().map(|(name, it)| (name.clone(), it.clone())).collect()
            }
            _ => Vec::new(),
        };
        for key in ["command", "env"] {
            for (part, value) in parts(key) {
                let Value::String(template) = value else { continue };
                let at = pointer(&table.pointer(key), &part);
                let place = self.place(&at, &template);
                self.template(&template, &place, &format!("`{key}` of {}", table.what()), &known);
                if let Some(name) = missing_program(self.bundle, &template) {
                    let finding = missing(&place.file, place.start, name).warning();
                    self.findings.push(finding.hint(
                        "a file belongs to the bundle if it lies below the blueprint and a string \
                         names it alone: \"{{ bundle }}/name\"",
                    ));
                }
            }
        }
    }

    fn template(
        &mut self,
        template: &str,
        place: &TemplatePlace,
        what: &str,
        known: &DefinedNames<'_>,
    ) {
        if place.exact && place.file != self.bundle.entry() {
            let at = |offset| place.of(template, offset);
            missing_includes(self.bundle, &place.file, template, at, &mut self.findings);
        }
        let names = match self.templates.required(template) {
            Ok(names) => names,
            Err(error) => {
                let finding = bad_template(place, template, what, &error);
                self.findings.push(finding);
                return;
            }
        };
        let refused = names.into_iter();
        let mut refused = refused.filter_map(|(name, it)| Some((known.refuses(&name)?, name, it)));
        for (candidates, name, need) in refused.by_ref().take(MOST) {
            let at = place.of(template, need.at);
            let message = format!("{what} uses `{name}`, which nothing defines");
            let mut finding = Finding::error(&place.file, at, code::UNDEFINED_SLOT, message);
            let last = name.rsplit('.').next().unwrap_or(&name);
            finding.hint = hint_for(last, &candidates);
            // Beside a `default` it had no finding before: stored versions stay good.
            let passed = need.beside.is_some_and(|it| {
                it.rsplit_once('.').is_none_or(|(of, _)| known.refuses(of).is_none())
            });
            self.findings.push(if passed { finding.warning() } else { finding });
        }
        if refused.next().is_some() {
            self.findings.last_mut().into_iter().for_each(Finding::and_more);
        }
    }

    /// The agent file whose text this is, and the place at which the text begins.
    fn agent_file_with(&self, text: &str) -> Option<&(String, Position)> {
        let bodies = self.bodies.get_or_init(|| {
            let mut bodies = HashMap::new();
            for (path, whole) in self.bundle.files() {
                let (mut file, _) = agent_md::read(path, whole);
                if let Some(Value::String(text)) = file.fields.remove("system") {
                    bodies.entry(text).or_insert_with(|| (path.clone(), file.body_at));
                }
            }
            bodies
        });
        bodies.get(text)
    }

    /// The place of a template's text.
    fn place(&self, pointer: &str, template: &str) -> TemplatePlace {
        let spot = self.outline.spot(pointer);
        if let Some(Form::Template(spec)) = spot.map(|spot| &spot.form)
            && let Some(path) = self.bundle.resolve_file(spec)
        {
            return TemplatePlace { file: path.to_owned(), start: Position::START, exact: true };
        }
        // What is not written out in the main file may be the text of an agent file.
        if spot.is_none()
            && let Some((path, start)) = self.agent_file_with(template)
        {
            return TemplatePlace { file: path.clone(), start: *start, exact: true };
        }
        let file = self.bundle.entry().to_owned();
        match spot.map(|spot| &spot.form) {
            Some(Form::Literal(start)) => TemplatePlace { file, start: *start, exact: true },
            _ => TemplatePlace { file, start: self.outline.value(pointer), exact: false },
        }
    }
}

/// A template's place: with `exact`, its text stands in the file as it is, from `start` on.
pub(super) struct TemplatePlace {
    pub file: String,
    pub start: Position,
    pub exact: bool,
}

impl TemplatePlace {
    fn of(&self, template: &str, offset: usize) -> Position {
        if !self.exact {
            return self.start;
        }
        let inside = Position::of_offset(template, offset);
        Position {
            line: self.start.line.saturating_add(inside.line - 1),
            column: match inside.line {
                1 => self.start.column.saturating_add(inside.column - 1),
                _ => inside.column,
            },
        }
    }
}

pub(super) fn bad_template(
    place: &TemplatePlace,
    template: &str,
    what: &str,
    error: &TemplateError,
) -> Finding {
    let line_start = |line: u32| {
        let before = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
        template.split_inclusive('\n').take(before).map(str::len).sum()
    };
    let offset = error.offset.or_else(|| error.line.map(line_start)).unwrap_or(0);
    let message = format!("{what} does not parse: {}", error.message);
    Finding::error(&place.file, place.of(template, offset), code::BAD_TEMPLATE, message)
}

/// Adds the files that a template includes and that are not there, each at the place of its offset.
pub(super) fn missing_includes(
    bundle: &Bundle,
    file: &str,
    template: &str,
    place: impl Fn(usize) -> Position,
    findings: &mut Vec<Finding>,
) {
    for include in includes(template).iter().filter(|it| !it.may_miss) {
        if bundle.resolve_file(&include.name).is_none() {
            findings.push(missing(file, place(include.offset), &include.name));
        }
    }
}

pub(super) fn missing(file: &str, at: Position, name: &str) -> Finding {
    let finding = Finding::error(
        file,
        at,
        code::MISSING_FILE,
        format!("there is no file {name:?} in the bundle"),
    );
    if name.split('/').any(|part| part == "..") || name.starts_with('/') {
        finding.hint("a bundle is what lies beside and below the blueprint; move the file there")
    } else {
        finding.hint("paths are relative: of modules to the file, of other files to the blueprint")
    }
}

/// Returns the file of the bundle that a command or a variable names, if it is not there. What a
/// shell or another program may read as more than a path is looked at up to there.
fn missing_program<'t>(bundle: &Bundle, template: &'t str) -> Option<&'t str> {
    const ENDS: &[char] = &[':', ';', ',', '&', '|', '<', '>', '(', ')', '"', '\''];
    const PATTERNS: &[char] = &['{', '*', '?', '[', '$', '`', '\\'];
    let name = bundle::program(template)?;
    let ends = |c: char| c.is_whitespace() || ENDS.contains(&c) || PATTERNS.contains(&c);
    let end = name.find(ends).unwrap_or(name.len());
    let path = name[..end].trim_end_matches('/');
    let is_there = |path: &str| {
        let within = format!("{}/", path.trim_start_matches("./"));
        bundle.resolve_file(path).is_some()
            || bundle.files().keys().any(|file| file.starts_with(&within))
    };
    let is_known = path.is_empty()
        || path == "."
        || name[end..].starts_with(PATTERNS)
        || is_there(path)
        || is_there(name);
    (!is_known).then_some(name)
}

/// The names that may be defined.
struct DefinedNames<'a> {
    input: Names<'a>,
    run_input: Names<'a>,
    run: &'static [&'static str],
    besides: &'static [&'static str],
}

impl<'a> DefinedNames<'a> {
    /// The names that there are in place of this one, if it can never be defined.
    fn refuses(&self, name: &str) -> Option<Vec<&'a str>> {
        let parts: Vec<_> = name.split('.').collect();
        match parts.as_slice() {
            ["input", key, ..] => self.input.refuse(key),
            ["run", "input", key, ..] if self.run.contains(&"input") => self.run_input.refuse(key),
            ["run", key, ..] if !self.run.contains(key) => Some(self.run.to_vec()),
            [fixed, ..] if FIXED_SLOTS.contains(fixed) || self.besides.contains(fixed) => None,
            [key, ..] => {
                let mut candidates = self.input.refuse_slot(key)?;
                candidates.extend(FIXED_SLOTS);
                candidates.extend(self.besides);
                Some(candidates)
            }
            [] => None,
        }
    }
}

/// The keys that an input can have.
enum Names<'a> {
    /// Any.
    Any,
    /// These, in an object.
    These(BTreeSet<&'a str>),
    /// None: the input is never an object.
    NoObject,
}

impl<'a> Names<'a> {
    fn of(schema: Option<&'a Value>) -> Self {
        const OPEN: [&str; 8] = [
            "allOf",
            "anyOf",
            "oneOf",
            "$ref",
            "if",
            "patternProperties",
            "additionalProperties",
            "unevaluatedProperties",
        ];
        let Some(Value::Object(schema)) = schema else {
            return Self::Any;
        };
        let open =
            |keyword: &&str| schema.get(*keyword).is_some_and(|value| *value != Value::Bool(false));
        if OPEN.iter().any(open) {
            return Self::Any;
        }
        match (schema.get("type"), schema.get("properties")) {
            (Some(Value::String(kind)), _) if kind != "object" => Self::NoObject,
            (Some(Value::String(_)), Some(Value::Object(properties))) => {
                Self::These(properties.keys().map(String::as_str).collect())
            }
            _ => Self::Any,
        }
    }

    /// Returns the alternatives to `input.<key>`, if that can never exist.
    fn refuse(&self, key: &str) -> Option<Vec<&'a str>> {
        match self {
            // A list or a text has items and methods that are no keys.
            Self::Any | Self::NoObject => None,
            Self::These(names) => (!names.contains(key)).then(|| names.iter().copied().collect()),
        }
    }

    /// Returns the alternatives to the slot `key`, if that can never exist.
    fn refuse_slot(&self, key: &str) -> Option<Vec<&'a str>> {
        match self {
            Self::Any => None,
            Self::These(_) => self.refuse(key),
            Self::NoObject => (key != DIRECTIVE).then(|| vec![DIRECTIVE]),
        }
    }
}
