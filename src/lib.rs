//! moonswarm: a Lua-scriptable swarm host.
//!
//! A blueprint is a Lua file that declares agents and a flow. The host runs the flow durably, hands
//! its tasks to operators (a process, a person, a pull worker, a Lua function), and takes results
//! back over HTTP under capability tokens. A flow is an ordinary function, replayed from its journal
//! after a crash; the sandbox is ours, so the replay is deterministic by force and not by advice.
//!
//! # What to use
//!
//! The crate's root has what most programs need; the rooms have the rest:
//!
//! | to | use |
//! |---|---|
//! | write an operator, a store, a layer | [`protocol`], also without the feature `host` |
//! | drive a model's tool loop yourself | [`respond::multi_step`], also without `host` |
//! | have a host in your program | [`Host`](host::Host), [`HostConfig`](host::HostConfig) |
//! | put operators, layers, environments into it | [`operator`], [`spawner`], [`middleware`], [`environment`] |
//! | start runs, signal and watch them | [`engine`] |
//! | check and compile blueprints | [`blueprint`], [`lua::Program`] |
//! | mint and read tokens | [`token`] |
//!
//! With `default-features = false` the crate is the protocol and the response loop alone: no
//! runtime, no SQL, no Lua, no HTTP. Rooms that this page does not list are public for the program
//! and its tests only, and change without notice. ARCHITECTURE.md is the map of all rooms.
//!
//! # Example
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use moonswarm::{Host, HostConfig};
//!
//! let source = r#"return require("swarm").blueprint { name = "hello",
//!   agents = { greet = { operator = "echo" } },
//!   flow = function(ctx, input) return ctx:run("greet", input) end,
//! }"#;
//! let data = tempfile::tempdir()?;
//! let host = Host::open(HostConfig::new(data.path())).await?;
//! let run = host.run(source, &"world".into()).await?;
//! assert_eq!(run.output.as_ref().map(|it| it.as_str()), Some("\"world\""));
//! host.stop(std::time::Duration::from_secs(5)).await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(clippy::disallowed_methods, clippy::unwrap_used)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod protocol;
pub mod respond;

#[doc(hidden)]
pub mod flow;
#[doc(hidden)]
pub mod journal;
#[doc(hidden)]
pub mod schema;

#[cfg(feature = "host")]
pub mod blueprint;
#[cfg(feature = "host")]
pub mod engine;
#[cfg(feature = "host")]
pub mod environment;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "host")]
pub mod lua;
#[cfg(feature = "host")]
pub mod middleware;
#[cfg(feature = "host")]
pub mod operator;
#[cfg(feature = "host")]
pub mod spawner;
#[cfg(feature = "host")]
pub mod token;

#[cfg(feature = "host")]
#[doc(hidden)]
pub mod api;
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
pub mod door;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod fault;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod memory;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod session;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod store;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod tasks;
#[cfg(feature = "host")]
#[doc(hidden)]
pub mod telemetry;

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
