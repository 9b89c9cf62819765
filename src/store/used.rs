//! The agents and the usage of a run, as its header keeps them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::journal::Spent;

/// The agents and the usage of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Used {
    /// The usage, of all its histories.
    #[serde(skip_serializing_if = "Spent::is_empty")]
    pub spent: Spent,
    /// The agents of the tasks of its current history.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub agents: BTreeSet<String>,
}

impl Used {
    /// Parses the form of a header. What cannot be parsed is nothing.
    pub fn parse(text: Option<&str>) -> Self {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Returns the form for a header; `None` if there is nothing.
    pub fn encode(spent: &Spent, agents: &BTreeSet<String>) -> Option<String> {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            #[serde(skip_serializing_if = "Spent::is_empty")]
            spent: &'a Spent,
            #[serde(skip_serializing_if = "BTreeSet::is_empty")]
            agents: &'a BTreeSet<String>,
        }
        let there = !spent.is_empty() || !agents.is_empty();
        there.then(|| serde_json::to_string(&Borrowed { spent, agents }).expect("plain data"))
    }
}
