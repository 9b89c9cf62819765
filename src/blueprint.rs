//! From source files to a checked blueprint.
//!
//! Owns the bundle (the files, their hash), the definition that a bundle evaluates to, schemas,
//! templates, `agent.md` files and the findings of `check`. Refuses what is wrong with file, line
//! and column. Evaluating the Lua itself is the work of `lua/`, which comes back here with the
//! tree of values that the chunk returned.

pub mod agent_md;
mod allowances;
pub mod asking;
mod budget;
mod bundle;
mod check;
mod compiled;
mod compiled_loop;
mod context;
mod definition;
mod diagnostics;
mod difference;
mod duration;
mod edition;
pub mod expression;
mod file_watch;
mod flow_nodes;
mod form;
pub mod gallery;
pub mod graph;
mod graph_nodes;
mod labels;
pub mod library;
mod locate;
pub mod manual;
pub mod model_loop;
pub mod mse;
mod names;
mod ordered_loops;
mod regular;
mod schedule;
pub mod stubs;
mod template;
mod tokens;
mod tool_face;

pub use budget::{Budget, UsedUp};
pub use bundle::{Bundle, BundleError, MAX_BUNDLE_BYTES, MAX_FILE_BYTES, MAX_FILES};
pub(crate) use check::is_name;
pub use check::{Checked, Operators, check, check_files, recommend};
pub use compiled::{Blueprint, CompiledAgent, Rendered, Slots};
pub use compiled_loop::{CompiledLoop, CompiledTool, Does, StateCall, judge::LoopJudge};
pub use context::ContextNames;
pub use definition::{Agent, Definition, Missed, Retry, Trigger, TriggerEvent, WorkerBinding};
pub use diagnostics::{Finding, Position, Severity, code, did_you_mean};
pub use difference::{
    AgentChange, Change, FileChange, changed_agents, changed_files, changed_parts,
};
#[cfg(test)]
pub(crate) use duration::CASES as DURATIONS;
pub(crate) use duration::spelled as spelled_duration;
pub use duration::{DurationError, old_form, parse_duration, seconds_to_ms};
pub use edition::Edition;
pub use file_watch::{BadWatch, FileWatch};
pub use flow_nodes::{FlowNode, flow_nodes};
pub use form::{Field, Form};
pub use graph_nodes::{GraphNode, graph_nodes};
pub use labels::{BadLabels, Labels};
pub use ordered_loops::{EACH, order_loops};
pub use regular::{read_regular, read_text};
pub use schedule::{BadSchedule, Schedule};
pub use template::{
    DIRECTIVE, FIXED_SLOTS, MAX_RENDERED_BYTES, TaskSlots, TemplateError, Templates,
    default_prompt, render_system, slots_from_prompt,
};

pub use crate::schema::{MAX_VIOLATIONS, Schema, SchemaError, Violation};
pub(crate) use template::{
    begin_bounded, bounded_environment, bounded_template, charge, required_names,
};
pub use tokens::lines_without_statements;
pub use tool_face::{ClientAbility, ToolFace};
