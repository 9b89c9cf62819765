//! Expressions of flow.ir as Lua: all 20 of them.

use serde_json::Value;

use super::{
    draft::Draft,
    fields::Fields,
    lua::{quote, shown},
    path,
    report::ImportError,
};

/// The type of an expression, as far as its form determines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Boolean,
    Number,
    /// A string that is written out.
    Text,
    Any,
}

/// An expression in Lua.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub text: String,
    pub kind: Type,
    /// True if it binds as tightly as a call.
    pub tight: bool,
}

impl Code {
    fn tight(text: impl Into<String>, kind: Type) -> Self {
        Self { text: text.into(), kind, tight: true }
    }

    fn loose(text: impl Into<String>, kind: Type) -> Self {
        Self { text: text.into(), kind, tight: false }
    }

    /// The text, in parentheses where an operator stands beside it.
    fn operand(&self) -> String {
        match self.tight {
            true => self.text.clone(),
            false => format!("({})", self.text),
        }
    }
}

/// Writes an expression.
pub(crate) fn expression(
    draft: &mut Draft,
    value: &Value,
    at: &str,
    depth: usize,
) -> Result<Code, ImportError> {
    draft.enter(at, depth)?;
    let fields = Fields::new(value, at)?;
    let op = fields.need_text("op")?;
    let one =
        |draft: &mut Draft, key| expression(draft, fields.need(key)?, &fields.at(key), depth + 1);
    let many = |draft: &mut Draft| -> Result<Vec<Code>, ImportError> {
        fields.need("args")?;
        let list = fields.list("args")?.iter().enumerate();
        list.map(|(index, arg)| {
            expression(draft, arg, &format!("{}[{index}]", fields.at("args")), depth + 1)
        })
        .collect()
    };
    let code = match op {
        "path" => {
            let keys = path::keys(fields.need_text("at")?, at)?;
            read(draft, &keys)
        }
        "lit" => {
            let value = fields.need("value")?;
            let text = draft.literal(value, depth + 2, at);
            match value {
                Value::Bool(_) => Code::tight(text, Type::Boolean),
                Value::String(_) => Code::tight(text, Type::Text),
                Value::Number(_) if text.starts_with('-') => Code::loose(text, Type::Number),
                Value::Number(_) if text.starts_with('"') => Code::tight(text, Type::Text),
                Value::Number(_) => Code::tight(text, Type::Number),
                Value::Null | Value::Array(_) | Value::Object(_) => Code::tight(text, Type::Any),
            }
        }
        "eq" | "ne" => {
            let (lhs, rhs) = (one(draft, "lhs")?, one(draft, "rhs")?);
            equal(draft, &lhs, &rhs, op == "eq")
        }
        "lt" | "lte" | "gt" | "gte" => {
            let (lhs, rhs) = (one(draft, "lhs")?, one(draft, "rhs")?);
            let sign = match op {
                "lt" => "<",
                "lte" => "<=",
                "gt" => ">",
                _ => ">=",
            };
            Code::loose(format!("{} {sign} {}", lhs.operand(), rhs.operand()), Type::Boolean)
        }
        "not" => {
            let arg = one(draft, "arg")?;
            Code::loose(format!("not {}", truth(draft, &arg)), Type::Boolean)
        }
        "and" | "or" => {
            let parts: Vec<_> = many(draft)?.iter().map(|arg| truth(draft, arg)).collect();
            match parts.as_slice() {
                [] => Code::tight(if op == "and" { "true" } else { "false" }, Type::Boolean),
                [part] => Code::tight(part.clone(), Type::Boolean),
                parts => Code::loose(parts.join(&format!(" {op} ")), Type::Boolean),
            }
        }
        "exists" => {
            let arg = one(draft, "arg")?;
            draft.helpers.uses("exists");
            let text = format!("exists(function() return {} end)", arg.text);
            Code::tight(text, Type::Boolean)
        }
        "add" | "sub" | "mul" | "div" | "mod" => {
            let (left, right) = (one(draft, "lhs")?, one(draft, "rhs")?);
            let lhs = number(draft, &left, "number");
            let (sign, rhs) = match op {
                "add" => ("+", number(draft, &right, "number")),
                "sub" => ("-", number(draft, &right, "number")),
                "mul" => ("*", number(draft, &right, "number")),
                "div" => ("/", number(draft, &right, "divisor")),
                _ => ("%", number(draft, &right, "divisor")),
            };
            Code::loose(format!("{lhs} {sign} {rhs}"), Type::Number)
        }
        "len" => {
            let arg = one(draft, "arg")?;
            draft.helpers.uses("len");
            Code::tight(format!("len({})", arg.text), Type::Number)
        }
        "in" => {
            let (needle, haystack) = (one(draft, "needle")?, one(draft, "haystack")?);
            draft.helpers.uses("contains");
            Code::tight(format!("contains({}, {})", haystack.text, needle.text), Type::Boolean)
        }
        "call_extern" => {
            let name = fields.need_text("ref")?;
            let args: Vec<_> = many(draft)?.into_iter().map(|arg| arg.text).collect();
            draft.externs.insert(name.to_owned());
            let what = format!(
                "write the function {} in `externs`: it was one of the host's own",
                shown(name)
            );
            draft.report.decide(at, what);
            Code::tight(format!("externs[{}]({})", quote(name), args.join(", ")), Type::Any)
        }
        other => {
            return Err(ImportError::new(at, format!("unknown expression {}", shown(other))));
        }
    };
    fields.done()?;
    Ok(code)
}

/// Reads a path of the document.
fn read(draft: &mut Draft, keys: &[String]) -> Code {
    if keys.is_empty() {
        return Code::tight("doc", Type::Any);
    }
    draft.helpers.uses("get");
    Code::tight(format!("get(doc{})", path::arguments(keys)), Type::Any)
}

fn equal(draft: &mut Draft, lhs: &Code, rhs: &Code, positive: bool) -> Code {
    // Plain values are the same in Lua and in JSON; tables are compared by what they hold.
    if lhs.kind != Type::Any || rhs.kind != Type::Any {
        let sign = if positive { "==" } else { "~=" };
        return Code::loose(format!("{} {sign} {}", lhs.operand(), rhs.operand()), Type::Boolean);
    }
    draft.helpers.uses("same");
    let text = format!("same({}, {})", lhs.text, rhs.text);
    match positive {
        true => Code::tight(text, Type::Boolean),
        false => Code::loose(format!("not {text}"), Type::Boolean),
    }
}

/// An operand that counts as true unless it is false or null.
fn truth(draft: &mut Draft, code: &Code) -> String {
    if code.kind == Type::Boolean {
        return code.operand();
    }
    draft.helpers.uses("truthy");
    format!("truthy({})", code.text)
}

fn number(draft: &mut Draft, code: &Code, check: &'static str) -> String {
    let written_out = code.text.starts_with(|c: char| ('1'..='9').contains(&c));
    let is_safe = check == "number" || code.tight && written_out;
    if code.kind == Type::Number && is_safe {
        return code.operand();
    }
    draft.helpers.uses(check);
    format!("{check}({})", code.text)
}

/// Writes a condition that ends a loop: anything but false and null is true.
pub(crate) fn condition(
    draft: &mut Draft,
    value: &Value,
    at: &str,
    depth: usize,
) -> Result<String, ImportError> {
    let code = expression(draft, value, at, depth)?;
    if code.kind == Type::Boolean {
        return Ok(code.operand());
    }
    draft.helpers.uses("truthy");
    Ok(format!("truthy({})", code.text))
}

/// Writes the condition of a branch, which is true or false and nothing else.
pub(crate) fn decision(
    draft: &mut Draft,
    value: &Value,
    at: &str,
    depth: usize,
) -> Result<String, ImportError> {
    let code = expression(draft, value, at, depth)?;
    if code.kind == Type::Boolean {
        return Ok(code.text);
    }
    draft.helpers.uses("boolean");
    Ok(format!("boolean({})", code.text))
}

/// Reads the path that a node writes to: a `path` expression.
pub(crate) fn target(value: &Value, at: &str) -> Result<Vec<String>, ImportError> {
    let fields = Fields::new(value, at)?;
    if fields.need_text("op")? != "path" {
        return Err(ImportError::new(at, "only a path can be written to"));
    }
    let keys = path::keys(fields.need_text("at")?, at)?;
    fields.done()?;
    Ok(keys)
}
