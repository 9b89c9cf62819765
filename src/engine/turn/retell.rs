//! Telling a flow its past, and where it differs.
//!
//! The flow is fed the recorded inputs in their recorded order. What it asks for must be what the
//! journal says that it asked for: each scheduled step has a fingerprint. Nothing is written and
//! nothing leaves; `recover` takes a run up with it, `replay` only looks.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::run::values::input_of,
    flow::{Advance, Command, Input, NextAction, StepOp},
    journal::{Decision, Entry, Fact, Outcome, Scheduled, StepKey, fingerprint},
    lua::ScriptFlow,
    protocol::Json,
};

/// The result of a replay.
pub(crate) struct Retold {
    pub(crate) flow: ScriptFlow,
    /// The requests of the flow for steps of the journal.
    pub(crate) ops: HashMap<StepKey, StepOp>,
    /// The requests of the flow that the journal does not have, in order.
    pub(crate) fresh: Vec<Command>,
    /// The state of the flow after its last input.
    pub(crate) next: NextAction,
    /// The first step of the journal that the flow did not ask for.
    missed: Option<Box<Divergence>>,
}

/// The reason why a replay did not complete.
pub(crate) enum ReplayStop {
    /// The flow asks for something else than it did.
    Diverged(Box<Divergence>),
    /// The VM had no room; it may have, on the next try.
    Broken(String),
}

/// A step, as a flow asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AskedView {
    /// task, timer, signal, child, state, local.
    pub kind: String,
    /// The agent, signal, blueprint or operation.
    pub name: String,
    /// The question.
    #[schema(value_type = serde_json::Value)]
    pub request: Json,
}

/// The first difference between a flow and a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Divergence {
    /// One line for a person, with both sides.
    pub message: String,
    /// The step's number, where the history has it.
    pub step: Option<u32>,
    /// The step's place in the flow: its scope and index.
    pub at: Option<String>,
    /// The entry of the history at this step.
    pub recorded: Option<AskedView>,
    /// The request of the flow at this step.
    pub asked: Option<AskedView>,
}

impl Divergence {
    /// One that belongs to no step.
    pub(crate) fn of(message: impl Into<String>) -> Box<Self> {
        let message = message.into();
        Box::new(Self { message, step: None, at: None, recorded: None, asked: None })
    }

    /// A step that the flow asks for after the end of the history.
    pub(crate) fn beyond(key: &StepKey, op: &StepOp) -> Box<Self> {
        let asked = asked(op);
        Box::new(Self {
            message: format!(
                "the history ends where the flow asks for step {key}: {} {:?} with {}",
                asked.kind,
                asked.name,
                clip(asked.request.as_str())
            ),
            step: None,
            at: Some(key.to_string()),
            recorded: None,
            asked: Some(asked),
        })
    }

    fn missed(step: &Scheduled) -> Box<Self> {
        Box::new(Self {
            message: format!(
                "step {} ({} {:?}) is in the journal, and the flow does not ask for it now",
                step.key,
                step.kind.as_str(),
                step.name,
            ),
            step: Some(step.step),
            at: Some(step.key.to_string()),
            recorded: Some(recorded(step)),
            asked: None,
        })
    }

    fn changed(step: &Scheduled, op: &StepOp) -> Box<Self> {
        let asked = asked(op);
        Box::new(Self {
            message: format!(
                "step {} was {} {:?} with {}, and is {} {:?} with {} now",
                step.key,
                step.kind.as_str(),
                step.name,
                clip(step.request.as_str()),
                asked.kind,
                asked.name,
                clip(asked.request.as_str()),
            ),
            step: Some(step.step),
            at: Some(step.key.to_string()),
            recorded: Some(recorded(step)),
            asked: Some(asked),
        })
    }
}

impl Retold {
    /// Returns the outcome, if the flow requested every step that the journal has.
    ///
    /// A run that is `broken` is read again because its VM had no room: a limit that it breaks past
    /// its recorded history is its own.
    pub(crate) fn judge(self, is_active: bool, broken: bool) -> Result<Self, ReplayStop> {
        if !is_active {
            return Ok(self);
        }
        if let NextAction::Limit(failure) = &self.next
            && !(broken && self.missed.is_none())
        {
            let message = format!("a limit was hit while it was replayed: {failure}");
            return Err(ReplayStop::Diverged(Divergence::of(message)));
        }
        self.complete()
    }

    /// The same, if the flow asked for every step of the journal.
    pub(crate) fn complete(mut self) -> Result<Self, ReplayStop> {
        match self.missed.take() {
            Some(missed) => Err(ReplayStop::Diverged(missed)),
            None => Ok(self),
        }
    }
}

/// Feeds a fresh flow what happened.
pub(crate) fn retell(flow: ScriptFlow, entries: &[Entry]) -> Result<Retold, ReplayStop> {
    retell_while(flow, entries, |_| true)
}

/// The same, until `goes_on` returns false before an input.
pub(crate) fn retell_while(
    flow: ScriptFlow,
    entries: &[Entry],
    goes_on: impl Fn(&ScriptFlow) -> bool,
) -> Result<Retold, ReplayStop> {
    let mut recorded: HashMap<&StepKey, &Scheduled> = HashMap::new();
    let mut notes: HashSet<&StepKey> = HashSet::new();
    for entry in entries {
        match &entry.fact {
            // The flow asked for the whole, and knows nothing of its parts.
            Fact::StepScheduled(it) | Fact::StepRecorded(it, _) if it.whole().is_some() => {}
            Fact::StepScheduled(scheduled) | Fact::StepRecorded(scheduled, _) => {
                recorded.insert(&scheduled.key, scheduled);
            }
            Fact::Noted { key, .. } => {
                notes.insert(key);
            }
            _ => {}
        }
    }
    let mut told = Telling {
        flow,
        seen: HashSet::new(),
        recorded,
        notes,
        ops: HashMap::new(),
        fresh: Vec::new(),
        next: NextAction::Wait,
    };
    let mut keys: HashMap<u32, StepKey> = HashMap::new();
    for entry in entries {
        let input = match &entry.fact {
            Fact::RunStarted(_) => Some(Input::Start),
            Fact::StepScheduled(it) | Fact::StepRecorded(it, _) if it.whole().is_some() => None,
            Fact::StepScheduled(scheduled) => {
                keys.insert(scheduled.step, scheduled.key.clone());
                None
            }
            Fact::StepRecorded(scheduled, outcome) => {
                Some(input_of(scheduled.key.clone(), outcome.clone()))
            }
            // The engine closed it without a word to the flow.
            Fact::StepEnded { outcome: Outcome::Canceled(_), .. } => None,
            Fact::StepEnded { step, outcome, .. } => {
                keys.get(step).map(|key| input_of(key.clone(), outcome.clone()))
            }
            Fact::Decided(Decision::Compensate { .. }) => Some(Input::Compensate),
            Fact::AttemptDelivered { .. }
            | Fact::AttemptClosed(_)
            | Fact::AttemptOpened(_)
            | Fact::SignalReceived(_)
            | Fact::Noted { .. }
            | Fact::SecretAccessed { .. }
            | Fact::Decided(_)
            | Fact::RunEnded(_) => None,
        };
        if let Some(input) = input {
            if !goes_on(&told.flow) {
                break;
            }
            told.tell(input, entry.at_ms)?;
        }
    }
    Ok(told.finish())
}

/// A flow that is told its past.
struct Telling<'a> {
    flow: ScriptFlow,
    seen: HashSet<StepKey>,
    recorded: HashMap<&'a StepKey, &'a Scheduled>,
    notes: HashSet<&'a StepKey>,
    ops: HashMap<StepKey, StepOp>,
    fresh: Vec<Command>,
    next: NextAction,
}

impl Telling<'_> {
    fn tell(&mut self, input: Input, at_ms: u64) -> Result<(), ReplayStop> {
        if let Input::Completed { key, .. } | Input::Failed { key, .. } = &input
            && !self.seen.contains(key)
        {
            return Err(ReplayStop::Diverged(match self.recorded.get(key) {
                Some(step) => Divergence::missed(step),
                None => Divergence::of(format!("step {key} is in the journal next")),
            }));
        }
        if input == Input::Compensate {
            // What the flow asked for when it was stopped was never decided.
            self.fresh.clear();
            self.next = NextAction::Wait;
        }
        let mut turn = self.flow.advance(input, at_ms);
        loop {
            let Advance { commands, next } = turn;
            for command in commands {
                self.compare(command)?;
            }
            match next {
                NextAction::More => turn = self.flow.advance(Input::More, at_ms),
                NextAction::Broken(why) => return Err(ReplayStop::Broken(why)),
                NextAction::Wait => return Ok(()),
                // A limit too: live, the same one ended the run, then its end is in the journal.
                other => {
                    self.next = other;
                    return Ok(());
                }
            }
        }
    }

    fn compare(&mut self, command: Command) -> Result<(), ReplayStop> {
        match command {
            Command::Schedule(request) => {
                let key = request.key.clone();
                self.seen.insert(key.clone());
                match self.recorded.get(&key) {
                    None => self.fresh.push(Command::Schedule(request)),
                    Some(step) => {
                        let op = &request.op;
                        if fingerprint(op.kind(), op.name(), &op.request()) != step.fingerprint {
                            return Err(ReplayStop::Diverged(Divergence::changed(step, op)));
                        }
                        self.ops.insert(key, request.op);
                    }
                }
            }
            Command::Note { key, note } => {
                if !self.notes.contains(&key) {
                    self.fresh.push(Command::Note { key, note });
                }
            }
            Command::CancelScope(scope) => self.fresh.push(Command::CancelScope(scope)),
        }
        Ok(())
    }

    fn finish(self) -> Retold {
        let missed = self.recorded.values().filter(|step| !self.seen.contains(&step.key));
        let missed = missed.min_by_key(|step| step.step).map(|step| Divergence::missed(step));
        let Self { flow, ops, fresh, next, .. } = self;
        Retold { flow, ops, fresh, next, missed }
    }
}

fn recorded(step: &Scheduled) -> AskedView {
    AskedView {
        kind: step.kind.as_str().to_owned(),
        name: step.name.clone(),
        request: step.request.clone(),
    }
}

fn asked(op: &StepOp) -> AskedView {
    AskedView {
        kind: op.kind().as_str().to_owned(),
        name: op.name().to_owned(),
        request: op.request(),
    }
}

fn clip(text: &str) -> String {
    if text.chars().count() <= 200 {
        text.to_owned()
    } else {
        format!("{}…", text.chars().take(200).collect::<String>())
    }
}
