//! Finds agent and operator of a task, and checks its input.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    blueprint::{Blueprint, CompiledAgent, Operators as _, asking},
    engine::{
        run::{model_loop::APPROVE, task::OpenTask},
        turn::{facts::Turn, seats, settle},
    },
    flow::{STARTER, TaskRequest},
    middleware::message_of,
    operator::{Backend, HUMAN, MAIN_AI},
    protocol::{Failure, Json, StepKind, failure::kind},
    schema,
};

/// Finds agent and operator of a request, and checks its input.
pub(crate) fn prepare(turn: &Turn<'_>, request: &TaskRequest) -> Result<OpenTask, Failure> {
    let Some(program) = &turn.run.program else {
        return Err(Failure::new(kind::REFUSED, "the run's blueprint cannot be loaded"));
    };
    let agent = agent_of(turn, program.blueprint(), request)?;
    let operator = operator_of(turn, request, &agent);
    let Some(backend) = turn.shared.registry.get(&operator) else {
        let message = format!("there is no operator {operator:?}");
        return Err(Failure::new(kind::OPERATOR_UNAVAILABLE, message));
    };
    if request.opts.ask.is_some() && !turn.shared.registry.is_model(&operator) {
        let message = format!("`ask` is for models, and {operator} is none");
        return Err(Failure::new(kind::INVALID_INPUT, message));
    }
    let given = input_of(request, &agent, &**backend)?;
    let stacks = settle::stacks_of(turn);
    let prepare = || stacks.dispatch.prepare(&request.agent, &operator, given.clone());
    let input = catch_unwind(AssertUnwindSafe(prepare))
        .map_err(|_| Failure::new(kind::WORKER, "a layer of the middleware panicked"))?;
    let mut request = request.clone();
    if input != given {
        request.opts.ask_instead(message_of(&input));
    }
    request.input = input;
    Ok(OpenTask::new(request, agent, operator, &**backend, turn.shared.settings.park_ms))
}

fn agent_of(
    turn: &Turn<'_>,
    blueprint: &Blueprint,
    request: &TaskRequest,
) -> Result<Arc<CompiledAgent>, Failure> {
    let tool = request.part.as_ref().and_then(|part| part.tool.as_deref());
    let registry = &turn.shared.registry;
    // Approvals are for people to give, also where another agent has that name.
    let is_in_place_of_a_person = |agent: &CompiledAgent| match &request.part {
        Some(part) => {
            part.kind == StepKind::Task
                && registry.get(agent.operator()).is_none_or(|it| !it.asks_people())
        }
        // A call of `ctx:approve` always has its title as the summary.
        None => {
            request.agent == APPROVE
                && request.opts.operator.as_deref() == Some(HUMAN)
                && request.opts.summary.is_some()
                && !registry.asks_people(agent.operator())
        }
    };
    Ok(match (blueprint.agent(&request.agent), tool) {
        (Some(agent), _) if is_in_place_of_a_person(agent) => {
            Arc::new(CompiledAgent::approval(request.opts.form.as_ref())?)
        }
        (Some(agent), _) if request.is_model_call() => Arc::new(agent.for_model()),
        (Some(agent), Some(tool)) => Arc::new(agent.with_tool(tool)),
        (Some(agent), None) => Arc::clone(agent),
        (None, _) if request.opts.form.is_some() || request.agent == APPROVE => {
            Arc::new(CompiledAgent::approval(request.opts.form.as_ref())?)
        }
        (None, _) if request.agent == "dispatch" && request.opts.operator.is_some() => {
            Arc::new(CompiledAgent::bare("dispatch", request.opts.operator.as_deref()))
        }
        (None, _) => {
            return Err(Failure::new(kind::REFUSED, blueprint.unknown_agent(&request.agent)));
        }
    })
}

fn operator_of(turn: &Turn<'_>, request: &TaskRequest, agent: &CompiledAgent) -> Arc<str> {
    match (seats::delegate_of(turn.run), &request.opts.operator) {
        (Some(delegate), _) => {
            turn.shared.sessions.operator_of(&delegate).unwrap_or_else(|| MAIN_AI.to_owned()).into()
        }
        (None, Some(name)) => Arc::from(turn.shared.registry.name_of(name)),
        (None, None) => match turn.shared.registry.name_of(agent.operator()) {
            name if name == &**agent.operator() => Arc::clone(agent.operator()),
            name => Arc::from(name),
        },
    }
}

/// Returns the input in the form of the agent's schema.
fn input_of(
    request: &TaskRequest,
    agent: &CompiledAgent,
    backend: &dyn Backend,
) -> Result<Json, Failure> {
    let invalid = |message| Failure::new(kind::INVALID_INPUT, message);
    let name = &request.agent;
    let input = agent.input().accept_json(&request.input).map_err(|violations| {
        let what = schema::first_of(&violations);
        invalid(format!("the input of agent {name} does not match its schema{what}"))
    })?;
    if backend.asks_people() {
        let asking = request.opts.asking.over(&agent.agent().asking);
        if let Some((key, what)) = asking::complaint(&asking) {
            return Err(invalid(format!("agent {name}: {key}: {what}")));
        }
        if &*request.agent == APPROVE && asking.by.iter().any(|who| STARTER.contains(&who.as_str()))
        {
            let what = "an approval never asks the starter of the run; a question of another agent \
                        of kind human may";
            return Err(invalid(format!("agent {name}: by: {what}")));
        }
    }
    Ok(input)
}
