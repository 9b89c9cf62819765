//! Expressions and slots of flows that are tables.
//!
//! Owns what a string of such a flow means: a string that is one `{{ expression }}` is the value of
//! that expression and keeps its type, any other with tags is rendered to text, and a condition is
//! an expression by itself. It is minijinja as in prompts, with less fuel, since it runs where the
//! flow does. The checker asks for the names, the sandbox for the values.

use std::{borrow::Cow, collections::BTreeSet, sync::LazyLock};

use minijinja::{
    Environment,
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
    value::ValueKind,
};
use serde_json::{Map, Value};

use super::template::{
    TemplateError, Templates, begin_bounded, bounded_expression, check_chains, object,
    required_names, while_running,
};

/// Steps of the interpreter in one expression: a few milliseconds.
const FUEL: u64 = 125_000;

/// The maximum depth of a value, and the maximum number of parts per level.
const DEEPEST: usize = 100;
const MOST_ITEMS: usize = 100_000;

/// The interpretation of a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// As text with slots, or as one slot that keeps its type.
    Slots,
    /// As an expression; one `{{ }}` around it is allowed.
    Expression,
    /// As an expression that is true or false.
    Condition,
}

static SHARED: LazyLock<Templates> = LazyLock::new(|| Templates::with_fuel(FUEL));

/// Returns true if a string has anything to be put in.
pub fn has_slots(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

/// The names that a string looks up, with the attributes of those that are looked up plainly
/// (`plan.steps`), in order.
///
/// # Errors
/// Fails when it does not parse.
pub fn names(text: &str, reading: Reading) -> Result<BTreeSet<String>, TemplateError> {
    match expression_in(text, reading) {
        None => SHARED.undeclared(text),
        Some(expression) => {
            let environment = checked(expression)?;
            let bounded =
                bounded_expression(expression).map_err(|error| TemplateError::from(&error))?;
            let parsed =
                environment.compile_expression(&bounded).map_err(|error| while_running(&error))?;
            let globals: BTreeSet<_> = environment.globals().map(|(name, _)| name).collect();
            let mut names: BTreeSet<_> = parsed.undeclared_variables(true).into_iter().collect();
            names.retain(|name| !globals.contains(name.split('.').next().unwrap_or(name)));
            Ok(names)
        }
    }
}

/// Those of the names that must be defined: neither `default` nor `is defined` looks at them.
///
/// # Errors
/// Fails when it does not parse.
pub(super) fn required(text: &str, reading: Reading) -> Result<BTreeSet<String>, TemplateError> {
    let template: Cow<'_, str> = match expression_in(text, reading) {
        None => text.into(),
        Some(expression) => format!("{{{{ {expression} }}}}").into(),
    };
    let required = required_names(&template, names(text, reading)?);
    required.map(|it| it.into_keys().collect()).map_err(|error| TemplateError::from(&error))
}

/// Evaluates a string with these slots.
///
/// # Errors
/// Fails when it does not parse, uses what is not there, or breaks a limit.
pub fn evaluate(
    text: &str,
    reading: Reading,
    slots: &Map<String, Value>,
) -> Result<Value, TemplateError> {
    let Some(expression) = expression_in(text, reading) else {
        return SHARED.render(text, slots).map(Value::from);
    };
    let environment = checked(expression)?;
    let source = match path(expression) {
        // A look at what is there makes nothing.
        Some(_) => Cow::Borrowed(expression),
        None => bounded_expression(expression).map_err(|error| TemplateError::from(&error))?.into(),
    };
    begin_bounded();
    let value = environment
        .compile_expression(&source)
        .and_then(|parsed| parsed.eval(object(slots)))
        .map_err(|error| while_running(&error))?;
    if value.is_undefined() {
        return Err(bare("there is nothing where it looks"));
    }
    if reading == Reading::Condition {
        return Ok(value.is_true().into());
    }
    json(&value, 0)
}

/// A value of the interpreter as JSON.
fn json(value: &minijinja::Value, depth: usize) -> Result<Value, TemplateError> {
    if depth > DEEPEST {
        return Err(bare("the value is nested too deep"));
    }
    Ok(match value.kind() {
        ValueKind::Undefined | ValueKind::None => Value::Null,
        ValueKind::Bool => value.is_true().into(),
        ValueKind::Number => match (i64::try_from(value.clone()), f64::try_from(value.clone())) {
            (Ok(whole), _) if value.is_integer() => whole.into(),
            (_, Ok(number)) => serde_json::Number::from_f64(number)
                .map(Value::Number)
                .ok_or_else(|| bare("the result is not a finite number"))?,
            (_, Err(error)) => return Err(TemplateError::from(&error)),
        },
        ValueKind::String => value.as_str().unwrap_or_default().into(),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter().map_err(|error| TemplateError::from(&error))?;
            let items = items.take(MOST_ITEMS).map(|item| json(&item, depth + 1));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        ValueKind::Map => {
            let keys = value.try_iter().map_err(|error| TemplateError::from(&error))?;
            let mut map = Map::new();
            for key in keys.take(MOST_ITEMS) {
                let part = value.get_item(&key).map_err(|error| TemplateError::from(&error))?;
                map.insert(key.to_string(), json(&part, depth + 1)?);
            }
            Value::Object(map)
        }
        other => return Err(bare(&format!("{other} cannot be a value of a flow"))),
    })
}

/// The expression that a string is: all of it, or what stands in its only slot.
pub(super) fn expression_in(text: &str, reading: Reading) -> Option<&str> {
    match only_slot(text) {
        Some(inside) => Some(inside),
        None if reading == Reading::Slots => None,
        None => Some(text),
    }
}

/// The expression as a plain path of names, if it is one.
pub(super) fn path(expression: &str) -> Option<&str> {
    let path = expression.trim();
    let path = path.strip_prefix("{{").and_then(|it| it.strip_suffix("}}")).unwrap_or(path).trim();
    let name =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    path.split('.').all(name).then_some(path)
}

/// Returns the text between the braces of a string that is exactly one slot.
fn only_slot(text: &str) -> Option<&str> {
    let inside = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let mut starts = 0;
    for token in tokenize(text.trim(), false, SyntaxConfig::default()) {
        match token.ok()?.0 {
            Token::VariableStart => starts += 1,
            Token::TemplateData(_) | Token::BlockStart => return None,
            _ => {}
        }
    }
    (starts == 1).then(|| inside.trim_matches('-').trim())
}

fn checked(expression: &str) -> Result<&'static Environment<'static>, TemplateError> {
    // The parser's own stack is at stake, as in templates; braces make tags of it.
    check_chains(&format!("{{{{ {expression} }}}}"))
        .map_err(|error| TemplateError::from(&error))?;
    Ok(SHARED.environment())
}

fn bare(message: &str) -> TemplateError {
    TemplateError { file: None, line: None, offset: None, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slots() -> Map<String, Value> {
        let slots = json!({
            "plan": { "steps": ["a", "b"], "cost": 2.5 }, "n": 3, "none": null, "text": "{{ n }}",
        });
        slots.as_object().unwrap().clone()
    }

    fn value(text: &str) -> Value {
        evaluate(text, Reading::Slots, &slots()).unwrap()
    }

    #[test]
    fn one_slot_keeps_its_type_and_anything_else_is_text() {
        assert_eq!(value("{{ plan.steps }}"), json!(["a", "b"]));
        assert_eq!(value(" {{- n + 1 -}} "), json!(4));
        assert_eq!(value("{{ plan }}"), json!({"steps": ["a", "b"], "cost": 2.5}));
        assert_eq!(value("{{ none }}"), json!(null));
        assert_eq!(value("{{ n }} of {{ n }}"), json!("3 of 3"));
        assert_eq!(value("{% if n > 2 %}many{% endif %}"), json!("many"));
        assert_eq!(value("{{ {'a': n} }}"), json!({"a": 3}));
        assert_eq!(value("plain"), json!("plain"));
        assert_eq!(value("{{ text }}"), json!("{{ n }}"), "what is put in is not rendered again");
    }

    #[test]
    fn a_condition_is_an_expression_with_or_without_braces() {
        let holds = |text| evaluate(text, Reading::Condition, &slots()).unwrap();
        assert_eq!(holds("plan.steps | length == 2 and not none"), json!(true));
        assert_eq!(holds("{{ n > 5 }}"), json!(false));
        assert_eq!(holds("plan.steps"), json!(true));
    }

    #[test]
    fn what_is_not_there_does_not_parse_or_never_ends_is_an_error() {
        for text in ["{{ nothing }}", "{{ plan.stps }}", "{{ n + }}", "{{ n "] {
            assert!(evaluate(text, Reading::Slots, &slots()).is_err(), "{text}");
        }
        let long = format!("{{{{ {} }}}}", vec!["n"; 400].join("+"));
        assert!(evaluate(&long, Reading::Slots, &slots()).is_err());
        let busy = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
        assert!(evaluate(busy, Reading::Slots, &slots()).is_err());
    }

    #[test]
    fn the_names_are_those_from_outside() {
        let of = |text, reading| names(text, reading).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(of("{{ plan.steps }} {{ n }}", Reading::Slots), ["n", "plan.steps"]);
        assert_eq!(of("range(n)", Reading::Expression), ["n"]);
        assert_eq!(of("plan.steps[:n]", Reading::Expression), ["n", "plan"]);
        assert_eq!(of("{{ (plan.steps | list)[0][1:] }}", Reading::Slots), ["plan"]);
        assert_eq!(of("(n ~ [plan.cost])[:2]", Reading::Expression), ["n", "plan"]);
        assert_eq!(of("{% for x in n %}{{ x[1:] }}{% endfor %}", Reading::Slots), ["n"]);
        assert!(names("n ==", Reading::Condition).is_err());
        let of = |text, reading| required(text, reading).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(of("{{ a | d }} {{ n }}", Reading::Slots), ["n"]);
        assert_eq!(of("{{ a.b.c | default('') }}", Reading::Slots), ["a.b"]);
        assert_eq!(of("a is defined and a.b == {'n': n}", Reading::Condition), ["n"]);
    }
}
