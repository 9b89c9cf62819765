//! Finds agent and operator of a task, and checks its input.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    blueprint::{CompiledAgent, Operators as _, asking},
    engine::{
        run::task::{OpenTask, Phase},
        turn::{facts::Turn, seats, settle},
    },
    flow::TaskRequest,
    middleware::message_of,
    operator::MAIN_AI,
    protocol::{Failure, failure::kind},
};

/// Finds agent and operator of a request, and checks its input.
pub(crate) fn prepare(turn: &Turn<'_>, request: &TaskRequest) -> Result<OpenTask, Failure> {
    let Some(program) = &turn.run.program else {
        return Err(Failure::new(kind::REFUSED, "the run's blueprint cannot be loaded"));
    };
    let blueprint = program.blueprint();
    let tool = request.part.as_ref().and_then(|part| part.tool.as_deref());
    let agent = match blueprint.agent(&request.agent) {
        Some(agent) if request.is_model_call() => Arc::new(agent.for_model()),
        Some(agent) => match tool {
            Some(tool) => Arc::new(agent.with_tool(tool)),
            None => Arc::clone(agent),
        },
        None if request.opts.form.is_some() || request.agent == "approve" => {
            Arc::new(CompiledAgent::approval(request.opts.form.as_ref())?)
        }
        None if request.agent == "dispatch" && request.opts.operator.is_some() => {
            Arc::new(CompiledAgent::bare("dispatch", request.opts.operator.as_deref()))
        }
        None => {
            return Err(Failure::new(kind::REFUSED, blueprint.unknown_agent(&request.agent)));
        }
    };
    let operator = match (seats::delegate_of(turn.run), &request.opts.operator) {
        (Some(delegate), _) => {
            turn.shared.sessions.operator_of(&delegate).unwrap_or_else(|| MAIN_AI.to_owned()).into()
        }
        (None, Some(name)) => Arc::from(turn.shared.registry.name_of(name)),
        (None, None) => match turn.shared.registry.name_of(agent.operator()) {
            name if name == &**agent.operator() => Arc::clone(agent.operator()),
            name => Arc::from(name),
        },
    };
    let Some(backend) = turn.shared.registry.get(&operator) else {
        return Err(Failure::new(
            kind::OPERATOR_UNAVAILABLE,
            format!("there is no operator {operator:?}"),
        ));
    };
    if request.opts.ask.is_some() && !turn.shared.registry.is_model(&operator) {
        let message = format!("`ask` is for models, and {operator} is none");
        return Err(Failure::new(kind::INVALID_INPUT, message));
    }
    let input = agent.input().accept_json(&request.input).map_err(|violations| {
        let first = violations.first();
        let what = first.map_or_else(String::new, |v| format!(" at {}: {}", v.path, v.message));
        Failure::new(
            kind::INVALID_INPUT,
            format!("the input of agent {} does not match its schema{what}", request.agent),
        )
    })?;
    if backend.asks_people() {
        let asking = request.opts.asking.over(&agent.agent().asking);
        if let Some((key, what)) = asking::complaint(&asking) {
            let message = format!("agent {}: {key}: {what}", request.agent);
            return Err(Failure::new(kind::INVALID_INPUT, message));
        }
    }
    let retry = request.opts.retry.clone().unwrap_or_else(|| agent.agent().retry.clone());
    let stacks = settle::stacks_of(turn);
    let given = input.clone();
    let prepare = || stacks.dispatch.prepare(&request.agent, &operator, input);
    let input = catch_unwind(AssertUnwindSafe(prepare))
        .map_err(|_| Failure::new(kind::WORKER, "a layer of the middleware panicked"))?;
    let mut request = request.clone();
    if input != given {
        request.opts.ask_instead(message_of(&input));
    }
    request.input = input;
    Ok(OpenTask {
        timeout_ms: request.opts.timeout_ms.or(agent.agent().timeout_ms).or_else(|| {
            let own = backend.timeout()?;
            Some(u64::try_from(own.as_millis()).unwrap_or(u64::MAX))
        }),
        park_ms: agent
            .agent()
            .park_ms
            .or_else(|| (!backend.asks_people()).then_some(turn.shared.settings.park_ms)),
        request,
        agent,
        operator,
        residence: backend.residence(),
        redelivers: backend.redelivers(),
        asks_people: backend.asks_people(),
        holds_session: backend.holds_session(),
        retry,
        attempt: 1,
        counted: 0,
        phase: Phase::Pending,
        row: None,
        live: None,
        ran_ms: None,
        place: false,
        invalid: 0,
        reported: false,
        about: None,
        allowed: None,
        again: false,
        graces: 0,
        leasing: None,
        question: None,
        home: None,
        follows: None,
        inquiry: None,
    })
}
