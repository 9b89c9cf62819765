//! The state of a fork: what its kept entries left.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    engine::{EngineError, verbs::copy::linked},
    flow::StateOp,
    journal::{Entry, Fact, Outcome},
    protocol::{Effect, Failure, Json, Lifetime, MemoryLink, Scope, StepKind, StoreOptions},
    store::{StateRow, Write},
};

/// Returns the state as the kept entries left it. A key that no entry of the whole history wrote
/// came from elsewhere (a worker that wrote state), and keeps its current value.
///
/// The journal has the requested operations; the layers determine what was actually done.
pub(super) fn state_at(
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
pub(super) struct State {
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
    pub(super) fn of(rows: Vec<StateRow>, links: Vec<MemoryLink>) -> Self {
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
    pub(super) fn writes(self, scope: &str, at_ms: u64) -> Result<Vec<Write>, EngineError> {
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
