//! The effects that operators and workers declare: checked as a whole, then applied in order, in the
//! commit that accepts their result.

use crate::{
    engine::{
        Checked, EngineError,
        run::{
            follows::is_follow,
            perform::Perform,
            resident::Run,
            task::OpenTask,
            values::{WORD_RULE, is_word},
        },
        settings::CustomEffects,
        turn::{
            authority, boundary, elsewhere,
            facts::{self, Turn},
            scoped::is_within,
            settle,
            state::{self, KEY_BYTES, OwnError, is_own, plain_write, run_scope, state_failure},
        },
    },
    fault,
    middleware::{ANSWER, SKIP, skips},
    protocol::{
        Effect, Failure, Json, LifecycleEvent, Lifetime, RunId, Scope, StoreOptions, failure::kind,
    },
    store::{Errand, OutboxRow, StateAct, StateChange, Write},
    token::{Need, Verb},
};

/// The most effects of one result.
const MOST: usize = 1_000;

/// The most bytes of the reason for which a task is skipped.
const REASON_BYTES: usize = 1_024;

/// The most signals of one step, in all of its accepted results.
const MOST_SIGNALS: u32 = 1 << SIGNAL_BITS;

/// The bits of an outbox key that number the signals of a step. The highest bit marks such keys, the
/// bits between hold the step.
const SIGNAL_BITS: u32 = 6;

/// The first step whose number does not fit into such a key.
const NO_SIGNALS_FROM: u32 = 1 << (31 - SIGNAL_BITS);

/// Returns the declared effects. An effect of an unknown type is a custom one, if those are stored.
pub(crate) fn decode_effects(
    effects: &[serde_json::Value],
    policy: CustomEffects,
) -> Result<Vec<Effect>, EngineError> {
    const KNOWN: [&str; 10] = [
        "write_memory",
        "delete_memory",
        "signal",
        "delegate",
        "handoff",
        "log",
        "link_memory",
        "unlink_memory",
        "tool_approval_required",
        "custom",
    ];
    let decode = |(n, value): (usize, &serde_json::Value)| {
        if let Some(effect_type) = value.get("type").and_then(serde_json::Value::as_str)
            && policy == CustomEffects::Warn
            && !KNOWN.contains(&effect_type)
        {
            let (effect_type, data) = (effect_type.to_owned(), value.clone());
            return Ok(Effect::Custom { effect_type, data });
        }
        serde_json::from_value::<Effect>(value.clone()).map_err(|error| EngineError::Invalid {
            what: Checked::Result,
            violations: vec![crate::engine::Breach {
                path: format!("$.effects[{n}]"),
                message: error.to_string(),
            }],
        })
    };
    effects.iter().enumerate().map(decode).collect()
}

/// Applies the effects of an accepted result, in their order; answers with what the journal
/// keeps of them.
///
/// All of them are looked at before the first is applied, and the changes of the run's own state, which
/// may still not fit, are the first and are made together: a refused one leaves nothing behind.
pub(crate) fn apply_effects(
    turn: &mut Turn<'_>,
    step: u32,
    effects: &[Effect],
) -> Result<Option<Json>, Failure> {
    if effects.is_empty() {
        return Ok(None);
    }
    if effects.len() > MOST {
        return Err(no(format!("a result has at most {MOST} effects")));
    }
    let follows = turn.run.task(step).and_then(|task| task.follows.as_ref());
    let mut sent = follows.map_or(0, |follows| follows.signals);
    let fresh = signals(effects);
    if sent.saturating_add(fresh) > MOST_SIGNALS {
        let message = format!("a step sends at most {MOST_SIGNALS} signals, in all of its results");
        return Err(no(message));
    }
    if fresh > 0 && step >= NO_SIGNALS_FROM {
        let message = format!("a result sends no signal from step {NO_SIGNALS_FROM} on");
        return Err(no(message));
    }
    let mut passed = Vec::with_capacity(effects.len());
    for effect in effects {
        passed.push(boundary::pass_effect(turn, effect)?);
    }
    let effects = passed.as_slice();
    for (n, effect) in effects.iter().enumerate() {
        admit(turn, step, effect).map_err(|mut failure| {
            failure.message = format!("$.effects[{n}]: {}", failure.message);
            failure
        })?;
    }
    admit_order(effects)?;
    if skips(effects) && effects.iter().any(is_follow) {
        return Err(no("a task that is skipped leaves nothing to others".to_owned()));
    }
    let kept = Json::encode(effects).map_err(|error| no(format!("keep the effects: {error}")))?;
    let mut changes: Vec<_> = effects.iter().map(change_of).collect();
    change_own_state(turn, &mut changes)?;
    for ((effect, change), place) in effects.iter().zip(changes).zip(0..) {
        apply_effect(turn, step, EffectPlace { signals: sent, place }, (effect, change))?;
        sent += u32::from(matches!(effect, Effect::Signal { .. }));
    }
    Ok(Some(kept))
}

/// Returns the number of signals among the effects of a result.
pub(crate) fn signals(effects: &[Effect]) -> u32 {
    let count = effects.iter().filter(|it| matches!(it, Effect::Signal { .. })).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn admit(turn: &Turn<'_>, step: u32, effect: &Effect) -> Result<(), Failure> {
    let name = effect_name(effect);
    let limit = turn.shared.settings.limits.value;
    let fits = |what: &str, text: &str| {
        if text.is_empty() || text.len() > KEY_BYTES {
            return Err(no(format!("{name}: {what} has 1 to {KEY_BYTES} bytes")));
        }
        Ok(())
    };
    if let Effect::WriteMemory { scope, .. }
    | Effect::DeleteMemory { scope, .. }
    | Effect::LinkMemory { scope, .. }
    | Effect::UnlinkMemory { scope, .. } = effect
        && turn.shared.lanes.is_full(&scope.to_string())
    {
        return Err(no(format!("{name}: too many changes wait for the store of {scope}")));
    }
    match effect {
        Effect::WriteMemory { scope, key, value, salience, .. } => {
            fits("a key", key)?;
            if value.to_string().len() > limit {
                return Err(no(format!("{name} {key:?}: the value is over {limit} bytes")));
            }
            if salience.is_some_and(|it| !(0.0..=1.0).contains(&it)) {
                return Err(no(format!("{name} {key:?}: salience is between 0 and 1")));
            }
            may_write(turn.run, step, scope, key, &name)
        }
        Effect::DeleteMemory { scope, key } => {
            fits("a key", key)?;
            may_write(turn.run, step, scope, key, &name)
        }
        Effect::LinkMemory { scope, link } => {
            fits("a key", &link.from_key)?;
            fits("a key", &link.to_key)?;
            fits("a relation", &link.relation)?;
            may_write(turn.run, step, scope, &link.from_key, &name)?;
            may_write(turn.run, step, scope, &link.to_key, &name)
        }
        Effect::UnlinkMemory { scope, from_key, to_key, relation } => {
            fits("a key", from_key)?;
            fits("a key", to_key)?;
            fits("a relation", relation)?;
            may_write(turn.run, step, scope, from_key, &name)?;
            may_write(turn.run, step, scope, to_key, &name)
        }
        Effect::Log { .. } => Ok(()),
        Effect::Signal { payload, .. } if !is_word(&payload.signal_type) => {
            Err(no(format!("signal: its name has {WORD_RULE}")))
        }
        Effect::Signal { payload, .. } if payload.data.to_string().len() > limit => {
            Err(no(format!("signal {:?}: the payload is over {limit} bytes", payload.signal_type)))
        }
        Effect::Signal { target, .. } => match target.to_string().parse::<RunId>() {
            Ok(to) => match authority::is_family(turn, to) {
                true => Ok(()),
                false => turn
                    .run
                    .grant
                    .check(Verb::RunSignal, &[Need::Run(to)])
                    .map_err(|error| no(error.to_string())),
            },
            Err(error) => Err(no(format!("signal: {error}"))),
        },
        Effect::Custom { effect_type, .. } if effect_type == ANSWER => Ok(()),
        Effect::Custom { effect_type, data } if effect_type == SKIP => {
            let is_short = |reason: &str| reason.len() <= REASON_BYTES;
            if data["reason"].as_str().is_some_and(is_short) {
                return Ok(());
            }
            Err(no(format!("skip: data is {{\"reason\": text}}, of at most {REASON_BYTES} bytes")))
        }
        Effect::Custom { effect_type, data }
            if LifecycleEvent::read(effect_type, data)
                .map_err(|error| no(error.to_string()))?
                .is_some() =>
        {
            Ok(())
        }
        Effect::Custom { effect_type, .. } => match turn.shared.settings.custom_effects {
            CustomEffects::Warn => Ok(()),
            CustomEffects::Error => Err(no(format!(
                "there is no effect {effect_type:?}; `effects.custom = \"warn\"` in the \
                 configuration keeps such effects with the result"
            ))),
        },
        Effect::Delegate { operator, .. } | Effect::Handoff { operator, .. } => {
            if let Some(allowed) = turn.run.task(step).and_then(allowed)
                && !allowed.iter().any(|name| name == operator.as_str())
            {
                return Err(no(format!(
                    "{name}: {operator} is none of the operators that it may call ({})",
                    allowed.join(", ")
                )));
            }
            if turn.shared.registry.get(operator.as_str()).is_none() {
                return Err(no(format!("{name}: there is no operator {operator}")));
            }
            let need = Need::Operator(turn.shared.registry.name_of(operator.as_str()));
            turn.run
                .grant
                .check(Verb::Dispatch, &[need])
                .map_err(|refusal| no(format!("{name}: {refusal}")))
        }
        Effect::ToolApprovalRequired { tool_name, .. } => fits("a tool's name", tool_name),
    }
}

/// Nothing follows a handoff: its operator has what is left.
fn admit_order(effects: &[Effect]) -> Result<(), Failure> {
    let handoff = effects.iter().position(|it| matches!(it, Effect::Handoff { .. }));
    let last = effects.iter().rposition(is_follow);
    if handoff.is_some() && handoff != last {
        return Err(no("a handoff is the last that a result leaves to others".to_owned()));
    }
    Ok(())
}

/// Returns true if an attempt may write a key: its run's own state, its operator's within the run,
/// and what the run's starter may write.
fn may_write(run: &Run, step: u32, scope: &Scope, key: &str, name: &str) -> Result<(), Failure> {
    let mine = |operator: &str| run.task(step).is_some_and(|task| *task.operator == *operator);
    let text = scope.to_string();
    let own = is_own(run, scope)
        || matches!(scope, Scope::Operator { operator, .. }
            if is_within(run, &text) && mine(operator.as_str()));
    if own {
        return Ok(());
    }
    let need = Need::State { scope: &text, key };
    run.grant
        .check(Verb::StateWrite, &[need])
        .map_err(|refusal| no(format!("{name} {key:?}: {refusal}")))
}

/// The place of an effect in its result: among all, and among the signals.
#[derive(Clone, Copy)]
struct EffectPlace {
    place: u32,
    signals: u32,
}

fn apply_effect(
    turn: &mut Turn<'_>,
    step: u32,
    at: EffectPlace,
    (effect, change): (&Effect, Option<StateChange>),
) -> Result<(), Failure> {
    fault::point("engine.effect");
    let place = (step, at.place);
    match effect {
        Effect::WriteMemory { .. }
        | Effect::DeleteMemory { .. }
        | Effect::LinkMemory { .. }
        | Effect::UnlinkMemory { .. } => match change {
            Some(change) => change_by_effect(turn, place, change),
            // It was made with the others of the run's own state.
            None => Ok(()),
        },
        Effect::Signal { target, payload } => {
            let Ok(to) = target.to_string().parse::<RunId>() else { return Ok(()) };
            let (name, payload) = (payload.signal_type.clone(), Json::from(&payload.data));
            let key = (1 << 31) | (step << SIGNAL_BITS) | at.signals;
            turn.run.pending.writes.push(Write::PutOutbox(OutboxRow {
                run: turn.run.num,
                step: key,
                to: to.num(),
                errand: Errand::Signal { name: name.clone(), payload: payload.as_str().to_owned() },
            }));
            turn.run.pending.after.performs.push(Perform::SendSignal {
                step: key,
                to: to.num(),
                name,
                payload,
            });
            Ok(())
        }
        Effect::Custom { effect_type, .. } if [ANSWER, SKIP].contains(&effect_type.as_str()) => {
            Ok(())
        }
        Effect::Custom { effect_type, data } => {
            if let Ok(Some(event)) = LifecycleEvent::read(effect_type, data) {
                settle::told(turn, Some(step), &event);
                return Ok(());
            }
            tracing::warn!(run = %turn.run.id, step, effect_type, "a custom effect was kept");
            Ok(())
        }
        // Log lines stay with the result: `show` and the steps API print them from there. What
        // is left to others follows with the next attempt.
        Effect::Log { .. }
        | Effect::Delegate { .. }
        | Effect::Handoff { .. }
        | Effect::ToolApprovalRequired { .. } => Ok(()),
    }
}

/// Returns the change of state that an effect is.
fn change_of(effect: &Effect) -> Option<StateChange> {
    let (scope, key, act) = match effect {
        Effect::WriteMemory { scope, key, value, tier, lifetime, content_kind, salience, ttl } => {
            let hints = StoreOptions {
                tier: *tier,
                lifetime: *lifetime,
                content_kind: content_kind.clone(),
                salience: *salience,
                ttl: *ttl,
            };
            (scope, key, StateAct::set(value, hints))
        }
        Effect::DeleteMemory { scope, key } => (scope, key, StateAct::Delete),
        Effect::LinkMemory { scope, link } => (scope, &link.from_key, StateAct::link(link)),
        Effect::UnlinkMemory { scope, from_key, to_key, relation } => {
            let act = StateAct::Unlink { to: to_key.clone(), relation: relation.clone() };
            (scope, from_key, act)
        }
        _ => return None,
    };
    let (scope, key) = (scope.to_string(), key.clone());
    Some(StateChange { scope, key, if_revision: None, act })
}

/// Takes the changes of the run's own state out of all, and makes them: all or none. There is room
/// for the transient values of other scopes then.
fn change_own_state(
    turn: &mut Turn<'_>,
    changes: &mut [Option<StateChange>],
) -> Result<(), Failure> {
    let state = &turn.shared.state;
    let passing = changes.iter().flatten();
    let passing: Vec<_> =
        passing.filter(|it| is_transient(it) && !state.is_foreign(&it.scope)).collect();
    state.make_room(&passing).map_err(|error| state_failure("write_memory", error))?;
    let own = run_scope(turn.run);
    let own = changes.iter_mut().filter_map(|it| it.take_if(|it| it.scope == own));
    let own: Vec<_> = own.collect();
    if own.is_empty() {
        return Ok(());
    }
    match state::change_own(turn, own) {
        Ok(_) => Ok(()),
        Err(OwnError::Limit(failure)) => Err(failure),
        Err(OwnError::Full(why)) => Err(Failure::new(kind::LIMIT, why)),
        Err(OwnError::Store(error)) => Err(state_failure("effect", error)),
    }
}

fn is_transient(change: &StateChange) -> bool {
    let transient = Some(Lifetime::Transient);
    matches!(&change.act, StateAct::Put { hints, .. } if hints.lifetime == transient)
}

/// Makes a change of a scope that is not the run's own.
fn change_by_effect(
    turn: &mut Turn<'_>,
    (step, place): (u32, u32),
    change: StateChange,
) -> Result<(), Failure> {
    let (text, key) = (change.scope.as_str(), change.key.as_str());
    let state = &turn.shared.state;
    if state.is_foreign(text) {
        // Each attempt of a step numbers its effects anew.
        let attempt = turn.run.chain.step(step).map_or(1, |step| step.attempt);
        let n = u64::from(attempt) << 32 | u64::from(place);
        elsewhere::send(turn, step, n, change);
        return Ok(());
    }
    match &change.act {
        StateAct::Put { value, hints, .. } if hints.lifetime == Some(Lifetime::Transient) => {
            return state
                .put_transient(text, key, value.clone(), hints)
                .map_err(|error| state_failure("write_memory", error));
        }
        StateAct::Put { .. } | StateAct::Delete => state.drop_transient(text, key),
        StateAct::Link { .. } | StateAct::Unlink { .. } => {}
    }
    let at_ms = facts::time_of(turn);
    turn.run.pending.writes.push(plain_write(change, at_ms));
    Ok(())
}

/// Returns the operators that the operator of an attempt may call; any if absent.
fn allowed(task: &OpenTask) -> Option<Vec<String>> {
    let passed = task.about.as_ref().and_then(|about| about.allowed());
    let passed = passed.or_else(|| task.allowed.clone());
    passed.unwrap_or_else(|| settle::own_operators(task))
}

fn no(message: String) -> Failure {
    Failure::new(kind::EFFECT, message)
}

pub(crate) fn effect_name(effect: &Effect) -> String {
    serde_json::to_value(effect)
        .ok()
        .and_then(|value| value.get("type").and_then(|t| t.as_str().map(str::to_owned)))
        .unwrap_or_else(|| "without a type".to_owned())
}

pub(crate) fn bad_effect(failure: Failure) -> EngineError {
    EngineError::Invalid {
        what: Checked::Result,
        violations: vec![crate::engine::Breach {
            path: "$.effects".into(),
            message: failure.message,
        }],
    }
}
