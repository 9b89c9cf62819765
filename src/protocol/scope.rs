//! Scopes of state, and their text form in stores, tokens and paths.
//!
//! `global`, `run:<id>`, `session:<id>`, `operator:<run>:<operator>`, `custom:<name>`. Within an
//! id, every byte except ASCII letters, digits, `-`, `_` and `.` is percent-encoded, so that each
//! scope has one text of its own, without slashes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{OperatorId, SessionId, WorkflowId};

/// The scope of a key of state; part of the key, and isolated from every other scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// One conversation.
    Session(SessionId),
    /// One execution of a flow.
    Workflow(WorkflowId),
    /// One operator within one execution of a flow.
    Operator {
        /// The execution.
        workflow: WorkflowId,
        /// The operator.
        operator: OperatorId,
    },
    /// The whole host.
    Global,
    /// A custom scope.
    Custom(String),
}

/// The error for a text that is not a scope of state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "read {0:?} as a scope of state: it is global, run:<id>, session:<id>, \
     operator:<run>:<operator> or custom:<name>, with other characters than letters, digits, \
     \"-\", \"_\" and \".\" percent-encoded"
)]
pub struct ScopeTextError(
    /// The text, cut to 128 characters.
    pub String,
);

/// A part of the text form, percent-encoded.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                    write!(f, "{}", char::from(byte))?;
                }
                other => write!(f, "%{other:02X}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(f, "session:{}", Encoded(id.as_str())),
            Self::Workflow(id) => write!(f, "run:{}", Encoded(id.as_str())),
            Self::Operator { workflow, operator } => {
                write!(f, "operator:{}:{}", Encoded(workflow.as_str()), Encoded(operator.as_str()))
            }
            Self::Global => f.write_str("global"),
            Self::Custom(name) => write!(f, "custom:{}", Encoded(name)),
        }
    }
}

impl FromStr for Scope {
    type Err = ScopeTextError;

    fn from_str(text: &str) -> Result<Self, ScopeTextError> {
        let scope = read(text).filter(|scope| scope.to_string() == text);
        scope.ok_or_else(|| ScopeTextError(text.chars().take(128).collect()))
    }
}

fn read(text: &str) -> Option<Scope> {
    let mut parts = text.split(':');
    let (word, first, second) = (parts.next()?, parts.next(), parts.next());
    if parts.next().is_some() {
        return None;
    }
    Some(match (word, first, second) {
        ("global", None, None) => Scope::Global,
        ("run", Some(id), None) => Scope::Workflow(WorkflowId::new(decode(id)?)),
        ("session", Some(id), None) => Scope::Session(SessionId::new(decode(id)?)),
        ("custom", Some(name), None) => Scope::Custom(decode(name)?),
        ("operator", Some(workflow), Some(operator)) => Scope::Operator {
            workflow: WorkflowId::new(decode(workflow)?),
            operator: OperatorId::new(decode(operator)?),
        },
        _ => return None,
    })
}

fn decode(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let hex = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn operator(workflow: &str, operator: &str) -> Scope {
        Scope::Operator { workflow: workflow.into(), operator: operator.into() }
    }

    #[test]
    fn a_scope_is_read_back_from_its_text_and_no_two_share_one() {
        let odd = ["", "a", "a:b", "a/b", "%2F", "*", "ü", "a b", "\n", "global", "b:c"];
        let mut scopes = vec![Scope::Global];
        for one in odd {
            scopes.push(Scope::Session(one.into()));
            scopes.push(Scope::Workflow(one.into()));
            scopes.push(Scope::Custom(one.into()));
            scopes.extend(odd.map(|other| operator(one, other)));
        }
        let texts: BTreeSet<String> = scopes.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), scopes.len());
        for scope in &scopes {
            let text = scope.to_string();
            assert_eq!(text.parse().as_ref(), Ok(scope));
            assert!(!text.contains('/') && !text.contains('*'), "{text}");
        }
        assert_eq!(operator("run_1", "main-ai").to_string(), "operator:run_1:main-ai");
        assert_eq!(Scope::Custom("a/b".into()).to_string(), "custom:a%2Fb");
    }

    #[test]
    fn a_scope_has_one_text() {
        for text in
            ["", "Global", "run", "run:a:b", "custom:a/b", "custom:%61", "custom:%2f", "x:y"]
        {
            let error = text.parse::<Scope>().unwrap_err();
            assert!(error.to_string().contains("custom:<name>"), "{error}");
        }
    }
}
