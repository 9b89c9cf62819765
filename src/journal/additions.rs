//! Metadata of an entry beside its fact.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
};

use crate::protocol::{Json, Tags, TraceParent};

/// The name of the source line that scheduled a step: a text `file:line`.
pub(crate) const LINE: &str = "line";
/// The name of the branch that scheduled a step, in words.
pub(crate) const BRANCH: &str = "branch";

/// The name of the operators that the layers left to an attempt: a list of names, or null for all.
pub(crate) const ALLOWED: &str = "allowed";

/// The name of the mark of the accepted report, or of the decline, that ended an attempt.
const REPORT: &str = "report";

/// The mark of an accepted report, or of a decline, in the entry that ends its attempt: the same one
/// again is recognized by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportMark {
    /// A hash of the report, or of the reason of the decline.
    pub hash: String,
    /// A hash of the worker's own key for it; absent without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The published files of a step, as the entry of its end lists them: the first
/// [`MOST_FILES`](Self::MOST_FILES) in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFiles {
    /// The number of all files of the step.
    pub total: usize,
    /// The files.
    pub files: Vec<StepFile>,
}

/// A published file of a step. Its id consists of the run, its number and its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFile {
    /// The file's number within the run.
    pub n: u32,
    /// The name shown to people.
    pub name: String,
    /// The hash of its bytes, BLAKE3 in hex.
    pub hash: String,
    /// The size in bytes.
    pub size: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
}

impl StepFiles {
    /// The maximum number of files that an entry lists.
    pub const MOST_FILES: usize = 100;

    /// Adds a file; counts it only, if the list is full.
    pub fn push(&mut self, file: StepFile) {
        self.total += 1;
        if self.files.len() < Self::MOST_FILES {
            self.files.push(file);
        }
    }
}

/// Named metadata of an entry, beside its fact.
///
/// A release keeps the names that it does not know and ignores them, so new metadata needs no new
/// stored form.
///
/// Reserved names: `allowed` (the operators and tools that the layers left to a model), `artifacts`
/// (the published files of a step), `called` (beside usage that comes after the end of a step: the
/// step, which called a run), `copied` (in the first entry of a copy: the number of entries that
/// describe its original), `line` and `branch` (the source line of the flow's request, and the branch
/// that made it, in words), `queued_ms` and `ran_ms` (when the work was queued and when it ran),
/// `report` (the mark of an accepted report, or of a decline), `tags`, `trace` (ids of a distributed
/// trace), `output` (the operator's full output) and `traceback`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions(Vec<(Cow<'static, str>, Json)>);

/// Serialized as a map, sorted by name.
impl Serialize for Additions {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Additions {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Named;

        impl<'de> Visitor<'de> for Named {
            type Value = Additions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of values by name")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Additions, M::Error> {
                let mut additions = Additions::default();
                while let Some((name, value)) = map.next_entry::<String, Json>()? {
                    additions.put(name, value);
                }
                Ok(additions)
            }
        }

        from.deserialize_map(Named)
    }
}

impl Additions {
    /// Returns true if there are no additions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value stored under a name.
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.place(name).ok().map(|place| &self.0[place].1)
    }

    /// Returns the position of a name, or the one that it would have.
    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    /// Returns the text stored under a name.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name)?.decode().ok()
    }

    /// Stores a value under a name, and replaces an earlier one.
    pub fn put(&mut self, name: impl Into<Cow<'static, str>>, value: Json) {
        let name = name.into();
        match self.place(&name) {
            Ok(place) => self.0[place].1 = value,
            Err(place) => self.0.insert(place, (name, value)),
        }
    }

    /// Returns the tags of a run that starts or is called; none if absent.
    pub fn tags(&self) -> Tags {
        self.get("tags").and_then(|tags| tags.decode().ok()).unwrap_or_default()
    }

    /// Returns the additions that store the tags of a run that starts or is called.
    pub fn of_tags(tags: &Tags) -> Self {
        let mut additions = Self::default();
        if !tags.is_empty() {
            additions.put("tags", Json::encode(tags).expect("tags are plain data"));
        }
        additions
    }

    /// Returns the span of a distributed trace that the start of a run is a part of.
    pub fn trace(&self) -> Option<TraceParent> {
        TraceParent::parse(&self.text("trace")?)
    }

    /// Stores the span of a distributed trace that the start of a run is a part of.
    pub fn put_trace(&mut self, trace: TraceParent) {
        self.put("trace", Json::encode(&trace.to_string()).expect("a text is plain data"));
    }

    /// Removes the span of a distributed trace.
    pub(crate) fn remove_trace(&mut self) {
        self.0.retain(|(name, _)| name != "trace");
    }

    /// Returns the number of the last entry that was copied from another run, in the first entry of
    /// a copy.
    pub fn copied_upto(&self) -> Option<u32> {
        self.get("copied")?.as_str().parse().ok()
    }

    /// Stores the number of the last entry that was copied from another run.
    pub(crate) fn put_copied_upto(&mut self, seq: u32) {
        self.put("copied", Json::from_trusted(seq.to_string()));
    }

    /// Returns the step that called the run whose usage the entry adds; absent for the usage of
    /// earlier histories.
    pub fn called(&self) -> Option<u32> {
        self.get("called")?.as_str().parse().ok()
    }

    /// Returns the additions that name the step that called a run.
    pub(crate) fn of_call(step: u32) -> Self {
        let mut additions = Self::default();
        additions.put("called", Json::from_trusted(step.to_string()));
        additions
    }

    /// Returns how long a step waited in all, and how long the work of its last attempt took, in
    /// milliseconds.
    pub fn times(&self) -> Option<(u64, u64)> {
        let number = |name: &str| self.get(name)?.as_str().parse().ok();
        Some((number("queued_ms")?, number("ran_ms")?))
    }

    /// Returns the operators and tools that the layers left to a model call; any if absent.
    pub fn allowed(&self) -> Option<Vec<String>> {
        self.get(ALLOWED)?.decode().ok()
    }

    /// Returns the published files of the step that this entry ends; none if absent.
    pub fn files(&self) -> StepFiles {
        let kept = self.get("artifacts").and_then(|files| files.decode().ok());
        let mut files: StepFiles = kept.unwrap_or_default();
        // An imported history may say what it likes.
        files.files.truncate(StepFiles::MOST_FILES);
        files
    }

    /// Stores the published files of the step that this entry ends, if there are any.
    pub fn put_files(&mut self, files: &StepFiles) {
        if files.total > 0 {
            self.put("artifacts", Json::encode(files).expect("references are plain data"));
        }
    }

    /// Returns the mark of the accepted report, or of the decline, that ended the attempt.
    pub(crate) fn report(&self) -> Option<ReportMark> {
        self.get(REPORT)?.decode().ok()
    }

    /// Stores the mark of the accepted report, or of the decline, that ended the attempt.
    pub(crate) fn put_report(&mut self, mark: &ReportMark) {
        self.put(REPORT, Json::encode(mark).expect("a mark is plain data"));
    }

    /// Adds the values of others, and replaces those of the same names.
    pub fn extend(&mut self, others: Self) {
        for (name, value) in others.0 {
            self.put(name, value);
        }
    }

    /// Iterates over all additions, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_step_are_listed_up_to_a_limit_and_anything_else_is_none() {
        let file = |n| StepFile {
            n,
            name: "a.md".to_owned(),
            hash: "00".to_owned(),
            size: 1,
            created_ms: 1_700_000_000_000,
        };
        let mut files = StepFiles::default();
        (1..=150).for_each(|n| files.push(file(n)));
        assert_eq!((files.total, files.files.len()), (150, StepFiles::MOST_FILES));
        let mut additions = Additions::default();
        additions.put_files(&StepFiles::default());
        assert!(additions.is_empty());
        additions.put_files(&files);
        assert_eq!(additions.files(), files);
        files.files.extend((0..500).map(file));
        additions.put("artifacts", Json::encode(&files).unwrap());
        assert_eq!(additions.files().files.len(), StepFiles::MOST_FILES);
        additions.put("artifacts", Json::from_trusted("[1]"));
        assert_eq!(additions.files(), StepFiles::default());
    }
}
