//! Templates of prompts.
//!
//! Owns the names that a template may use and the limits of rendering. Templates come from the
//! bundle only; what workers and callers send are values, which are put in as they are and never
//! rendered themselves. The engine renders with it when it dispatches a task.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use minijinja::{
    Environment, ErrorKind,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};
use serde_json::{Map, Value};
use thiserror::Error;

use super::bundle::{Bundle, MAX_FILES};

mod bounded;
mod rewrite;
mod uses;

use uses::{Need, Uses};

pub(crate) use bounded::{begin as begin_bounded, charge, environment as bounded_environment};

/// The longest text that a template may render to, in bytes.
pub const MAX_RENDERED_BYTES: usize = 1 << 20;

/// Steps of the interpreter in one rendering, with those that count what it makes and goes through.
const FUEL: u64 = 2_500_000;

/// Tokens in one tag, and `elif` tags in one template. The engine's parser recurses along chains
/// of operators and of `elif`, a stack frame or more for each link.
const MAX_TAG_TOKENS: usize = 500;
const MAX_ELIFS: usize = 200;

/// Includes that are looked for in one template: as many as a bundle has files.
const MAX_INCLUDES: usize = MAX_FILES;

/// The slots that every template has.
pub const FIXED_SLOTS: [&str; 4] = ["input", "run", "agent", "attempt"];

/// The slot of an input that is not an object.
pub const DIRECTIVE: &str = "directive";

/// The reason why a template was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("render the template{}: {message}", .line.map(|line| format!(" at line {line}")).unwrap_or_default())]
pub struct TemplateError {
    /// The bundle's file, if it is an included one.
    pub file: Option<String>,
    /// The line in the template, from 1.
    pub line: Option<u32>,
    /// The byte offset in the template, where it is known.
    pub offset: Option<usize>,
    /// The problem.
    pub message: String,
}

impl From<&minijinja::Error> for TemplateError {
    fn from(error: &minijinja::Error) -> Self {
        let file = error.name().filter(|name| !name.starts_with('<')).map(str::to_owned);
        let line = error.line().and_then(|line| u32::try_from(line).ok());
        let offset = error.range().map(|range| range.start);
        let message = match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        };
        Self { file, line, offset, message }
    }
}

/// The renderer of one bundle's templates.
#[derive(Debug)]
pub struct Templates {
    environment: Environment<'static>,
}

impl Templates {
    /// A renderer whose includes come from the bundle.
    pub fn new(bundle: &Bundle) -> Self {
        let mut templates = Self::bare();
        let bundle = bundle.clone();
        templates.environment.set_loader(move |name| {
            let text = bundle.resolve_file(name).and_then(|path| bundle.file(path));
            text.map(|text| bounded_template(text)).transpose()
        });
        templates
    }

    /// A renderer without includes.
    fn bare() -> Self {
        Self::with_fuel(FUEL)
    }

    /// A renderer without includes whose templates may take `fuel` steps each.
    pub(super) fn with_fuel(fuel: u64) -> Self {
        let mut environment = bounded::environment(fuel);
        environment.set_debug(true);
        Self { environment }
    }

    pub(super) fn environment(&self) -> &Environment<'static> {
        &self.environment
    }

    /// Renders a template with these slots.
    ///
    /// # Errors
    /// Fails when it does not parse, uses a name that is not defined, or breaks a limit.
    pub fn render(
        &self,
        template: &str,
        slots: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        let mut out = BoundedText::default();
        let rendered = bounded_template(template).map_err(|error| TemplateError::from(&error));
        let rendered = rendered.and_then(|source| {
            bounded::begin();
            self.environment
                .template_from_str(&source)
                .and_then(|parsed| parsed.render_captured_to(object(slots), &mut out).map(drop))
                .map_err(|error| while_running(&error))
        });
        match rendered {
            Ok(()) => Ok(String::from_utf8(out.bytes).expect("a template renders to text")),
            Err(_) if out.overflowed => Err(TemplateError {
                file: None,
                line: None,
                offset: None,
                message: "the text is longer than 1 MiB".to_owned(),
            }),
            Err(error) => Err(error),
        }
    }

    /// The names that a template looks up outside of itself, with the attributes of those that are
    /// looked up plainly (`input.issue`), in order.
    ///
    /// # Errors
    /// Fails when it does not parse.
    pub fn undeclared(&self, template: &str) -> Result<BTreeSet<String>, TemplateError> {
        // The bounded source has more of the names than the engine finds in the template itself.
        let source = bounded_template(template).map_err(|error| TemplateError::from(&error))?;
        let parsed = self.environment.template_from_str(&source);
        let parsed = parsed.map_err(|error| while_running(&error))?;
        let globals: BTreeSet<_> = self.environment.globals().map(|(name, _)| name).collect();
        let mut names: BTreeSet<String> = parsed.undeclared_variables(true).into_iter().collect();
        names.retain(|name| !globals.contains(name.split('.').next().unwrap_or(name)));
        Ok(names)
    }

    /// The names that a template looks up outside of itself and that must be defined, in order, each
    /// with the use that needs it.
    ///
    /// # Errors
    /// Fails when it does not parse.
    pub fn required(&self, template: &str) -> Result<BTreeMap<String, Need>, TemplateError> {
        required_names(template, self.undeclared(template)?)
            .map_err(|error| TemplateError::from(&error))
    }
}

/// Those of the names in a template that must be defined, in order, each with the use that needs it.
/// Where `default` or `is defined` looks at an attribute, the value that it is an attribute of must
/// be.
///
/// # Errors
/// Fails when it does not parse.
pub(crate) fn required_names(
    template: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<BTreeMap<String, Need>, minijinja::Error> {
    let uses = Uses::of(template)?;
    Ok(names.into_iter().filter_map(|name| uses.required(name)).collect())
}

/// The error of a template that parsed: its place is one in the bounded source, of which the lines
/// alone are the author's.
pub(super) fn while_running(error: &minijinja::Error) -> TemplateError {
    TemplateError { offset: None, ..TemplateError::from(error) }
}

/// A template that can make no more than it may, ready for [`bounded_environment`].
///
/// # Errors
/// Fails when it does not parse.
pub(crate) fn bounded_template(template: &str) -> Result<String, minijinja::Error> {
    check_chains(template)?;
    // Text without a tag makes nothing but itself.
    if !template.contains('{') {
        return Ok(template.to_owned());
    }
    rewrite::template(template)
}

/// The same of an expression.
pub(super) fn bounded_expression(expression: &str) -> Result<String, minijinja::Error> {
    rewrite::expression(expression)
}

/// Renders the template of a system prompt that includes no other file.
///
/// # Errors
/// As [`Templates::render`].
pub fn render_system(template: &str, slots: &Map<String, Value>) -> Result<String, TemplateError> {
    Templates::bare().render(template, slots)
}

/// The slots that an input gives by itself: the top-level keys of an object, else `directive`.
pub fn slots_from_prompt(prompt: &Value) -> Map<String, Value> {
    match prompt {
        Value::Object(object) => object.clone(),
        other => Map::from_iter([(DIRECTIVE.to_owned(), other.clone())]),
    }
}

/// The values for the templates of a task.
#[derive(Debug, Clone, Copy)]
pub struct TaskSlots<'a> {
    /// The task's input.
    pub input: &'a Value,
    /// The run's input.
    pub run_input: &'a Value,
    /// The run's id.
    pub run_id: &'a str,
    /// The agent's name.
    pub agent: &'a str,
    /// The attempt, from 1.
    pub attempt: u32,
}

impl TaskSlots<'_> {
    /// All slots; the fixed ones win over keys of the input with the same name.
    pub fn to_map(self) -> Map<String, Value> {
        let mut slots = slots_from_prompt(self.input);
        let run = serde_json::json!({ "input": self.run_input, "id": self.run_id });
        slots.insert("input".to_owned(), self.input.clone());
        slots.insert("run".to_owned(), run);
        slots.insert("agent".to_owned(), self.agent.into());
        slots.insert("attempt".to_owned(), self.attempt.into());
        slots
    }
}

/// The prompt of a task whose agent has no template: a string as it is, else pretty JSON.
pub fn default_prompt(input: &Value) -> String {
    match input {
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    }
}

/// Refuses what the engine's parser would overflow the stack on.
pub(super) fn check_chains(template: &str) -> Result<(), minijinja::Error> {
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(template, false, SyntaxConfig::default()) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") if in_tag == 0 => elifs += 1,
            _ => in_tag += 1,
        }
        if in_tag > MAX_TAG_TOKENS || elifs > MAX_ELIFS {
            let detail = "a tag has over 500 words and symbols, or there are over 200 `elif` tags";
            return Err(minijinja::Error::new(ErrorKind::SyntaxError, detail));
        }
    }
    Ok(())
}

/// A value as templates see it. Numbers keep their kind; whatever is in a string stays a string.
fn value(json: &Value) -> minijinja::Value {
    match json {
        Value::Null => ().into(),
        Value::Bool(truth) => (*truth).into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into(),
            (None, Some(number)) => number.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(value).collect(),
        Value::Object(map) => object(map),
    }
}

pub(super) fn object(map: &Map<String, Value>) -> minijinja::Value {
    minijinja::Value::from_pairs(map.iter().map(|(key, json)| (key.as_str(), value(json))))
}

/// A file that a template includes by a literal name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Include {
    /// The byte offset of the tag.
    pub offset: usize,
    /// The name, as it is written.
    pub name: String,
    /// True if the template renders without it: the tag says so, or is a comment or raw text, or
    /// the name is only the beginning of an expression.
    pub may_miss: bool,
}

/// The files that a template includes by a literal name.
pub(super) fn includes(template: &str) -> Vec<Include> {
    const WORDS: [&str; 4] = ["include", "import", "from", "extends"];
    /// The ends of comments and of raw text.
    const CLOSERS: [&str; 2] = ["#}", "endraw"];
    let ends_tag = |text: &str| text.trim_start_matches(['-', '+']).starts_with("%}");
    let mut found = Vec::new();
    // Up to there, tags are text. What is not closed is not looked for again.
    let (mut text_to, mut unclosed) = (0, [false; 2]);
    for (offset, _) in template.match_indices('{') {
        let tag = &template[offset..];
        let inside =
            tag.strip_prefix("{%").map(|it| it.trim_start_matches(['-', '+']).trim_start());
        let raw = inside.and_then(|it| it.strip_prefix("raw"));
        let opens = match raw.is_some_and(|it| ends_tag(it.trim_start())) {
            true => Some(1),
            false => tag.starts_with("{#").then_some(0),
        };
        if let Some(opens) = opens.filter(|opens| offset >= text_to && !unclosed[*opens]) {
            match tag[2..].find(CLOSERS[opens]) {
                Some(end) => text_to = offset + 2 + end,
                None => unclosed[opens] = true,
            }
        }
        let Some(inside) = inside else { continue };
        let word = WORDS.iter().find_map(|word| inside.strip_prefix(word));
        let Some(rest) = word.map(str::trim_start) else { continue };
        let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) else { continue };
        let Some((name, after)) = rest[1..].split_once(quote) else { continue };
        let after = after.trim_start();
        let is_whole =
            after.is_empty() || after.starts_with(char::is_alphabetic) || ends_tag(after);
        let missing = after.strip_prefix("ignore").map(str::trim_start);
        let may_miss =
            offset < text_to || !is_whole || missing.is_some_and(|it| it.starts_with("missing"));
        found.push(Include { offset, name: name.to_owned(), may_miss });
        if found.len() == MAX_INCLUDES {
            break;
        }
    }
    found
}

/// A writer that stops at [`MAX_RENDERED_BYTES`].
#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    overflowed: bool,
}

impl Write for BoundedText {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + piece.len() > MAX_RENDERED_BYTES {
            self.overflowed = true;
            return Err(io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
