//! moonswarm: a Lua-scriptable swarm host.
//!
//! A blueprint is a Lua file that declares agents and a flow. The host runs the flow durably, hands
//! its tasks to operators (a process, a person, a pull worker, a Lua function), and takes results
//! back over HTTP under capability tokens. A flow is an ordinary function, replayed from its journal
//! after a crash; the sandbox is ours, so the replay is deterministic by force and not by advice.
//!
//! ```text
//!  blueprint.lua ──check, compile──▶ Blueprint (name@hash, agents, limits)     once per version
//!                                        │ start(input)
//!                                        ▼
//!    signals, timers,           ┌───── Run ────────────────────────────┐
//!    results, cancels ────────▶ │ Input → Flow::advance → NextAction   │   pure: no IO, no clock
//!                               └────────────┬─────────────────────────┘
//!                                            ▼
//!                              journal commit, then the answer        ◀── nothing leaves before it
//!                                            ▼
//!    middleware ▶ OperatorSpawner ▶ Worker ▶ Operator: process · lua · human · queue · main_ai · http
//!                                            │
//!    its return value, or POST /v1/worker/result with a handle ──▶ back in as an Input
//! ```
//!
//! # Words
//!
//! A *blueprint* declares *agents* (roles). A *run* of it is a *flow* whose facts are *entries* of
//! a journal; their fold is the *chain* of *steps*. A step that an *operator* (a backend) executes
//! is a *task*; each try at it is an *attempt*, held by a *worker*. *Signals* come in by name.
//! *Cap tokens* and *handles* say what their bearer may do, as *verbs* within *scopes*.
//!
//! # Rooms
//!
//! Each module is a room, and uses only the rooms before it:
//!
//! | room | owns |
//! |---|---|
//! | [`protocol`] | the vocabulary, as plain data |
//! | [`journal`] | entries, and the chain that they fold into |
//! | [`flow`] | what a flow is given and what it wants next |
//! | [`token`] | who may do what: roles, scopes, keys, handles |
//! | [`blueprint`] | a bundle of source files, checked and compiled |
//! | [`lua`] | the sandbox, and the flow that is a script; nothing else knows Lua |
//! | [`middleware`] | the layers around a task |
//! | [`store`] | what is durable; nothing else knows SQL |
//! | [`environment`] | secrets by reference, and what work may reach |
//! | [`session`] | remote parties as mailboxes: seats, numbered frames, who is connected |
//! | [`operator`] | the backends, one file a kind |
//! | [`spawner`] | a worker for an attempt |
//! | [`respond`] | responses: what a model said, made from the facts of a run |
//! | [`engine`] | shards that own runs: advance, commit, perform, recover |
//! | [`door`] | what every request passes: credentials, places, rates; errors as HTTP problems |
//! | [`api`] | HTTP, one resource a file, behind the door |
//! | [`host`] | the only wiring |
//! | [`cli`] | the program, one verb a file |
//!
//! Beside them stand [`clock`] and [`tasks`], for any room that needs time or a spawn, [`memory`],
//! which counts what is held for runs, [`fault`], where tests end or break the program, and [`config`] and [`telemetry`], for the program.
//!
//! # Example
//!
//! A blueprint is checked and compiled without running anything:
//!
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
//!
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
