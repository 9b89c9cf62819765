//! Agents whose operator is a model: a task of one is a loop of calls, each a step of its own in the
//! scope below the task's place.
//!
//! | happens | then |
//! |---|---|
//! | such a task is scheduled | its step opens; [`ResponseFlow`] says what begins |
//! | the model is asked | a step `model_call`; its input is made from the chain, and is not in the journal |
//! | a tool is called | a step `tool_call`: a task, state, or another loop; a refused call ends as it begins |
//! | a turn is to leave the conversation | a step `flush` writes it to state first, where the agent wants that |
//! | the last of a batch ends | in the same commit the model is asked again, or the loop ends |
//! | the loop ends, is canceled or out of time | what is still open is canceled |
//! | the run is read again | the flow is told what ended, in its order, and goes on from there |
//!
//! The flow of the run knows the task alone: a replay passes the steps of a loop over.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    blueprint::{CompiledAgent, CompiledLoop, LoopJudge, Slots, model_loop::ModelLoop},
    engine::{
        run::{model_loop::OpenLoop, resident::Run, task::OpenTask},
        shared::shards::Shared,
        turn::scoped,
    },
    flow::response::{
        Approve, Conversation, Face, Flush, LoopLimits, LoopSettings, Owner, ResponseFlow,
        message_item, user_message,
    },
    protocol::{
        CompactionPolicy, Failure, ModelAsk, OperatorConfig, Scope, SessionId, WorkflowId,
        failure::kind,
    },
};

/// The prefix of the keys of conversations, in the scope of their session.
const CONVERSATION: &str = "conversation/";

/// Returns true if a prepared task is a loop.
pub(crate) fn is_loop(shared: &Arc<Shared>, task: &OpenTask) -> bool {
    !task.request.is_model_call()
        && !task.request.lists_tools()
        && shared.registry.loops(&task.operator, task.agent.name())
}

/// A loop of a prepared task, before anything has begun.
pub(crate) fn loop_of(run: &Run, number: u32, task: OpenTask) -> Result<OpenLoop, Failure> {
    let OpenTask { request, agent, operator, .. } = task;
    let (started, _) = run.chain.started().expect("a run with a task has started");
    let program = run.program.as_ref().expect("a task is prepared with the run's program");
    let slots = Slots {
        input: &request.input,
        run_input: &started.input,
        run_id: &run.id.to_string(),
        attempt: 1,
    };
    let rendered = agent
        .render(program.blueprint(), &slots)
        .map_err(|error| Failure::new(kind::TEMPLATE, error.to_string()))?;
    let compiled = agent.model_loop().map_or_else(Default::default, Arc::clone);
    let asked = request.opts.ask.as_deref();
    let whole = request.opts.asked();
    let start = match (asked, &whole) {
        (Some(ask), _) if !ask.items.is_empty() => ask.items.clone(),
        // A dispatched message is not rendered, so that its images arrive.
        (_, Some(whole)) if agent.agent().prompt.is_none() => vec![message_item(&whole.message)],
        _ => vec![user_message(&rendered.prompt)],
    };
    let given = whole.and_then(|whole| whole.config).unwrap_or_default();
    let more = asked.and_then(|ask| ask.instructions.clone());
    let addendum = given.system_addendum.clone();
    let instructions: Vec<String> =
        rendered.system.into_iter().chain(more).chain(addendum).collect();
    let mut settings = settings(&compiled, &agent, &operator, asked)?;
    narrow(&mut settings.limits, compiled.declared(), &given);
    settings.run = run.id.to_string();
    let declared = compiled.declared().flush.as_ref();
    settings.flush = declared.map(|flush| {
        let own = Scope::Workflow(WorkflowId::new(run.id.to_string()));
        // One that there is not is refused where it is written to.
        let named = flush.scope.as_ref().and_then(|it| scoped::scope_of(run, it).ok());
        let scope = named.and_then(|it| it.parse().ok()).unwrap_or(own);
        let keys = format!("{}{}/{number}/", flush.prefix, agent.name());
        Flush { scope, keys, required: flush.required }
    });
    // A caller that brings the items has the conversation.
    let session = request.opts.session_of().filter(|_| asked.is_none());
    let longest = given.max_duration.map(|longest| longest.as_millis());
    settings.conversation = session.map(|session| Conversation {
        scope: Scope::Session(SessionId::from(session)).to_string(),
        key: format!("{CONVERSATION}{}", agent.name()),
    });
    Ok(OpenLoop {
        flush_scope: declared.and_then(|flush| flush.scope.clone()),
        flow: ResponseFlow::new(settings, start),
        max_duration_ms: compiled.declared().max_duration_ms.into_iter().chain(longest).min(),
        judge: LoopJudge::new(Arc::clone(&agent), compiled),
        instructions: (!instructions.is_empty()).then(|| instructions.join("\n\n")),
        given,
        request,
        agent,
        operator,
        recorded: 0,
        held: BTreeSet::new(),
        broken: None,
        allowed: None,
        came: 0,
        in_line: None,
        overtakes: false,
    })
}

/// Applies the limits of a call: the lower one holds where the agent declares one too.
fn narrow(limits: &mut LoopLimits, declared: &ModelLoop, given: &OperatorConfig) {
    if let Some(turns) = given.max_turns {
        limits.turns = declared.max_turns.map_or(turns, |own| own.min(turns));
    }
    limits.cost = limits.cost.into_iter().chain(given.max_cost).min();
}

/// Returns the settings of an agent's loop.
fn settings(
    compiled: &CompiledLoop,
    agent: &CompiledAgent,
    operator: &str,
    asked: Option<&ModelAsk>,
) -> Result<LoopSettings, Failure> {
    let mut tools = compiled.faces();
    let mut limits = compiled.declared().limits();
    if let Some(ask) = asked {
        limits.tool_calls = limits.tool_calls.into_iter().chain(ask.max_tool_calls).min();
        for tool in &ask.tools {
            if tools.iter().any(|own| own.tool.name == tool.name) {
                let message = format!("the tool {:?} is the agent's own", tool.name);
                return Err(Failure::new(kind::INVALID_INPUT, message));
            }
            tools.push(Face {
                tool: tool.clone(),
                owner: Owner::Caller,
                approve: Approve::Allow,
                parallel_safe: true,
                policy: CompactionPolicy::Normal,
            });
        }
    }
    Ok(LoopSettings {
        operator: operator.to_owned(),
        run: String::new(),
        flush: None,
        conversation: None,
        tools,
        servers: compiled.servers(agent.name()),
        asked: asked.is_some(),
        limits,
        compaction: compiled.declared().compaction.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_of_call_and_agent_holds() {
        let given = OperatorConfig::default().with_max_turns(4).with_max_cost(4.into());
        for (turns, cost, expected) in [
            (None, None, (4, Some(4.into()))),
            (Some(2), Some(2.into()), (2, Some(2.into()))),
            (Some(9), Some(9.into()), (4, Some(4.into()))),
        ] {
            let declared = ModelLoop { max_turns: turns, max_cost: cost, ..ModelLoop::default() };
            let mut limits = declared.limits();
            narrow(&mut limits, &declared, &given);
            assert_eq!((limits.turns, limits.cost), expected);
            let mut own = declared.limits();
            narrow(&mut own, &declared, &OperatorConfig::default());
            assert_eq!(own, declared.limits(), "a call without limits changes nothing");
        }
    }
}
