//! `kind = "agent_cli"` in a file.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    AgentCli,
    profile::{NAMES, Permissions, Profile},
};
use crate::{
    environment::Text,
    operator::{Backend, Builtin, Settings, ShownSettings, declared::variables},
};

/// The settings of an operator that runs the command line of a coding agent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::operator) struct AgentCliSettings {
    /// The command line: the name of a profile, or its flags.
    #[serde(deserialize_with = "profile")]
    profile: Profile,
    /// The program, in place of the profile's.
    program: Option<String>,
    /// Further arguments of every call.
    #[serde(default)]
    args: Vec<String>,
    /// The model, unless the agent names one.
    model: Option<String>,
    /// The tools that it may use without asking, unless the agent's `worker` has some.
    #[serde(default)]
    allowed_tools: Vec<String>,
    /// The maximum number of turns, unless the agent's file has one.
    max_turns: Option<u32>,
    /// Its permissions without asking.
    #[serde(default)]
    permissions: Permissions,
    /// Variables of every child; the agent's own override them.
    #[serde(default, deserialize_with = "variables")]
    env: BTreeMap<String, Text>,
}

fn profile<'de, D: Deserializer<'de>>(from: D) -> Result<Profile, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Name(String),
        Flags(Box<Profile>),
    }
    match Given::deserialize(from) {
        Ok(Given::Flags(profile)) => Ok(*profile),
        Ok(Given::Name(name)) => Profile::named(&name).ok_or_else(|| {
            let names = NAMES.join(", ");
            D::Error::custom(format!("there is no profile {name:?}; there are {names}"))
        }),
        Err(_) => Err(D::Error::custom(format!(
            "a profile is one of {}, or a table with `program` and the arguments: args, stream, \
             system, model, tools, turns, resume, edits, skip, last",
            NAMES.join(", ")
        ))),
    }
}

impl AgentCliSettings {
    pub(super) fn cli(&self) -> AgentCli {
        let mut profile = self.profile.clone();
        if let Some(program) = &self.program {
            profile.program.clone_from(program);
        }
        AgentCli {
            profile,
            args: self.args.clone(),
            model: self.model.clone(),
            allowed_tools: self.allowed_tools.clone(),
            max_turns: self.max_turns,
            permissions: self.permissions,
        }
    }
}

#[async_trait]
impl Settings for AgentCliSettings {
    fn kind(&self) -> &'static str {
        "agent_cli"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(builtin.process().with_env(self.env.clone()).of_cli(self.cli()))
    }

    fn shown(&self) -> ShownSettings {
        ShownSettings::default()
            .with("program", self.cli().profile.program)
            .with("args", self.args.len())
            .maybe("model", self.model.as_ref())
            .list("allowed_tools", &self.allowed_tools)
            .maybe("max_turns", self.max_turns)
            .with("permissions", self.permissions.as_str())
            .variables("env", &self.env)
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        for text in self.env.values() {
            text.resolve().map_err(|error| format!("failed to {error}"))?;
        }
        let program = self.cli().profile.program;
        let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|dir| dir.join(&program).is_file());
        match found || std::path::Path::new(&program).is_file() {
            true => Ok(format!("runs `{program}`")),
            false => Err(format!("`{program}` is not installed, or not on the host's PATH")),
        }
    }
}
