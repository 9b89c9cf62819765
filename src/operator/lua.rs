//! The operator that calls an agent's Lua function.
//!
//! The function runs on a thread that may block, in an interpreter of its own: [`lua_calls`] is
//! that call, and a test may replace it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use serde::Deserialize;

use super::{Backend, Builtin, LuaCall, Reply, Residence, Settings, Task};
use crate::{
    lua::{TaskLimits, call_agent},
    middleware::TaskDone,
    protocol::{Failure, Json, failure::kind},
    tasks::Tasks,
};

/// The maximum number of concurrent calls.
const AT_ONCE: usize = 4;

/// Calls the agent's function with the input; its return value is the result.
#[derive(Clone)]
pub struct Lua {
    call: LuaCall,
}

impl Lua {
    /// Creates an operator that calls functions through `call`.
    pub fn new(call: LuaCall) -> Self {
        Self { call }
    }
}

impl fmt::Debug for Lua {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lua")
    }
}

#[async_trait]
impl Backend for Lua {
    fn kind(&self) -> &'static str {
        "lua"
    }

    fn residence(&self) -> Residence {
        Residence::Inline
    }

    fn is_portable(&self) -> bool {
        true
    }

    async fn execute(&self, task: Arc<Task>, input: Json) -> Result<Reply, Failure> {
        let call = (self.call)(Arc::clone(&task), input);
        let output = tokio::select! {
            biased;
            () = task.cancel.cancelled() => {
                return Err(Failure::new(kind::CANCELED, "the attempt was given up"));
            }
            output = call => output?,
        };
        Ok(Reply::Done(TaskDone { output, usage: None, effects: Vec::new() }))
    }
}

/// The settings of `kind = "lua"`, which has none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LuaSettings {}

#[async_trait]
impl Settings for LuaSettings {
    fn kind(&self) -> &'static str {
        "lua"
    }

    fn build(&self, builtin: &Builtin) -> Arc<dyn Backend> {
        Arc::new(Lua::new(Arc::clone(&builtin.lua)))
    }

    async fn inspect(&self, _builtin: &Builtin) -> Result<String, String> {
        Ok("calls the agent's `fn`".to_owned())
    }
}

/// Calls an agent's Lua function, within limits, on a thread that may block.
pub fn lua_calls(tasks: Tasks, limits: TaskLimits) -> LuaCall {
    let at_once = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    Arc::new(move |task, input| {
        let (tasks, at_once, limits) = (tasks.clone(), Arc::clone(&at_once), limits.clone());
        Box::pin(async move {
            let _place = at_once.acquire().await;
            task.reporter.begins();
            let cancel = Arc::new(AtomicBool::new(false));
            let _stop = StopOnDrop(Arc::clone(&cancel));
            let call = tasks.spawn_blocking(move || {
                let source = task.program.source();
                call_agent(source, &task.agent_name, &input, &limits, &cancel)
            });
            call.await
                .unwrap_or_else(|_| Err(Failure::new("script", "the agent's function panicked")))
        })
    })
}

/// Stops a call whose result is no longer needed.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::fixture::Attempt;

    #[tokio::test]
    async fn the_value_of_the_function_is_the_result() {
        let lua = Lua::new(Arc::new(|task, input| {
            Box::pin(
                async move { Ok(Json::from_trusted(format!("[\"{}\",{input}]", task.agent_name))) },
            )
        }));
        let reply = lua.execute(Attempt::new().task(), Json::from_trusted("7")).await.unwrap();
        let Reply::Done(done) = reply else { panic!("{reply:?}") };
        assert_eq!(done.output.as_str(), r#"["worker",7]"#);
    }

    #[tokio::test]
    async fn a_canceled_call_is_not_waited_for() {
        let lua = Lua::new(Arc::new(|_, _| Box::pin(std::future::pending())));
        let task = Attempt::new().task();
        task.cancel.cancel();
        let failure = lua.execute(task, Json::null()).await.unwrap_err();
        assert!(failure.is(kind::CANCELED), "{failure}");
    }
}
