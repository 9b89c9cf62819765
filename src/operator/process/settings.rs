//! `kind = "process"` in a file.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::Deserialize;

use crate::{
    environment::Text,
    operator::{Backend, Builtin, Settings, ShownSettings, declared::variables},
};

/// The settings of a process operator.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::operator) struct ProcessSettings {
    /// Variables of every child; the agent's own override them.
    #[serde(default, deserialize_with = "variables")]
    env: BTreeMap<String, Text>,
}

#[async_trait]
impl Settings for ProcessSettings {
    fn kind(&self) -> &'static str {
        "process"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(builtin.process().with_env(self.env.clone()))
    }

    fn shown(&self) -> ShownSettings {
        ShownSettings::default().variables("env", &self.env)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        for text in self.env.values() {
            text.resolve().map_err(|error| format!("failed to {error}"))?;
        }
        Ok(match self.env.len() {
            0 => "runs the agent's `command`".to_owned(),
            n => format!("runs the agent's `command` with {n} variable(s)"),
        })
    }
}
