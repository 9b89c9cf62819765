//! Creates a new run from the beginning of another one's history.
//!
//! | of the history | the copy has |
//! |---|---|
//! | steps before the given one | all of them, with their ends, including later ends |
//! | that step and everything after it | nothing: the flow requests it again |
//! | signals and notes | those before that step |
//! | pauses, cancels, the end | none |
//! | state and its links | as the kept steps left it |
//! | files | those of the kept steps |

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::engine::{
    Caller, EngineError, IdempotencyKey, Made, Program,
    shared::programs::{Programs, accept_input},
    turn::passage::Passage,
    verbs::copy::{Copy, linked},
    verbs::engine::HistoryVerbs,
};
use crate::{
    flow::StateOp,
    journal::{Decision, Entry, Fact, Outcome, RunStarted},
    lua,
    protocol::{Effect, Failure, Json, Lifetime, MemoryLink, RunId, Scope, StepKind, StoreOptions},
    store::{ArtifactRow, StateRow, Write, lay_over},
    token::Verb,
};

/// The parameters of a fork.
#[derive(Debug, Clone)]
pub struct Fork {
    /// The first step that is executed again; the number after the last step copies all of them.
    pub from_step: u32,
    /// A JSON merge patch for the input.
    pub input_patch: Option<Json>,
    /// The program to execute; the original's own version if absent.
    pub program: Option<Program>,
}

impl HistoryVerbs<'_> {
    /// Copies a run's history up to a step into a new run, which continues from there. Nothing is
    /// compensated; the original is not affected. A copy whose source or input requests other steps
    /// than the history has is paused and reports the difference.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run or step, the source has errors,
    /// or the input does not match its schema.
    pub async fn fork(
        self,
        caller: &Caller,
        run: RunId,
        fork: Fork,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        caller.may(Verb::RunFork, run)?;
        if let Some(key) = &key
            && let Some(made) = self.engine.repeated(caller, key).await?
        {
            let id = || EngineError::NotFound { what: "run", id: made.clone() };
            return self.engine.seen(caller, made.parse().map_err(|_| id())?).await;
        }
        if matches!(fork.program, Some(Program::Bundle(_))) {
            caller.grant.check(Verb::RunSource, &[])?;
        }
        self.engine.check_room()?;
        let header = self.engine.header(run).await?;
        let program = match &fork.program {
            Some(program) => self.engine.program_of(program).await?,
            None => self.engine.blueprints().program_by(header.hash).await?,
        };
        if !matches!(fork.program, Some(Program::Bundle(_))) {
            self.engine.blueprints().reach(caller, Verb::RunFork, &program).await?;
        }

        let (num, scope) = (run.num(), format!("run:{run}"));
        let (entries, state, files) = self
            .engine
            .read(move |store| {
                let state = State::of(store.state(&scope)?, store.links(&scope)?);
                Ok((store.entries(num, 0)?, state, store.artifacts(num)?))
            })
            .await?;
        let mut kept = cut(&entries, fork.from_step).map_err(|refusal| match refusal {
            Refusal::NoStep => {
                EngineError::NotFound { what: "step", id: format!("{run}/{}", fork.from_step) }
            }
            Refusal::Compensation => EngineError::BadRequest(format!(
                "fork run {run}: step {} belongs to its compensation; name one before it",
                fork.from_step
            )),
        })?;
        let shared = self.engine.shared();
        if let Some(Fact::RunStarted(started)) = kept.first_mut().map(|first| &mut first.fact) {
            if fork.program.is_some() || fork.input_patch.is_some() {
                started.input = patched(&started.input, fork.input_patch.as_ref(), &program)?;
            }
            start_anew(started, caller, &program);
        }
        let now_ms = shared.clock.now_ms();
        let at_ms = kept.last().map_or(now_ms, |last| last.at_ms.max(now_ms));
        let id = RunId::new(shared.store.next_run(), now_ms);
        let passage = Passage {
            stacks: shared.stacks.of(&program),
            run: Some(id),
            ..self.engine.stored_state().passage(&caller.subject)
        };
        let scope = format!("run:{id}");
        let state = state_at(&entries, &kept, state, &|op| passage.pass(&scope, op));
        let state = state.map_err(EngineError::Guarded)?;
        let mut writes = state.writes(&scope, at_ms)?;
        let made = files.into_iter().filter(|file| file.published && file.step < fork.from_step);
        writes.extend(made.map(|file| Write::PutArtifact(ArtifactRow { run: id.num(), ..file })));
        let copied = Decision::Copied {
            by: caller.subject.clone(),
            from: run.to_string(),
            step: Some(fork.from_step),
        };
        kept.push(Entry::new(0, at_ms, Fact::Decided(copied)));
        if matches!(fork.program, Some(Program::Bundle(_))) {
            // In the same commit as the run.
            writes.push(Programs::write_of(&program, None, now_ms));
        }
        self.put_copy(caller, Copy { id, entries: kept, writes, key }).await?;
        self.engine.seen(caller, id).await
    }
}

/// Returns the input of a fork, if the program accepts it.
fn patched(
    input: &Json,
    patch: Option<&Json>,
    program: &lua::Program,
) -> Result<Json, EngineError> {
    let mut input = input.to_value();
    if let Some(patch) = patch {
        lay_over(&mut input, &patch.to_value());
    }
    accept_input(program, &input.into())
}

/// Makes the start of a history that of a fork: a run of the caller, with this program.
fn start_anew(started: &mut RunStarted, caller: &Caller, program: &lua::Program) {
    program.blueprint().name().clone_into(&mut started.blueprint);
    program.blueprint().hash().clone_into(&mut started.hash);
    started.principal.clone_from(&caller.subject);
    started.grant = Json::encode(&caller.grant).expect("a grant is plain data");
    (started.parent, started.depth, started.generation) = (None, 0, 0);
}

/// The reason why a history cannot be cut at a step.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NoStep,
    Compensation,
}

/// Returns the part of a history that a fork from step `from` keeps.
fn cut(entries: &[Entry], from: u32) -> Result<Vec<Entry>, Refusal> {
    let scheduled = |entry: &Entry| match &entry.fact {
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => Some(step.step),
        _ => None,
    };
    let first = match entries.first().map(|entry| &entry.fact) {
        Some(Fact::RunStarted(started)) => started.first_step,
        _ => return Err(Refusal::NoStep),
    };
    let next = entries.iter().filter_map(scheduled).max().map_or(first, |last| last + 1);
    if !(first..=next).contains(&from) {
        return Err(Refusal::NoStep);
    }
    let at = entries.iter().position(|entry| scheduled(entry) == Some(from));
    let at = at.unwrap_or(entries.len());
    let compensates =
        |entry: &Entry| matches!(entry.fact, Fact::Decided(Decision::Compensate { .. }));
    // After the last step, only the flow is copied, not its compensation.
    let wound_up = entries.iter().position(compensates).unwrap_or(entries.len());
    if wound_up < at && from < next {
        return Err(Refusal::Compensation);
    }
    let at = at.min(wound_up);
    // A step that was canceled after the cut is repeated; before it, the flow itself gave it up.
    let counts = |place: usize, outcome: &Outcome| {
        place < at || (place < wound_up && !matches!(outcome, Outcome::Canceled(_)))
    };
    let before = |step: u32| step < from;
    let ended: HashSet<u32> = entries
        .iter()
        .enumerate()
        .filter_map(|(place, entry)| match &entry.fact {
            Fact::StepEnded { step, outcome, .. } if before(*step) && counts(place, outcome) => {
                Some(*step)
            }
            _ => None,
        })
        .collect();
    let keeps = |(place, entry): &(usize, &Entry)| match &entry.fact {
        Fact::RunStarted(_) => true,
        Fact::StepScheduled(step) | Fact::StepRecorded(step, _) => {
            before(step.step) && *place < wound_up
        }
        Fact::AttemptDelivered { step, .. } | Fact::SecretAccessed { step, .. } => {
            ended.contains(step)
        }
        Fact::AttemptClosed(closed) => ended.contains(&closed.step),
        Fact::AttemptOpened(opened) => ended.contains(&opened.step),
        Fact::StepEnded { step, outcome, .. } => ended.contains(step) && counts(*place, outcome),
        Fact::SignalReceived(_) | Fact::Noted { .. } => *place < at,
        Fact::Decided(decision) => {
            matches!(
                decision,
                Decision::Copied { .. } | Decision::Spent(_) | Decision::Joined { .. }
            )
        }
        Fact::RunEnded(_) => false,
    };
    Ok(entries.iter().enumerate().filter(keeps).map(|(_, entry)| entry.clone()).collect())
}

/// Returns the state as the kept entries left it. A key that no entry of the whole history wrote
/// came from elsewhere (a worker that wrote state), and keeps its current value.
///
/// The journal has the requested operations; the layers determine what was actually done.
fn state_at(
    all: &[Entry],
    kept: &[Entry],
    mut state: State,
    pass: &dyn Fn(&StateOp) -> Result<StateOp, Failure>,
) -> Result<State, Failure> {
    let (links, kept) = (links_of(all), kept.iter().map(|it| it.seq).collect::<HashSet<u32>>());
    let (mut touched, mut tied) = (BTreeSet::new(), BTreeSet::new());
    let mut done = Vec::new();
    for entry in all {
        for change in changes(entry, &links, pass)? {
            match &change {
                Change::Put { key, .. } | Change::Delete { key } => {
                    touched.insert(key.clone());
                }
                Change::Link(link) => drop(tied.insert(Tie::of(link))),
                Change::Unlink(tie) => drop(tied.insert(tie.clone())),
            }
            if kept.contains(&entry.seq) {
                done.push((change, entry.at_ms));
            }
        }
    }
    state.values.retain(|key, _| !touched.contains(key));
    state.links.retain(|tie, _| !tied.contains(tie));
    for (change, at_ms) in done {
        state.apply(change, at_ms);
    }
    Ok(state)
}

/// The state of a run: values with their hints, and links.
#[derive(Default)]
struct State {
    values: BTreeMap<String, HintedValue>,
    links: BTreeMap<Tie, MemoryLink>,
}

/// A value with its hints.
struct HintedValue {
    value: Json,
    hints: StoreOptions,
    expires_ms: Option<u64>,
}

/// The identity of a link: from, to, relation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Tie(String, String, String);

impl Tie {
    fn of(link: &MemoryLink) -> Self {
        Self(link.from_key.clone(), link.to_key.clone(), link.relation.clone())
    }
}

/// A change that an entry made to the state of the run.
enum Change {
    /// A write; without hints for a reducer, which keeps the earlier ones.
    Put {
        key: String,
        value: Json,
        hints: Option<StoreOptions>,
    },
    Delete {
        key: String,
    },
    Link(MemoryLink),
    Unlink(Tie),
}

impl State {
    fn of(rows: Vec<StateRow>, links: Vec<MemoryLink>) -> Self {
        let value = |row: StateRow| {
            let value = Json::from_trusted(row.value);
            (row.key, HintedValue { value, hints: row.hints, expires_ms: row.expires_ms })
        };
        Self {
            values: rows.into_iter().map(value).collect(),
            links: links.into_iter().map(|link| (Tie::of(&link), link)).collect(),
        }
    }

    fn apply(&mut self, change: Change, at_ms: u64) {
        match change {
            Change::Put { key, value, hints: Some(hints) } => {
                let expires_ms = hints.ttl.map(|ttl| at_ms.saturating_add(ttl.as_millis()));
                self.values.insert(key, HintedValue { value, hints, expires_ms });
            }
            Change::Put { key, value, hints: None } => {
                let fresh = || HintedValue {
                    value: Json::null(),
                    hints: StoreOptions::default(),
                    expires_ms: None,
                };
                self.values.entry(key).or_insert_with(fresh).value = value;
            }
            Change::Delete { key } => {
                // The links of a key are removed with its value.
                if self.values.remove(&key).is_some() {
                    self.links.retain(|Tie(from, to, _), _| *from != key && *to != key);
                }
            }
            Change::Link(link) => drop(self.links.insert(Tie::of(&link), link)),
            Change::Unlink(tie) => drop(self.links.remove(&tie)),
        }
    }

    /// Returns the writes that create this state for a run.
    fn writes(self, scope: &str, at_ms: u64) -> Result<Vec<Write>, EngineError> {
        let links = linked(scope, self.links.into_values().collect(), at_ms)?;
        let values = self.values.into_iter().map(|(key, kept)| Write::PutState {
            scope: scope.to_owned(),
            key,
            value: kept.value.as_str().to_owned(),
            hints: kept.hints,
            expires_ms: kept.expires_ms,
            at_ms,
        });
        Ok(values.chain(links).collect())
    }
}

/// Returns the link operations that steps requested, by step number; they are applied after the
/// commit of the step.
fn links_of(entries: &[Entry]) -> HashMap<u32, StateOp> {
    let mut asked = HashMap::new();
    for entry in entries {
        if let Fact::StepScheduled(step) = &entry.fact
            && step.kind == StepKind::State
            // A step with another scope does not concern the run's own state.
            && step.request.to_value().get("scope").is_none()
            && let Ok(op @ (StateOp::Link { .. } | StateOp::Unlink { .. })) = step.request.decode()
        {
            asked.insert(step.step, op);
        }
    }
    asked
}

/// Returns the changes that an entry made to the state of the run, in order.
fn changes(
    entry: &Entry,
    links: &HashMap<u32, StateOp>,
    pass: &dyn Fn(&StateOp) -> Result<StateOp, Failure>,
) -> Result<Vec<Change>, Failure> {
    Ok(match &entry.fact {
        Fact::StepRecorded(step, Outcome::Completed(value)) if step.kind == StepKind::State => {
            match step.request.decode::<StateOp>() {
                Ok(op) if !op.is_read() => by_flow(pass(&op)?, value).into_iter().collect(),
                _ => Vec::new(),
            }
        }
        Fact::StepEnded { step, outcome: Outcome::Completed(_), effects, .. } => {
            let link = links.get(step).map(pass).transpose()?.and_then(by_link);
            let effects: Vec<Effect> =
                effects.as_ref().and_then(|it| it.decode().ok()).unwrap_or_default();
            link.into_iter().chain(effects.into_iter().filter_map(by_effect)).collect()
        }
        _ => Vec::new(),
    })
}

fn by_flow(op: StateOp, value: &Json) -> Option<Change> {
    Some(match op {
        StateOp::Set { key, value, opts } => {
            let hints = opts.map_or_else(StoreOptions::default, |opts| opts.hints());
            stored(key, value, hints)?
        }
        StateOp::Delete { key } => Change::Delete { key },
        // Reducers return the new value.
        StateOp::Add { key, .. } | StateOp::Append { key, .. } | StateOp::Merge { key, .. } => {
            Change::Put { key, value: value.clone(), hints: None }
        }
        StateOp::Get { .. }
        | StateOp::List { .. }
        | StateOp::Search { .. }
        | StateOp::Link { .. }
        | StateOp::Unlink { .. }
        | StateOp::Traverse { .. } => return None,
    })
}

fn by_link(op: StateOp) -> Option<Change> {
    match op {
        StateOp::Link { key, to, relation, metadata } => {
            let mut link = MemoryLink::new(key, to, relation);
            link.metadata = metadata.map(|metadata| metadata.to_value());
            Some(Change::Link(link))
        }
        StateOp::Unlink { key, to, relation } => Some(Change::Unlink(Tie(key, to, relation))),
        _ => None,
    }
}

fn by_effect(effect: Effect) -> Option<Change> {
    match effect {
        Effect::WriteMemory {
            scope: Scope::Workflow(_),
            key,
            value,
            tier,
            lifetime,
            content_kind,
            salience,
            ttl,
        } => {
            let hints = StoreOptions { tier, lifetime, content_kind, salience, ttl };
            stored(key, value.into(), hints)
        }
        Effect::DeleteMemory { scope: Scope::Workflow(_), key } => Some(Change::Delete { key }),
        Effect::LinkMemory { scope: Scope::Workflow(_), link } => Some(Change::Link(link)),
        Effect::UnlinkMemory { scope: Scope::Workflow(_), from_key, to_key, relation } => {
            Some(Change::Unlink(Tie(from_key, to_key, relation)))
        }
        _ => None,
    }
}

/// Returns the change for a value that was stored; transient values never are.
fn stored(key: String, value: Json, hints: StoreOptions) -> Option<Change> {
    (hints.lifetime != Some(Lifetime::Transient)).then_some(Change::Put {
        key,
        value,
        hints: Some(hints),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_is_laid_over_member_by_member() {
        for (value, patch, merged) in [
            (
                json!({"a": 1, "b": {"c": 2}}),
                json!({"b": {"d": 3}}),
                json!({"a": 1, "b": {"c": 2, "d": 3}}),
            ),
            (json!({"a": 1, "b": 2}), json!({"a": null}), json!({"b": 2})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!("text"), json!({"a": 1}), json!({"a": 1})),
            (json!({"a": 1}), json!(7), json!(7)),
        ] {
            let mut value = value;
            lay_over(&mut value, &patch);
            assert_eq!(value, merged);
        }
    }
}
