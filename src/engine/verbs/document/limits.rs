//! The limits of a document: the same as for a run of this host.

use crate::{
    blueprint::is_name,
    engine::{
        turn::{files, state::KEY_BYTES},
        verbs::document_lines::{DocumentLine, EvidenceLine, File, Source, Value},
    },
    journal::{Entry, Fact},
    protocol::{Json, MemoryLink},
};

/// The maximum lead of the clock of a document's writer over this one.
const AHEAD_MS: u64 = 24 * 3_600_000;

/// The last millisecond of the year 9999, the latest time that the API can represent.
const LAST_MS: u64 = 253_402_300_799_999;

/// The maximum length of the name of a signal, a step, an agent or a refusal's code, in bytes.
const WORD_BYTES: usize = 200;

/// The maximum number of additions of an entry.
const ADDITIONS: usize = 64;

/// The maximum size of a refused result, in bytes.
const BODY_BYTES: usize = 8 << 20;

/// The limits that apply to every line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The maximum size of a value, in bytes.
    pub(crate) value: usize,
    /// The current time, in Unix milliseconds.
    pub(crate) now_ms: u64,
}

impl Limits {
    /// Checks one line.
    ///
    /// # Errors
    /// Fails when it exceeds a limit, or has a form that this host would not have written.
    pub(crate) fn check(&self, line: &DocumentLine) -> Result<(), String> {
        match line {
            DocumentLine::Run(_) | DocumentLine::End(_) => Ok(()),
            DocumentLine::Blueprint(Source { name, .. }) => name_of_blueprint(name),
            DocumentLine::Entry(it) => self.entry(it),
            DocumentLine::State(it) => self.state(it),
            DocumentLine::Link(it) => link(it),
            DocumentLine::Artifact(it) => self.file(it),
            DocumentLine::Evidence(it) => self.evidence(it),
        }
    }

    fn past(&self, what: &str, ms: u64) -> Result<(), String> {
        if ms > self.now_ms.saturating_add(AHEAD_MS) {
            return Err(format!("{what} is more than a day ahead of this host's clock"));
        }
        Ok(())
    }

    fn sized(&self, what: &str, value: &Json) -> Result<(), String> {
        if value.len() > self.value {
            let (size, limit) = (value.len(), self.value);
            return Err(format!("{what} has {size} bytes; {limit} are allowed"));
        }
        Ok(())
    }

    fn entry(&self, entry: &Entry) -> Result<(), String> {
        self.past("the time of an entry", entry.at_ms)?;
        if entry.additions.iter().count() > ADDITIONS {
            return Err(format!("an entry has more than {ADDITIONS} additions"));
        }
        for (name, value) in entry.additions.iter() {
            word("the name of an addition", name)?;
            self.sized("an addition of an entry", value)?;
        }
        match &entry.fact {
            Fact::RunStarted(started) => {
                name_of_blueprint(&started.blueprint)?;
                self.sized("the input of the run", &started.input)?;
                self.sized("the trigger of the run", &started.trigger)?;
                started.queued.iter().try_for_each(|(name, payload)| {
                    word("the name of a signal", name)?;
                    self.sized("the payload of a signal", payload)
                })
            }
            Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
                if step.wake_at_ms.is_some_and(|ms| ms > LAST_MS) {
                    return Err(format!("step {} waits for a time after the year 9999", step.step));
                }
                self.sized("the request of a step", &step.request)
            }
            Fact::SignalReceived(signal) => {
                word("the name of a signal", &signal.name)?;
                self.sized("the payload of a signal", &signal.payload)
            }
            Fact::AttemptOpened(_)
            | Fact::AttemptDelivered { .. }
            | Fact::AttemptClosed(_)
            | Fact::StepEnded { .. }
            | Fact::Noted { .. }
            | Fact::SecretAccessed { .. }
            | Fact::Decided(_)
            | Fact::RunEnded(_) => Ok(()),
        }
    }

    fn state(&self, it: &Value) -> Result<(), String> {
        key("a key of state", &it.key)?;
        if it.expires_ms.is_some_and(|ms| ms > LAST_MS) {
            return Err(format!("state {:?} expires after the year 9999", it.key));
        }
        self.sized(&format!("state {:?}", it.key), &it.value)
    }

    fn file(&self, it: &File) -> Result<(), String> {
        files::check_name(&it.name)?;
        self.past(&format!("the time of file {:?}", it.name), it.created_ms)?;
        // Four characters of base64 are three bytes.
        if it.data.len() / 4 * 3 > files::ARTIFACT_BYTES + 3 {
            return Err(format!(
                "file {:?} is larger than {} bytes",
                it.name,
                files::ARTIFACT_BYTES
            ));
        }
        Ok(())
    }

    fn evidence(&self, it: &EvidenceLine) -> Result<(), String> {
        word("the code of a refused result", &it.code)?;
        self.past("the time of a refused result", it.at_ms)?;
        if it.body.len() > BODY_BYTES {
            return Err(format!("a refused result is larger than {BODY_BYTES} bytes"));
        }
        Ok(())
    }
}

fn link(it: &MemoryLink) -> Result<(), String> {
    key("the key that a link leads from", &it.from_key)?;
    key("the key that a link leads to", &it.to_key)?;
    key("the relation of a link", &it.relation)
}

fn key(what: &str, key: &str) -> Result<(), String> {
    if key.is_empty() || key.len() > KEY_BYTES {
        return Err(format!("{what} has 1 to {KEY_BYTES} bytes, not {}", key.len()));
    }
    Ok(())
}

fn word(what: &str, word: &str) -> Result<(), String> {
    if word.is_empty() || word.len() > WORD_BYTES || word.chars().any(char::is_control) {
        return Err(format!("{what} has 1 to {WORD_BYTES} bytes without control characters"));
    }
    Ok(())
}

fn name_of_blueprint(name: &str) -> Result<(), String> {
    if is_name(name) {
        return Ok(());
    }
    Err(format!(
        "a blueprint's name has at most 64 letters, digits, `-`, `_` and `.`, and begins with a \
         letter or digit; {name:?} does not"
    ))
}
