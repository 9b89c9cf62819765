//! The limits of a document: the same as for a run of this host.

use crate::{
    blueprint::is_name,
    engine::{
        run::values::{WORD_RULE, is_word},
        turn::{files, state::KEY_BYTES},
        verbs::document_lines::{
            DocumentLine, EvidenceLine, File, LAST_MS, LinkLine, Source, Value,
        },
    },
    journal::{Entry, Fact},
    protocol::Json,
    store::StateLimits,
};

/// The maximum lead of the clock of a document's writer over this one.
const AHEAD_MS: u64 = 24 * 3_600_000;

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
        within(what, value, self.value)
    }

    /// Checks a value as the journal keeps it: with the operation around it, and with the defaults
    /// of a schema.
    fn recorded(&self, what: &str, value: &Json) -> Result<(), String> {
        within(what, value, self.value.saturating_mul(2))
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
                self.recorded("the input of the run", &started.input)?;
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
                self.recorded("the request of a step", &step.request)
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
        match &it.operator {
            None => key("a key of state", &it.key)?,
            Some(name) => {
                long("the name of an operator", name)?;
                long("a key of state", &it.key)?;
            }
        }
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

fn within(what: &str, value: &Json, limit: usize) -> Result<(), String> {
    if value.len() > limit {
        let size = value.len();
        return Err(format!("{what} has {size} bytes; {limit} are allowed"));
    }
    Ok(())
}

fn link(it: &LinkLine) -> Result<(), String> {
    let ends = [
        ("the key that a link leads from", &it.from_key),
        ("the key that a link leads to", &it.to_key),
        ("the relation of a link", &it.relation),
    ];
    long("the name of an operator", it.operator.as_deref().unwrap_or_default())?;
    ends.into_iter().try_for_each(|(what, text)| long(what, text))
}

/// Checks a name, or a key of a scope that takes every key which a store takes.
fn long(what: &str, text: &str) -> Result<(), String> {
    let most = StateLimits::default().key;
    if text.len() > most {
        return Err(format!("{what} has at most {most} bytes, not {}", text.len()));
    }
    Ok(())
}

fn key(what: &str, key: &str) -> Result<(), String> {
    if key.is_empty() || key.len() > KEY_BYTES {
        return Err(format!("{what} has 1 to {KEY_BYTES} bytes, not {}", key.len()));
    }
    Ok(())
}

fn word(what: &str, word: &str) -> Result<(), String> {
    if is_word(word) {
        return Ok(());
    }
    Err(format!("{what} has {WORD_RULE}"))
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
