//! `kind = "composite"` in a file.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::Composite;
use crate::{
    flow::{Rule, ValuePath},
    operator::{Backend, Builtin, Settings, ShownSettings},
};

/// The settings of a composite.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Keys")]
pub(in crate::operator) struct CompositeSettings(Composite);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    rule: Word,
    members: Vec<String>,
    agree: Option<u32>,
    path: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Fallback,
    Race,
    Quorum,
    RoundRobin,
}

impl TryFrom<Keys> for CompositeSettings {
    type Error = String;

    fn try_from(keys: Keys) -> Result<Self, String> {
        let Keys { rule, members, agree, path } = keys;
        if rule != Word::Quorum && (agree.is_some() || path.is_some()) {
            return Err("`agree` and `path` are only for rule = \"quorum\"".to_owned());
        }
        let rule = match rule {
            Word::Fallback => Rule::Fallback,
            Word::Race => Rule::Race,
            Word::RoundRobin => Rule::RoundRobin,
            Word::Quorum => Rule::Quorum {
                agree: agree.ok_or("a quorum needs the key `agree`: how many must say the same")?,
                path: match path {
                    None => ValuePath::default(),
                    Some(path) => path.parse().map_err(|error| format!("failed to {error}"))?,
                },
            },
        };
        Composite::new(rule, members).map(Self).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Settings for CompositeSettings {
    fn kind(&self) -> &'static str {
        "composite"
    }

    fn build(&self, _builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    fn composite(&self) -> Option<&Composite> {
        Some(&self.0)
    }

    fn shown(&self) -> ShownSettings {
        ShownSettings::default().with("rule", self.0.describe())
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        Ok(format!("is a {}", self.0.describe()))
    }
}
