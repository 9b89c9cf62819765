//! The operator that runs the command line of a coding agent: Claude Code, Codex, Gemini, or one
//! that speaks like them.
//!
//! Owns their flags and their streams of JSON. What a child is, the process operator owns: its
//! directory, variables, environment, limits and end.

mod profile;
mod prompt;
mod settings;
mod stream;
#[cfg(test)]
mod tests;

pub(in crate::operator) use settings::AgentCliSettings;
pub(in crate::operator) use stream::Listener;

use crate::{
    environment::{Input, Scrubber},
    journal::Usage,
    operator::Task,
    protocol::{Failure, Json},
};
use profile::{Call, Permissions, Profile};

/// The command line of an agent, with the settings of its operator.
#[derive(Debug, Clone)]
pub(in crate::operator) struct AgentCli {
    profile: Profile,
    args: Vec<String>,
    model: Option<String>,
    allowed_tools: Vec<String>,
    max_turns: Option<u32>,
    permissions: Permissions,
}

/// One attempt of it.
#[derive(Debug)]
pub(in crate::operator) struct CliCall {
    /// The program and its arguments.
    pub(in crate::operator) argv: (String, Vec<String>),
    /// The text on its stdin.
    pub(in crate::operator) stdin: String,
    /// The usage of the conversation before this attempt, if it is known.
    earlier: Option<Usage>,
}

impl CliCall {
    /// Returns what the child reads.
    pub(in crate::operator) fn input(&self) -> Input<'_> {
        Input::Whole(self.stdin.as_bytes())
    }
}

impl AgentCli {
    /// Prepares the call for a task; a conversation of its session goes on.
    ///
    /// # Errors
    /// Fails when the task asks for what the program or its boundary does not permit.
    pub(in crate::operator) async fn ask(
        &self,
        task: &Task,
        input: &Json,
    ) -> Result<CliCall, Failure> {
        let agent = &*task.agent;
        self.permissions.check(task)?;
        let tools = agent.worker.as_ref().map_or(&[][..], |worker| &worker.tools);
        let tools = if tools.is_empty() { &self.allowed_tools[..] } else { tools };
        let resumed = prompt::conversation(task).await?;
        let (system, text) = prompt::texts(task, input, self.profile.has_system_flag());
        let call = Call {
            model: agent.model.as_deref().or(self.model.as_deref()),
            system: system.as_deref(),
            tools,
            turns: agent.file_turns.or(self.max_turns),
            resumed: resumed.as_ref().map(|it| it.id.as_str()),
            permissions: self.permissions,
            args: &self.args,
        };
        let argv = self.profile.argv(&call)?;
        Ok(CliCall { argv, stdin: text, earlier: resumed.and_then(|it| it.used) })
    }

    /// Returns the reader of the stream of one attempt, which passes no secret on.
    pub(in crate::operator) fn listener<'a>(
        &'a self,
        task: &'a Task,
        asked: Option<&CliCall>,
        secrets: &'a Scrubber,
    ) -> Listener<'a> {
        let earlier = asked.and_then(|asked| asked.earlier.clone()).unwrap_or_default();
        Listener::new(&self.profile, task, earlier, secrets)
    }
}
