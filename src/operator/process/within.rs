//! A command in an environment that is implemented in code.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    argv::{self, Templates},
    outcome::{failure_of, given_up},
    prepared::Prepared,
};
use crate::{
    environment::INHERITED,
    middleware::{Dispatched, ExecCall, taken},
    operator::{
        Delivery, HOST_KEY, Task,
        plain::{asked, failed},
    },
    protocol::{
        Content, EnvError, Environment, EnvironmentSpec, Failure, Json, OperatorInput,
        failure::kind,
    },
};

/// Has a command executed by an environment: the message is what a child would read from stdin, and
/// `metadata.moonswarm.command` has the program, its arguments, its variables and its directory.
pub(super) async fn execute(
    (environment, spec): (&dyn Environment, &EnvironmentSpec),
    task: &Task,
    input: &Json,
    prepared: &Prepared,
    call: &ExecCall,
) -> Result<Dispatched, Failure> {
    let asked = request(task, input, prepared, call)?;
    let name = task.agent.environment.as_ref().map(Json::to_value).unwrap_or_default();
    let worker = format!("environment {}", name.as_str().unwrap_or_default());
    task.reporter.delivered(Delivery { worker });
    let answered = tokio::select! {
        answered = environment.run(asked, spec) => answered,
        () = task.cancel.cancelled() => return Err(given_up()),
        () = task.reported.cancelled() => return Ok(Dispatched::Parked),
    };
    let scrubber = &prepared.scrubber;
    let mut output = answered.map_err(|error| {
        let failure = match error {
            EnvError::OperatorError(error) => failed(&error),
            error => failure_of(error),
        };
        scrubber.scrub_failure(failure)
    })?;
    if let Content::Text(text) = &output.message {
        output.message = Content::text(scrubber.scrub_text(text));
    }
    let effects = std::mem::take(&mut output.effects);
    output.effects = scrubber.scrub_value(effects).map_err(|error| {
        let message = format!("an effect has a secret where it can have none: {error}");
        Failure::new(kind::WORKER, message)
    })?;
    match taken(output, false) {
        Ok(mut done) => {
            if !scrubber.is_empty() {
                done.output = scrubber.scrub_json(&done.output);
            }
            Ok(Dispatched::Done(done))
        }
        Err(mut short) => {
            short.failure = scrubber.scrub_failure(short.failure);
            Ok(Dispatched::Short(short))
        }
    }
}

fn request(
    task: &Task,
    input: &Json,
    prepared: &Prepared,
    call: &ExecCall,
) -> Result<OperatorInput, Failure> {
    let templates = Templates::new(task, input, &prepared.bundle);
    let mut variables = templates.variables(task, &prepared.bundle, Vec::new())?;
    // What a child inherits is of this machine, unless the agent says it itself.
    variables.retain(|(name, _)| {
        !INHERITED.contains(&name.as_str()) || task.agent.env.contains_key(name)
    });
    variables.extend(prepared.variables.iter().cloned());
    let known = prepared.known.iter().map(|(name, it)| (name.clone(), it.expose().into()));
    variables.extend(known);
    let env: serde_json::Map<String, Value> = variables
        .into_iter()
        .map(|(name, value)| (name, value.to_string_lossy().into_owned().into()))
        .collect();
    let cwd = argv::directory(task, &prepared.workdir)?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut asked = asked(task, input);
    asked.message = Content::text(input.as_str());
    asked.metadata[HOST_KEY]["command"] = json!({
        "program": call.program,
        "args": call.args,
        "env": env,
        "cwd": text(cwd.as_deref().unwrap_or(&prepared.workdir)),
        "bundle": text(&prepared.bundle),
    });
    Ok(asked)
}
