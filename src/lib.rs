//! moonswarm: a durable, Lua-scriptable swarm host.
//!
//! A blueprint is a Lua file with agents and a flow. The host runs the flow durably, dispatches its
//! tasks to operators (a process, a person, a pull worker), and accepts results under capability
//! tokens. After a crash a flow is replayed from its journal; the sandbox makes that deterministic.
//!
//! | to | use |
//! |---|---|
//! | write an operator, a store, a layer | [`protocol`], also without the feature `host` |
//! | drive a model's tool loop yourself | [`respond::multi_step`], also without `host` |
//! | have a host in your program | [`Host`], [`HostConfig`]; [`engine`] for its runs |
//! | extend a host | [`operator`], [`spawner`], [`middleware`], [`environment`] |
//! | check and compile blueprints, mint tokens | [`blueprint`], [`lua::Program`], [`token`] |
//!
//! With `default-features = false` the crate is the protocol and the response loop, without a runtime,
//! SQL, Lua or HTTP. Other rooms are for the program and its tests: see ARCHITECTURE.md.
//!
//! # Glossary
//! - **blueprint**: a bundle of source files with agents and a flow, known by name and hash
//! - **agent**: a party that a blueprint gives tasks to: a name, their operator, and their options
//! - **flow**: the function, or table of nodes, that decides which steps come in which order
//! - **run**: one execution of a blueprint with one input; **signal**: a named message to a run
//! - **journal**: the ordered record of all facts of a run; **entry**: one record of the journal
//! - **step**: one durable operation; **chain**: the steps of a run; **replay**: running them again
//! - **task**: a step that an operator executes; **attempt**: one try at a task, numbered from 1
//! - **operator**: a backend that executes tasks; **worker**: the holder of an attempt
//! - **lease**: how long a worker holds a task in silence; **fenced**: refused for a newer one
//! - **token**: a credential with verbs and scopes; **handle**: the credential of one attempt
//! - **verb**: one permitted action; **scope**: where it applies; **grant**: the verbs and scopes
//! - **session**: a connected operator; **seat**: the place of one operator in a run
//! - **layer**: one element of the middleware; **shard**: a thread of the host that owns some runs
//!
//! # The way of a result
//! From `POST /v1/worker/result` to the batch that holds it and what follows from it:
//! 1. `door::pass::pass`: is the bearer genuine, and may it do this?
//! 2. `api::worker::result`: reads the body as a report
//! 3. `engine::verbs::workers::report`: sends it to the shard that owns the run
//! 4. `engine::shard::serve::handle`: finds the run, or loads it
//! 5. `engine::inbox::worker::worker`: is it for the open attempt, and does it fit the schema?
//! 6. `engine::turn::settle::settle`: passes it to the layers (`middleware::stack::settle`)
//! 7. `engine::turn::effects::apply_effects`: checks its effects, and applies all or none
//! 8. `engine::turn::steps::finish_step`: ends the step, and gives its value to the flow
//! 9. `engine::turn::drive::drive`: advances the flow (`lua::flow::advance`) to its next steps
//! 10. `store::queue::submit`: writes one batch; its acknowledgement is a message to the shard
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let source = r#"return require("swarm").blueprint { name = "hello",
//!   flow = function(ctx, input) return "hello " .. input end }"#;
//! let data = tempfile::tempdir()?;
//! let host = moonswarm::Host::open(moonswarm::HostConfig::new(data.path())).await?;
//! let run = host.run(source, &"world".into()).await?;
//! assert_eq!(run.output.as_ref().map(|it| it.as_str()), Some("\"hello world\""));
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(clippy::disallowed_methods, clippy::unwrap_used)]
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod api;
#[cfg(feature = "host")]
pub mod blueprint;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod clock;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod config;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod dashboard;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod door;
#[cfg(feature = "host")]
pub mod engine;
#[cfg(feature = "host")]
pub mod environment;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod fault;
#[doc(hidden)]
pub mod flow;
#[cfg(feature = "host")]
pub mod host;
#[doc(hidden)]
pub mod journal;
#[cfg(feature = "host")]
pub mod lua;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod mcp;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod memory;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod metrics;
#[cfg(feature = "host")]
pub mod middleware;
#[cfg(feature = "host")]
pub mod operator;
pub mod protocol;
pub mod respond;
#[doc(hidden)]
pub mod schema;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod session;
#[cfg(feature = "host")]
pub mod spawner;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod store;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod tasks;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod telemetry;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod testkit;
#[cfg(feature = "host")]
pub mod token;

pub use protocol::{
    Content, Effect, ExitReason, Failure, Json, Operator, OperatorConfig, OperatorError,
    OperatorInput, OperatorOutput, Orchestrator, Scope, StateReader, StateStore, TriggerType,
};

#[cfg(feature = "host")]
pub use {
    engine::{Engine, Middleware},
    host::{Host, HostConfig, HostError},
    operator::{Coded, Declared},
};
