//! Verbs: the acts on a host, each listed once.
//!
//! Every route, frame and tool names one of them. The gate has a row for each.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// A text that is not a verb.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown verb {0:?}")]
pub struct UnknownVerb(
    /// The text, cut to 64 characters.
    pub String,
);

macro_rules! verbs {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        /// An act on the host.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Verb {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Verb {
            /// All verbs, in the order of the gate's rows.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the word that claims, the API and refusals use.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }
        }
    };
}

verbs! {
    /// Read the host: readiness, layers, the OpenAPI document.
    HostRead = "host.read",
    /// Read the effective configuration of the host, and what `doctor` finds.
    HostInspect = "host.inspect",
    /// Copy the whole database.
    HostBackup = "host.backup",
    /// Read the audit log.
    AuditRead = "audit.read",
    /// Delete old runs.
    HostGc = "host.gc",
    /// Erase everything of a person, of runs, or that contains a text.
    HostErase = "host.erase",
    /// Start a run.
    RunStart = "run.start",
    /// Run unpublished code: source, files or a flow that come with a request.
    RunSource = "run.source",
    /// Choose the working directory of a run's child processes.
    RunWorkdir = "run.workdir",
    /// Read runs, their steps and their events.
    RunRead = "run.read",
    /// Cancel a run.
    RunCancel = "run.cancel",
    /// Pause a run.
    RunPause = "run.pause",
    /// Resume a run.
    RunResume = "run.resume",
    /// Copy a run's history into a new run.
    RunFork = "run.fork",
    /// Replay a run's history without effects.
    RunReplay = "run.replay",
    /// Read the locals of a run's flow at a step.
    RunInspect = "run.inspect",
    /// Export a whole run as a document.
    RunExport = "run.export",
    /// Import a run from a document.
    RunImport = "run.import",
    /// Send a signal to a run.
    RunSignal = "run.signal",
    /// Send a query to a run's flow.
    RunQuery = "run.query",
    /// Delete an ended run.
    RunDelete = "run.delete",
    /// Store a blueprint and move its name.
    BlueprintWrite = "blueprint.write",
    /// Read blueprints and their sources.
    BlueprintRead = "blueprint.read",
    /// Check a blueprint without storing it.
    BlueprintCheck = "blueprint.check",
    /// Run tests of a blueprint, without effects.
    BlueprintTest = "blueprint.test",
    /// Pause and resume triggers.
    TriggerPause = "trigger.pause",
    /// List tasks.
    TaskList = "task.list",
    /// Read a task.
    TaskRead = "task.read",
    /// Answer a task that waits for a person.
    TaskAnswer = "task.answer",
    /// Let a task that waits for a person time out now.
    TaskExpire = "task.expire",
    /// Ask for help within an attempt; its step waits.
    TaskEscalate = "task.escalate",
    /// Answer an attempt that asked for help.
    TaskAdvise = "task.advise",
    /// Read an artifact.
    ArtifactRead = "artifact.read",
    /// Store an artifact outside a task.
    ArtifactWrite = "artifact.write",
    /// Read state.
    StateRead = "state.read",
    /// Write or delete state.
    StateWrite = "state.write",
    /// Read operators and their sessions.
    OperatorRead = "operator.read",
    /// Connect as an operator.
    SessionOpen = "session.open",
    /// Read a session and send frames over it.
    SessionRead = "session.read",
    /// Close a session.
    SessionClose = "session.close",
    /// Take an operator's seat in a run.
    SeatAcquire = "seat.acquire",
    /// Dispatch work to an operator.
    Dispatch = "dispatch",
    /// Lease tasks of a queue.
    WorkerLease = "worker.lease",
    /// Fetch a task's prompt.
    WorkerPrompt = "worker.prompt",
    /// Report a task's result.
    WorkerResult = "worker.result",
    /// Report a task's result as a raw body.
    WorkerSubmit = "worker.submit",
    /// Store an artifact of a task.
    WorkerArtifact = "worker.artifact",
    /// Report the progress of a task.
    WorkerProgress = "worker.progress",
    /// Extend the lease of a task.
    WorkerHeartbeat = "worker.heartbeat",
    /// Exchange a handle for a token that expires.
    WorkerToken = "worker.token",
    /// Read and write the state that a task may see.
    WorkerState = "worker.state",
    /// Make a narrower token.
    TokenMint = "token.mint",
    /// List tokens.
    TokenList = "token.list",
    /// Revoke a token.
    TokenRevoke = "token.revoke",
    /// Rotate the keys of tokens and handles.
    KeyRotate = "key.rotate",
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Verb {
    type Err = UnknownVerb;

    fn from_str(text: &str) -> Result<Self, UnknownVerb> {
        Self::ALL
            .iter()
            .copied()
            .find(|verb| verb.as_str() == text)
            .ok_or_else(|| UnknownVerb(text.chars().take(64).collect()))
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Verb {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_verb_is_read_from_its_own_word() {
        let words: BTreeSet<_> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
        assert_eq!(words.len(), Verb::ALL.len());
        for verb in Verb::ALL {
            assert_eq!(verb.as_str().parse(), Ok(*verb));
        }
        assert!("run.explode".parse::<Verb>().is_err());
    }

    #[test]
    fn a_verb_is_its_word_in_json() {
        assert_eq!(serde_json::to_string(&Verb::RunStart).unwrap(), r#""run.start""#);
        assert_eq!(serde_json::from_str::<Verb>(r#""dispatch""#).unwrap(), Verb::Dispatch);
    }
}
