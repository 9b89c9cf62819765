//! The fields of a blueprint version that a list shows. They are small, so that many more of them are
//! kept than compiled programs: a list of a thousand blueprints compiles none. They are stored with the
//! name, so that a start compiles none either.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    blueprint::{ToolFace, Trigger},
    lua::Program,
    protocol::Json,
};

/// The maximum size of a stored record, in bytes. What is larger is compiled again.
const LONGEST: usize = 16 << 10;
/// The version of the records; those of another one are not read.
const FORMAT: u32 = 1;

/// The facts of a version that a list shows.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Face {
    /// The name.
    pub name: String,
    /// The bundle's hash.
    pub hash: String,
    /// One line for a person.
    pub description: Option<String>,
    /// The blueprint as a tool.
    pub tool: Option<ToolFace>,
    /// The JSON Schema of its input.
    pub input: Option<Json>,
    /// The operators of its agents, by agent.
    pub agents: BTreeMap<String, String>,
    /// The triggers that start a run.
    #[serde(skip)]
    pub on: Vec<Trigger>,
}

/// The facts as they are stored.
#[derive(Serialize, Deserialize)]
struct Record<F> {
    /// The program and its operators: what they made of the source.
    by: String,
    face: F,
}

/// Returns the key under which the facts of a name's version are stored.
pub(crate) fn key_of(name: &str) -> String {
    format!("face:{name}")
}

/// Returns the mark of records that this program writes with these operators. Another one compiles
/// the source again, since it may find errors in it.
pub(crate) fn mark<'a>(operators: impl Iterator<Item = (&'a str, &'static str)>) -> String {
    let mut hasher = blake3::Hasher::new();
    for (name, kind) in operators {
        hasher.update(format!("{name} {kind}\n").as_bytes());
    }
    let operators = &hasher.finalize().to_hex()[..16];
    format!("{} {FORMAT} {operators}", env!("CARGO_PKG_VERSION"))
}

impl Face {
    /// Returns the facts of a program.
    pub(crate) fn of(program: &Program) -> Arc<Self> {
        let blueprint = program.blueprint();
        let definition = blueprint.definition();
        let agents = definition.agents.iter().map(|(name, it)| (name.clone(), it.operator.clone()));
        Arc::new(Self {
            name: blueprint.name().to_owned(),
            hash: blueprint.hash().to_owned(),
            description: definition.description.clone(),
            tool: definition.tool.clone(),
            input: definition.input.clone(),
            agents: agents.collect(),
            on: definition.on.clone(),
        })
    }

    /// Returns the record to store; none for a version with triggers, which a start reads in full.
    pub(crate) fn record(&self, by: &str) -> Option<String> {
        if !self.on.is_empty() {
            return None;
        }
        let record = Record { by: by.to_owned(), face: self };
        serde_json::to_string(&record).ok().filter(|text| text.len() <= LONGEST)
    }

    /// Reads a record, if it is of this version and has this mark.
    pub(crate) fn read(record: &str, by: &str, hash: &str) -> Option<Arc<Self>> {
        let read: Record<Self> = serde_json::from_str(record).ok()?;
        (read.by == by && read.face.hash == hash).then(|| Arc::new(read.face))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn face() -> Face {
        Face {
            name: "greet".to_owned(),
            hash: "abc".to_owned(),
            description: Some("Greets.".to_owned()),
            tool: None,
            input: Some(Json::parse(r#"{"type":"object"}"#).unwrap()),
            agents: [("a".to_owned(), "echo".to_owned())].into(),
            on: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_read_by_the_program_that_wrote_it_and_for_its_version() {
        let by = mark([("echo", "echo")].into_iter());
        let record = face().record(&by).unwrap();
        assert_eq!(*Face::read(&record, &by, "abc").unwrap(), face());
        assert_eq!(Face::read(&record, &by, "abd"), None);
        let other = mark([("echo", "human")].into_iter());
        assert_eq!(Face::read(&record, &other, "abc"), None);
        assert_eq!(Face::read("{}", &by, "abc"), None);
    }

    #[test]
    fn what_is_large_is_not_stored() {
        let face = Face { description: Some("x".repeat(LONGEST)), ..face() };
        assert_eq!(face.record("m"), None);
    }
}
