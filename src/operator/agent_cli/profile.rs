//! The command lines: the program, the flags and the stream of each.

use serde::Deserialize;

use crate::{
    operator::Task,
    protocol::{Failure, failure::kind},
};

/// The form of the stream on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Stream {
    /// That of `claude -p --output-format stream-json`.
    ClaudeCode,
    /// That of `codex exec --json`.
    Codex,
    /// That of `gemini --output-format stream-json`.
    Gemini,
    /// The answer itself, as text.
    Text,
}

/// The permissions of the program without asking somebody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Permissions {
    /// Those of its own configuration.
    #[default]
    Own,
    /// Also changes of files in its directory.
    AcceptEdits,
    /// Everything: only within an `environment`.
    Skip,
}

impl Permissions {
    /// Returns the word in a file.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::AcceptEdits => "accept_edits",
            Self::Skip => "skip",
        }
    }

    /// Refuses a program that may do everything and has no boundary.
    pub(super) fn check(self, task: &Task) -> Result<(), Failure> {
        if self != Self::Skip || task.agent.environment.is_some() {
            return Ok(());
        }
        let message = format!(
            "the operator {} skips permissions, and agent {} has no `environment`: name one, or set \
             permissions = \"accept-edits\"",
            task.operator, task.agent_name
        );
        Err(Failure::new(kind::REFUSED, message))
    }
}

/// The flags of a command line. `{}` in a list stands for the value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    /// The program.
    pub(super) program: String,
    /// The arguments of every call.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// The stream on stdout.
    #[serde(default = "text")]
    pub(super) stream: Stream,
    /// The arguments for a system prompt; without them it stands before the prompt.
    #[serde(default)]
    pub(super) system: Vec<String>,
    /// The arguments for a model.
    #[serde(default)]
    pub(super) model: Vec<String>,
    /// The arguments for the allowed tools, which are joined by commas.
    #[serde(default)]
    pub(super) tools: Vec<String>,
    /// The arguments for the maximum number of turns.
    #[serde(default)]
    pub(super) turns: Vec<String>,
    /// The arguments that continue a conversation, after all others but `last`: where they are a
    /// command of their own, as Codex's, it has fewer flags than the one that it belongs to.
    #[serde(default)]
    pub(super) resume: Vec<String>,
    /// The arguments that permit changes of files.
    #[serde(default)]
    pub(super) edits: Vec<String>,
    /// The arguments that permit everything.
    #[serde(default)]
    pub(super) skip: Vec<String>,
    /// The last arguments.
    #[serde(default)]
    pub(super) last: Vec<String>,
}

fn text() -> Stream {
    Stream::Text
}

/// One call of a command line.
#[derive(Debug, Default)]
pub(super) struct Call<'a> {
    pub(super) model: Option<&'a str>,
    pub(super) system: Option<&'a str>,
    pub(super) tools: &'a [String],
    pub(super) turns: Option<u32>,
    pub(super) resumed: Option<&'a str>,
    pub(super) permissions: Permissions,
    pub(super) args: &'a [String],
}

/// The names of the profiles that exist, for messages.
pub(super) const NAMES: [&str; 3] = ["claude-code", "codex", "gemini"];

impl Profile {
    /// Returns the profile with a name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let none = Vec::new;
        Some(match name {
            "claude-code" => Self {
                program: "claude".to_owned(),
                args: words(&["-p", "--output-format", "stream-json", "--verbose"]),
                stream: Stream::ClaudeCode,
                system: words(&["--append-system-prompt", "{}"]),
                model: words(&["--model", "{}"]),
                tools: words(&["--allowedTools", "{}"]),
                turns: words(&["--max-turns", "{}"]),
                resume: words(&["--resume", "{}"]),
                edits: words(&["--permission-mode", "acceptEdits"]),
                skip: words(&["--dangerously-skip-permissions"]),
                last: none(),
            },
            "codex" => Self {
                program: "codex".to_owned(),
                args: words(&["exec"]),
                stream: Stream::Codex,
                system: none(),
                model: words(&["--model", "{}"]),
                tools: none(),
                turns: none(),
                resume: words(&["resume", "{}"]),
                edits: words(&["--sandbox", "workspace-write"]),
                skip: words(&["--dangerously-bypass-approvals-and-sandbox"]),
                last: words(&["--json", "--skip-git-repo-check", "-"]),
            },
            "gemini" => Self {
                program: "gemini".to_owned(),
                args: words(&["--output-format", "stream-json"]),
                stream: Stream::Gemini,
                system: none(),
                model: words(&["--model", "{}"]),
                tools: words(&["--allowed-tools", "{}"]),
                turns: none(),
                resume: words(&["--resume", "{}"]),
                edits: words(&["--approval-mode", "auto_edit"]),
                skip: words(&["--approval-mode", "yolo"]),
                last: none(),
            },
            _ => return None,
        })
    }

    /// Returns true if the system prompt has arguments of its own.
    pub(super) fn has_system_flag(&self) -> bool {
        !self.system.is_empty()
    }

    /// Returns the program and its arguments.
    ///
    /// # Errors
    /// Fails when the program has no arguments for what the call asks, or would take a value for a
    /// flag.
    pub(super) fn argv(&self, call: &Call<'_>) -> Result<(String, Vec<String>), Failure> {
        let tools = (!call.tools.is_empty()).then(|| call.tools.join(","));
        let turns = call.turns.map(|turns| turns.to_string());
        let is = |permissions| (call.permissions == permissions).then_some("");
        let flags = [
            ("a model", &self.model, call.model),
            ("a system prompt", &self.system, call.system),
            ("a list of tools", &self.tools, tools.as_deref()),
            ("a maximum of turns", &self.turns, turns.as_deref()),
            ("changes of files", &self.edits, is(Permissions::AcceptEdits)),
            ("skipped permissions", &self.skip, is(Permissions::Skip)),
        ];
        let mut argv = self.args.clone();
        for (what, words, value) in flags {
            argv.extend(self.filled(what, words, value)?);
        }
        argv.extend(call.args.iter().cloned());
        argv.extend(self.filled("a conversation to continue", &self.resume, call.resumed)?);
        argv.extend(self.last.iter().cloned());
        Ok((self.program.clone(), argv))
    }

    /// Returns the arguments for a value, and none without one.
    fn filled(
        &self,
        what: &str,
        words: &[String],
        value: Option<&str>,
    ) -> Result<Vec<String>, Failure> {
        let Some(value) = value else { return Ok(Vec::new()) };
        let refused = |message: String| Failure::new(kind::REFUSED, message);
        if words.is_empty() {
            return Err(refused(format!("`{}` has no arguments for {what}", self.program)));
        }
        let fill = |word: &String| {
            let filled = word.replace("{}", value);
            if filled.starts_with('-') && !word.starts_with('-') {
                return Err(refused(format!(
                    "{what} may not begin with `-`, as flags of `{}` do",
                    self.program
                )));
            }
            Ok(filled)
        };
        words.iter().map(fill).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(profile: &str, call: &Call<'_>) -> Result<String, String> {
        let argv = Profile::named(profile).unwrap().argv(call);
        argv.map(|(program, args)| format!("{program} {}", args.join(" "))).map_err(|it| it.message)
    }

    #[test]
    fn each_program_gets_its_own_flags() {
        let tools = ["Read".to_owned(), "Bash(git *)".to_owned()];
        let args = ["--x".to_owned()];
        let all = Call {
            model: Some("m"),
            system: Some("Be brief."),
            tools: &tools,
            turns: Some(3),
            resumed: Some("c1"),
            permissions: Permissions::AcceptEdits,
            args: &args,
        };
        assert_eq!(
            argv("claude-code", &all).unwrap(),
            "claude -p --output-format stream-json --verbose --model m \
             --append-system-prompt Be brief. --allowedTools Read,Bash(git *) --max-turns 3 \
             --permission-mode acceptEdits --x --resume c1"
        );
        let some = Call { tools: &[], turns: None, system: None, ..all };
        assert_eq!(
            argv("codex", &some).unwrap(),
            "codex exec --model m --sandbox workspace-write --x resume c1 --json \
             --skip-git-repo-check -"
        );
        assert_eq!(
            argv("gemini", &Call { permissions: Permissions::Skip, ..some }).unwrap(),
            "gemini --output-format stream-json --model m --approval-mode yolo --x --resume c1"
        );
        let turns = Call { turns: Some(1), ..Call::default() };
        assert_eq!(
            argv("codex", &turns).unwrap_err(),
            "`codex` has no arguments for a maximum of turns"
        );
    }

    #[test]
    fn a_value_is_never_a_flag() {
        let model = Call { model: Some("--yolo"), ..Call::default() };
        let tools = ["--dangerously-skip-permissions".to_owned()];
        let tools = Call { tools: &tools, ..Call::default() };
        for (call, what) in [(&model, "a model"), (&tools, "a list of tools")] {
            let refused = argv("gemini", call).unwrap_err();
            assert_eq!(refused, format!("{what} may not begin with `-`, as flags of `gemini` do"));
        }
    }
}
