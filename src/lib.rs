//! moonswarm: a durable, Lua-scriptable swarm host.
//!
//! A blueprint is a Lua file with agents and a flow. The host runs the flow durably, dispatches its
//! tasks to operators (a process, a person, a pull worker), and accepts results under capability
//! tokens. After a crash a flow is replayed from its journal; the sandbox makes that deterministic.
//!
//! ```text
//!  blueprint.lua ──check, compile──▶ Blueprint (name@hash, agents, limits)     once per version
//!                                        ▼ start(input)
//!    signals, timers,           ┌───── Run ────────────────────────────┐
//!    results, cancels ────────▶ │ Input → Flow::advance → NextAction   │   pure: no IO, no clock
//!                               └────────────┬─────────────────────────┘
//!                                            ▼ journal commit         ◀── nothing leaves before it
//!    middleware ▶ OperatorSpawner ▶ Worker ▶ Operator: process · lua · human · queue · http · …
//!                                            │
//!    its return value, or POST /v1/worker/result with a handle ──▶ next Input
//! ```
//!
//! # Glossary
//! - **blueprint**: a bundle of source files with agents and a flow, known by name and hash
//! - **agent**: a role that a blueprint declares: a name, the operator of its tasks, their options
//! - **flow**: the function, or table of nodes, that decides which steps come in which order
//! - **run**: one execution of a blueprint with one input; **signal**: a named message to a run
//! - **journal**: the ordered record of all facts of a run; **entry**: one record of the journal
//! - **step**: one durable operation of a flow; **chain**: the steps that follow from the entries
//! - **replay**: executing a flow again with the results of its journal
//! - **task**: a step that an operator executes; **attempt**: one try at a task, numbered from 1
//! - **operator**: a backend that executes tasks; **worker**: the holder of an attempt
//! - **lease**: the time a pull worker has for a task; **fenced**: refused for a newer attempt
//! - **token**: a credential with verbs and scopes; **handle**: the credential of one attempt
//! - **verb**: one permitted action; **scope**: where it applies; **grant**: the verbs and scopes
//! - **session**: a connected operator; **seat**: the place of one operator in a run
//! - **layer**: one element of the middleware; **shard**: a thread of the host that owns some runs
//!
//! # Rooms
//! Each module is a room, and uses only the rooms before it; the last two rows serve all of them:
//!
//! | room | owns |
//! |---|---|
//! | [`protocol`] | the vocabulary, as plain data and traits |
//! | [`journal`] | entries, and the chain that they fold into |
//! | [`flow`] | the transition of a flow: its inputs and requests |
//! | [`token`] | authority: roles, scopes, keys, handles |
//! | [`blueprint`] | a bundle of source files, checked and compiled |
//! | [`lua`] | the sandbox, and the flow that is a script; the only room that uses Luau |
//! | [`middleware`] | the layers around a task |
//! | [`store`] | durable data; the only room that uses SQL |
//! | [`environment`] | secrets by reference, and the isolation of child processes |
//! | [`session`] | connected operators: mailboxes, seats, numbered frames |
//! | [`operator`] | the backends, one file per kind |
//! | [`spawner`] | the worker of an attempt |
//! | [`respond`] | responses and their streams, derived from the facts of a run |
//! | [`engine`] | shards that own runs: advance, commit, perform, recover |
//! | [`door`] | checks of every request: credentials, origins, rates; errors as HTTP problems |
//! | [`api`] | HTTP, one file per resource, behind the door |
//! | [`host`] | the only wiring |
//! | [`cli`] | the program, one file per command |
//! | [`clock`], [`tasks`], [`memory`], [`fault`] | time, spawns, memory accounts, fault points |
//! | [`config`], [`telemetry`] | the configuration of the program, logs |
//!
//! # Example
//! A blueprint is checked and compiled without running anything:
//! ```
//! use moonswarm::{blueprint::Bundle, host, lua::{Limits, Program}};
//!
//! let source = r#"
//!     local swarm = require("swarm")
//!     return swarm.blueprint {
//!       name = "hello",
//!       agents = { greet = { operator = "echo" } },
//!       flow = function(ctx, input) return ctx:run("greet", input) end,
//!     }
//! "#;
//! let bundle = Bundle::from_source("hello.lua", source)?;
//! let (program, warnings) =
//!     Program::compile(bundle, &host::builtin_operators(), &Limits::default()).unwrap();
//! assert!(warnings.is_empty());
//! assert_eq!(program.blueprint().name(), "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(clippy::disallowed_methods, clippy::unwrap_used)]

pub mod journal;
pub mod protocol;

pub mod flow;

pub mod token;

pub mod blueprint;

pub mod lua;

pub mod middleware;

pub mod store;

pub mod environment;

pub mod session;

pub mod operator;
pub mod spawner;

pub mod engine;
pub mod respond;

pub mod api;
pub mod door;

pub mod cli;
pub mod host;

pub mod clock;
pub mod config;
pub mod fault;
pub mod memory;
pub mod tasks;
pub mod telemetry;
