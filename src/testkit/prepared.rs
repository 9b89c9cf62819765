//! The prepared data of tests and exported runs: runs, mocks, answers, and their failures.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    path::Path,
};

use serde_json::Value;

use super::{
    files::Files,
    request::{PreparedAnswer, usage},
};
use crate::{
    blueprint::Bundle,
    engine::EngineError,
    protocol::{Failure, Json, RunId},
};

/// The largest exported run, in bytes.
const DOCUMENT: u64 = 1 << 30;

/// A run of the test.
pub(super) struct Slot {
    pub(super) path: String,
    pub(super) bundle: Bundle,
    pub(super) input: Json,
    pub(super) id: Option<RunId>,
    /// True if the test saw how it stands.
    pub(super) seen: bool,
}

/// The answers of an agent.
pub(super) enum Mock {
    Always(PreparedAnswer),
    Sequence(VecDeque<PreparedAnswer>, usize),
}

impl Mock {
    /// Takes the next answer of an agent.
    pub(super) fn next(&mut self, agent: &str) -> Result<PreparedAnswer, Failure> {
        match self {
            Self::Always(given) => Ok(given.clone()),
            Self::Sequence(left, used) => {
                let Some(given) = left.pop_front() else {
                    return Err(usage(format!(
                        "the agent `{agent}` was asked once more than its {used} answers"
                    )));
                };
                *used += 1;
                Ok(given)
            }
        }
    }
}

/// The answers of a model.
pub(super) enum ModelAnswers {
    /// One of these, as the conversation goes.
    Turns(Vec<Value>),
    /// The result of this function of the test, for the request.
    Function(u32),
}

pub(super) fn json_of(value: Option<serde_json::Value>) -> Json {
    value.map_or_else(Json::null, |value| Json::from(&value))
}

pub(super) fn numbers(scope: &str) -> Vec<u64> {
    scope.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

pub(super) fn refused(error: &EngineError) -> Failure {
    match error {
        EngineError::Findings(findings) => {
            let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
            Failure::new(error.code().as_str(), lines.join("\n"))
        }
        error => Failure::new(error.code().as_str(), error.to_string()),
    }
}

/// Returns the answers of the agents of an exported run, by agent, in the order of its history.
pub(super) fn recorded(
    files: Files<'_>,
    path: &Path,
) -> Result<BTreeMap<String, VecDeque<PreparedAnswer>>, Failure> {
    let text = files
        .text(path, DOCUMENT)
        .map_err(|error| usage(format!("read {}: {error}", path.display())))?;
    let mut agents: HashMap<u64, String> = HashMap::new();
    // The steps that several people answer: each answer is there, and the last is the outcome.
    let mut several: HashSet<u64> = HashSet::new();
    let mut answers: BTreeMap<String, VecDeque<PreparedAnswer>> = BTreeMap::new();
    let mut give = |agent: &str, outcome: &serde_json::Value| {
        let given = match (outcome.get("completed"), outcome.get("failed")) {
            (Some(value), _) => {
                PreparedAnswer { value: Some(value.clone()), ..PreparedAnswer::default() }
            }
            (None, Some(failed)) => {
                let failure = serde_json::from_value(serde_json::json!({
                    "kind": failed["kind"], "message": failed["message"], "retryable": false,
                    "data": failed["data"],
                }));
                PreparedAnswer { failure: failure.ok(), ..PreparedAnswer::default() }
            }
            _ => return,
        };
        answers.entry(agent.to_owned()).or_default().push_back(given);
    };
    let number = |of: &Value| of["step"].as_u64().unwrap_or(0);
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line)
            .map_err(|error| usage(format!("{} is no export: {error}", path.display())))?;
        let fact = &line["entry"]["fact"];
        if let Some(step) = fact.get("step_scheduled").filter(|step| step["kind"] == "task") {
            let name = step["name"].as_str().unwrap_or_default().to_owned();
            agents.insert(number(step), name);
        } else if let Some(step) = fact.get("step_recorded").filter(|it| it[0]["kind"] == "task") {
            give(step[0]["name"].as_str().unwrap_or_default(), &step[1]);
        } else if let Some(answered) = fact.get("decided").and_then(|it| it.get("answered"))
            && let Some(agent) = agents.get(&number(answered))
        {
            several.insert(number(answered));
            give(agent, &serde_json::json!({ "completed": answered["output"] }));
        } else if let Some(end) = fact.get("step_ended")
            && let Some(agent) = agents.get(&number(end))
        {
            let is_known =
                several.contains(&number(end)) && end["outcome"].get("completed").is_some();
            if !is_known {
                give(agent, &end["outcome"]);
            }
        }
    }
    if answers.is_empty() {
        return Err(usage(format!("{} is no export of a run with tasks", path.display())));
    }
    Ok(answers)
}
