//! Budgets: what a run used is held against what it may use, before each dispatch.
//!
//! | is held | against |
//! |---|---|
//! | what the agent's attempts used | the agent's `budget` |
//! | what the whole run used, called runs included | the blueprint's `limits`, and what the caller had left |
//! | what all runs under a token used | the token's quotas, and those of the tokens that it was made from |
//!
//! Work in the host's own process and people use neither. Compensations are dispatched whatever was
//! used: a run that ran out of money still has to clean up.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    blueprint::{
        Budget,
        model_loop::{Target, Tool},
    },
    engine::{
        run::{resident::Run, task::OpenTask},
        turn::facts::Turn,
    },
    journal::{RunState, Usage},
    operator::Residence,
    protocol::{Failure, Json, failure::kind},
};

/// The key of a called run's trigger that has what its caller had left.
const KEY: &str = "budget";

/// Returns the reason why an attempt may not be dispatched, if a budget is used up.
pub(crate) fn over_budget(turn: &Turn<'_>, task: &OpenTask) -> Option<Failure> {
    if task.residence == Residence::Inline || *turn.run.chain.state() != RunState::Active {
        return None;
    }
    if task.asks_people || turn.shared.registry.get(&task.operator).is_none() {
        return None;
    }
    let name = task.agent.name();
    let own = task.agent.agent().budget;
    let used = if own.is_open() { Usage::default() } else { used_by(turn.run, name) };
    if let Some(what) = own.used_up(&used) {
        let data = serde_json::json!({ "agent": &**name, "budget": own, "used": used });
        let message = format!("the budget of agent {name} is used up: {what}");
        return Some(Failure::new(kind::BUDGET, message).with_data(data.into()));
    }
    run_over_budget(turn)
}

/// Returns what the attempts of an agent used. A call of a tool is charged to the tool's name, and
/// an agent can be the tool of others under several names.
fn used_by(run: &Run, name: &str) -> Usage {
    let agents = run.program.as_ref().map(|program| &program.blueprint().definition().agents);
    let loops =
        agents.into_iter().flat_map(BTreeMap::values).filter_map(|it| it.model_loop.as_ref());
    let is_it = |tool: &&Tool| matches!(&tool.target, Target::Agent(of) if of == name);
    let tools = loops.flat_map(|it| it.tools.iter().filter(is_it));
    let names: BTreeSet<&str> = tools.map(|tool| tool.name.as_str()).chain([name]).collect();
    let mut used = Usage::default();
    for spent in names.into_iter().filter_map(|name| run.chain.spent().agents.get(name)) {
        used.add(spent);
    }
    used
}

/// Returns the reason why a run may not use anything more, if its budget is used up.
pub(crate) fn run_over_budget(turn: &Turn<'_>) -> Option<Failure> {
    if turn.run.charged
        && let Some(exceeded) =
            turn.shared.accounts.over_budget(turn.run.num, turn.run.chain.spent())
    {
        return Some(exceeded.failure());
    }
    let (budget, used) = (budget_of(turn.run), &turn.run.chain.spent().total);
    let what = budget.used_up(used)?;
    let data = serde_json::json!({ "budget": budget, "used": used });
    let message = format!("the budget of the run is used up: {what}");
    Some(Failure::new(kind::BUDGET, message).with_data(data.into()))
}

/// Returns the budget of a whole run.
fn budget_of(run: &Run) -> Budget {
    let own = run.program.as_ref().map(|program| program.blueprint().definition().budget);
    own.unwrap_or_default().within(inherited(run))
}

/// Returns the rest of the caller's budget at the call.
fn inherited(run: &Run) -> Budget {
    let Some((started, _)) = run.chain.started().filter(|(started, _)| started.parent.is_some())
    else {
        return Budget::default();
    };
    let left = started.trigger.to_value().get_mut(KEY).map(serde_json::Value::take);
    left.and_then(|left| serde_json::from_value(left).ok()).unwrap_or_default()
}

/// Returns the trigger of a called run: the caller, and the rest of its budget.
pub(crate) fn trigger(run: &Run, step: u32) -> Json {
    let mut trigger = serde_json::json!({ "kind": "call", "run": run.id, "step": step });
    let budget = budget_of(run);
    if !budget.is_open() {
        trigger[KEY] = serde_json::json!(budget.left(&run.chain.spent().total));
    }
    trigger.into()
}
