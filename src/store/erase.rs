//! The targets of an erasure and the traces that it finds: one set of rules for all adapters.
//!
//! An adapter reads all of its rows and asks [`Sought`] about each. What belongs to a run goes with
//! the run, so that no history is left with a hole; what belongs to none goes row by row. Rows
//! that the host itself needs are only counted.

use std::collections::{BTreeMap, BTreeSet};

use memchr::memmem::Finder;

use crate::{
    journal::{Decision, Entry, Fact},
    protocol::{ArtifactId, RunId, Scope, TaskId, WorkerId},
};

/// The maximum number of runs that are found at a time.
pub const MOST_ERASED_RUNS: usize = 2_000;
/// The maximum number of rows outside of runs that are found at a time.
pub const MOST_ERASED_ROWS: usize = 10_000;
/// The maximum number of runs of others that are listed.
const NAMED: usize = 100;
/// The number of letters of an id after its prefix.
const LETTERS: usize = 26;

/// The target of an erasure; its parts add up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErasureTarget {
    /// These runs, by number, with those that they called, their forks and their repetitions.
    pub runs: BTreeSet<u64>,
    /// Everything of this subject, with the descendants of its runs.
    pub subject: Option<String>,
    /// Everything that contains this text.
    pub text: Option<String>,
}

impl ErasureTarget {
    /// Returns the text as it may stand somewhere: as it is, within JSON, and within JSON in JSON.
    pub fn forms(&self) -> Vec<String> {
        let mut forms = BTreeSet::new();
        if let Some(text) = &self.text {
            let once = quoted(text);
            forms.extend([quoted(&once), once, text.clone()]);
        }
        forms.into_iter().collect()
    }
}

/// A row to erase.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trace {
    /// A run with everything that belongs to it, also its place among the most expensive ones.
    Run(u64),
    /// A value of state, with its links.
    State {
        /// The scope.
        scope: String,
        /// The key.
        key: String,
    },
    /// A link of state.
    Link {
        /// The scope.
        scope: String,
        /// The source.
        from: String,
        /// The relation.
        relation: String,
        /// The target.
        to: String,
    },
    /// A value that a layer keeps, an event of the host, a link for an answer, a sign-in.
    Kept {
        /// The layer.
        layer: String,
        /// The key.
        key: String,
    },
    /// An answer under an idempotency key.
    Answer {
        /// The token's subject.
        principal: String,
        /// The route.
        route: String,
        /// The key.
        key: String,
    },
    /// A session, with its frames.
    Session(String),
    /// The record of a token. Its revocation stays.
    Token(String),
    /// The sums of this blueprint, agent or model.
    Sums(String),
    /// A source that came with runs and was never published. It stays while a name stands for it or
    /// a run has it.
    Blueprint {
        /// The name that the source declares.
        name: String,
        /// The hash of the version.
        hash: String,
    },
}

impl Trace {
    /// Returns the name of the place that the row is in.
    pub fn place(&self) -> &'static str {
        match self {
            Self::Run(_) => "runs",
            Self::State { .. } => "state",
            Self::Link { .. } => "links",
            Self::Kept { .. } => "kept",
            Self::Answer { .. } => "answers",
            Self::Session(_) => "sessions",
            Self::Token(_) => "tokens",
            Self::Sums(_) => "sums",
            Self::Blueprint { .. } => "blueprints",
        }
    }
}

/// A run that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TracedRun {
    /// The run's number.
    pub num: u64,
    /// When it was created, in Unix milliseconds.
    pub created_ms: u64,
    /// True if it has ended.
    pub ended: bool,
    /// The number of its entries.
    pub entries: u64,
    /// About how many bytes it takes.
    pub bytes: u64,
    /// The number of its files.
    pub files: u64,
}

/// The way in which a run got the data of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Descent {
    /// The other one called the run.
    Called,
    /// The run is a copy of the other one's history, up to some step.
    Forked,
    /// The run has the input of the other one.
    Repeated,
}

impl Descent {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Called => "called",
            Self::Forked => "fork",
            Self::Repeated => "rerun",
        }
    }
}

/// The traces of a target that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traces {
    /// The runs, by number.
    pub runs: Vec<TracedRun>,
    /// The runs that were found because of another one of them, by number.
    pub descents: BTreeMap<u64, (Descent, u64)>,
    /// The rows outside of these runs.
    pub rows: BTreeSet<Trace>,
    /// Other runs whose history names the subject, by number; the first hundred.
    pub named_in: BTreeSet<u64>,
    /// The numbers of rows that stay, by place.
    pub stays: BTreeMap<&'static str, u64>,
    /// True if there is more than was looked for at a time.
    pub more: bool,
}

/// The traces of a target in a copy of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesInCopy {
    /// The name of the file.
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of erased runs that it has.
    pub runs: u64,
    /// The number of its rows with the subject or the text.
    pub rows: u64,
    /// The reason why it could not be read.
    pub problem: Option<String>,
}

/// A run that another one descends from.
struct Ancestor {
    run: u64,
    /// When it was created, where its whole id is known.
    created_ms: Option<u64>,
}

/// A target in the form in which rows are compared with it.
pub(super) struct Sought {
    runs: BTreeSet<u64>,
    subject: Option<String>,
    /// The scopes of state that have the subject's name.
    scopes: Vec<String>,
    /// The text, and its forms within JSON.
    texts: Vec<Finder<'static>>,
    /// The subject within JSON, and as a string of a journal, in lower case.
    names: Vec<Finder<'static>>,
    /// True if the descendants of the runs are found too.
    follows: bool,
    /// The runs that descend from others.
    lineage: Vec<(u64, Descent, Ancestor)>,
    /// The hashes of the sources of the runs of the target, and of all other runs.
    sources: BTreeSet<String>,
    sources_of_others: BTreeSet<String>,
    found: Traces,
}

impl Sought {
    pub(super) fn new(target: &ErasureTarget) -> Self {
        let own = |bytes: &[u8]| Finder::new(bytes).into_owned();
        let mut names = Vec::new();
        let mut scopes = Vec::new();
        // An earlier release knew a person by a name with capitals, this one in lower case.
        let subject = target.subject.as_deref().map(str::to_ascii_lowercase);
        if let Some(subject) = &subject {
            names.push(own(format!("\"{}\"", quoted(subject)).as_bytes()));
            // Strings of a journal stand behind their length, of one byte up to 127. It is folded as
            // well, like the bytes in which it is looked for.
            if let Ok(length @ 1..=127) = u8::try_from(subject.len()) {
                let mut behind = vec![length.to_ascii_lowercase()];
                behind.extend_from_slice(subject.as_bytes());
                names.push(own(&behind));
            }
            let session = Scope::Session(subject.as_str().into());
            scopes.extend([Scope::Custom(subject.clone()).to_string(), session.to_string()]);
        }
        Self {
            runs: target.runs.clone(),
            subject: target.subject.clone(),
            scopes,
            texts: target.forms().iter().map(|form| own(form.as_bytes())).collect(),
            names,
            // What has a text is found by the text.
            follows: target.text.is_none(),
            lineage: Vec::new(),
            sources: BTreeSet::new(),
            sources_of_others: BTreeSet::new(),
            found: Traces::default(),
        }
    }

    /// Returns true if the descendants of the runs are found too.
    pub(super) fn follows(&self) -> bool {
        self.follows
    }

    /// Returns true if rows are compared with a text or a subject, and not only with runs.
    pub(super) fn reads_contents(&self) -> bool {
        !self.texts.is_empty() || !self.names.is_empty()
    }

    /// Returns true if some bytes contain the text.
    pub(super) fn is_in(&self, bytes: &[u8]) -> bool {
        self.texts.iter().any(|text| text.find(bytes).is_some())
    }

    /// Returns true if some bytes contain the text or name the subject.
    pub(super) fn touches(&self, bytes: &[u8]) -> bool {
        self.is_in(bytes)
            || self.names_it(bytes)
            || self.subject.as_ref().is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(bytes))
    }

    /// Returns true if some bytes name the subject, in any case of its letters.
    fn names_it(&self, bytes: &[u8]) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let folded = bytes.to_ascii_lowercase();
        self.names.iter().any(|name| name.find(&folded).is_some())
    }

    fn is_subject(&self, name: &str) -> bool {
        self.subject.as_deref().is_some_and(|subject| subject.eq_ignore_ascii_case(name))
    }

    /// Looks at the header of a run: its starter, and all of its texts.
    pub(super) fn header(&mut self, run: u64, principal: &str, texts: &[&str]) {
        let found = self.is_subject(principal) || texts.iter().any(|it| self.is_in(it.as_bytes()));
        if found {
            self.runs.insert(run);
        }
    }

    /// Looks at bytes that belong to a run: an entry, a task, a file.
    pub(super) fn part(&mut self, run: u64, bytes: &[u8]) {
        if self.runs.contains(&run) {
        } else if self.is_in(bytes) {
            self.runs.insert(run);
        } else if self.names_it(bytes) {
            self.found.named_in.insert(run);
        }
    }

    /// Takes note of a run and of the one that called it.
    pub(super) fn called(&mut self, run: u64, parent: u64) {
        self.lineage.push((run, Descent::Called, Ancestor { run: parent, created_ms: None }));
    }

    /// Looks at an entry of a run for the run that it was copied from, or that it repeats.
    pub(super) fn entry(&mut self, run: u64, bytes: &[u8]) {
        // A cheap look before an expensive one: the other run stands there by its id.
        if memchr::memmem::find(bytes, b"run_").is_none() {
            return;
        }
        let Ok(entry) = Entry::decode(run, bytes) else { return };
        let (descent, of) = match &entry.fact {
            Fact::Decided(Decision::Copied { from, .. }) => (Descent::Forked, from.parse().ok()),
            Fact::RunStarted(started) => {
                let trigger = started.trigger.to_value();
                let of = trigger["run"].as_str().filter(|_| trigger["kind"] == "rerun");
                (Descent::Repeated, of.and_then(|of| of.parse().ok()))
            }
            _ => return,
        };
        let of = of.map(|of: RunId| Ancestor { run: of.num(), created_ms: Some(of.created_ms()) });
        self.lineage.extend(of.map(|of| (run, descent, of)));
    }

    /// Adds the runs that descend from runs of the target, in any number of generations. `created`
    /// returns when a stored run was created.
    pub(super) fn follow<E>(
        &mut self,
        mut created: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<(), E> {
        let mut children: BTreeMap<u64, Vec<(u64, Descent)>> = BTreeMap::new();
        for (run, descent, of) in std::mem::take(&mut self.lineage) {
            // A run that came from another host names a run of that host, whose number another run
            // may have here.
            if of.created_ms.is_none() || of.created_ms == created(of.run)? {
                children.entry(of.run).or_default().push((run, descent));
            }
        }
        let mut open: Vec<u64> = self.runs.iter().copied().collect();
        while let Some(of) = open.pop() {
            for (run, descent) in children.remove(&of).unwrap_or_default() {
                if self.runs.insert(run) {
                    self.found.descents.insert(run, (descent, of));
                    open.push(run);
                }
            }
        }
        Ok(())
    }

    /// Returns the runs that were found so far, the newest first: if there are too many, those that
    /// others descend from are found again by the next look.
    pub(super) fn runs(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().rev().copied()
    }

    /// Adds a run of the target that is stored.
    pub(super) fn run(&mut self, run: TracedRun) {
        if self.found.runs.len() < MOST_ERASED_RUNS {
            self.found.runs.push(run);
        } else {
            self.found.more = true;
        }
    }

    fn row(&mut self, is_found: bool, trace: impl FnOnce() -> Trace) {
        if !is_found {
        } else if self.found.rows.len() < MOST_ERASED_ROWS {
            self.found.rows.insert(trace());
        } else {
            self.found.more = true;
        }
    }

    /// Looks at a value of state. A conversation belongs to the runs that it names.
    pub(super) fn state(&mut self, scope: &str, key: &str, value: &str) {
        let of_run = || scope.starts_with("session:conv_") && self.mentions(value.as_bytes());
        let found = [scope, key, value].iter().any(|it| self.is_in(it.as_bytes()))
            || self.scopes.iter().any(|of| of.eq_ignore_ascii_case(scope))
            || of_run();
        self.row(found, || Trace::State { scope: scope.to_owned(), key: key.to_owned() });
    }

    /// Looks at a link of state.
    pub(super) fn link(&mut self, [scope, from, relation, to]: [&str; 4], metadata: &str) {
        let found =
            [scope, from, relation, to, metadata].iter().any(|it| self.is_in(it.as_bytes()))
                || self.scopes.iter().any(|of| of.eq_ignore_ascii_case(scope));
        self.row(found, || Trace::Link {
            scope: scope.to_owned(),
            from: from.to_owned(),
            relation: relation.to_owned(),
            to: to.to_owned(),
        });
    }

    /// Looks at a value that is kept by a layer or by the host.
    pub(super) fn kept(&mut self, layer: &str, key: &str, value: &str) {
        let found = self.touches(value.as_bytes())
            || self.is_in(key.as_bytes())
            || key.split(' ').any(|word| self.is_subject(word))
            || self.mentions(key.as_bytes())
            || self.mentions(value.as_bytes());
        self.row(found, || Trace::Kept { layer: layer.to_owned(), key: key.to_owned() });
    }

    /// Looks at an answer under an idempotency key.
    pub(super) fn answer(&mut self, [principal, route, key]: [&str; 3], answer: &str) {
        let found = self.is_subject(principal)
            || self.is_in(key.as_bytes())
            || self.is_in(principal.as_bytes())
            || self.touches(answer.as_bytes())
            || self.mentions(answer.as_bytes());
        self.row(found, || Trace::Answer {
            principal: principal.to_owned(),
            route: route.to_owned(),
            key: key.to_owned(),
        });
    }

    /// Looks at a session: who opened it, its operator, the reason of its end.
    pub(super) fn session(&mut self, id: &str, principal: &str, texts: &[&str]) {
        let found = self.is_subject(principal)
            || self.is_in(principal.as_bytes())
            || texts.iter().any(|it| self.is_in(it.as_bytes()));
        self.row(found, || Trace::Session(id.to_owned()));
    }

    /// Looks at the claims of a token.
    pub(super) fn token(&mut self, jti: &str, claims: &str) {
        #[derive(serde::Deserialize)]
        struct Holder {
            sub: String,
        }
        let is_holders = || {
            let holder = serde_json::from_str::<Holder>(claims);
            holder.is_ok_and(|holder| self.is_subject(&holder.sub))
        };
        let found = self.is_in(claims.as_bytes()) || is_holders();
        self.row(found, || Trace::Token(jti.to_owned()));
    }

    /// Looks at the name of a sum.
    pub(super) fn sums(&mut self, name: &str) {
        self.row(self.is_in(name.as_bytes()), || Trace::Sums(name.to_owned()));
    }

    /// Takes note of the source of a run. Call it for all runs, after those of the target are known.
    pub(super) fn source_of(&mut self, run: u64, hash: &str) {
        let hashes = match self.runs.contains(&run) {
            true => &mut self.sources,
            false => &mut self.sources_of_others,
        };
        if !hashes.contains(hash) {
            hashes.insert(hash.to_owned());
        }
    }

    /// Looks at a source. It goes if it has the text or the subject, or came with runs of the target;
    /// it stays if it is published, or if another run has it.
    pub(super) fn blueprint(
        &mut self,
        (hash, name): (&str, &str),
        bundle: &[u8],
        is_published: bool,
    ) {
        let parts = [name.as_bytes(), bundle];
        if is_published || self.sources_of_others.contains(hash) {
            self.stays("blueprints", &parts);
            return;
        }
        let found = self.sources.contains(hash) || self.concerns(&parts);
        self.row(found, || Trace::Blueprint { name: name.to_owned(), hash: hash.to_owned() });
    }

    /// Counts a row that stays, if it has the text, the subject or a run of the target.
    pub(super) fn stays(&mut self, place: &'static str, parts: &[&[u8]]) {
        if self.concerns(parts) {
            *self.found.stays.entry(place).or_default() += 1;
        }
    }

    /// Returns true if one of some parts has the text, the subject or a run of the target.
    fn concerns(&self, parts: &[&[u8]]) -> bool {
        parts.iter().any(|part| self.touches(part) || self.mentions(part))
    }

    /// Returns true if some bytes contain the id of a run of the target, or of something of it.
    fn mentions(&self, bytes: &[u8]) -> bool {
        !self.runs.is_empty()
            && memchr::memchr_iter(b'_', bytes).any(|at| {
                let letters = bytes.get(at + 1..at + 1 + LETTERS);
                let letters = letters.and_then(|letters| std::str::from_utf8(letters).ok());
                letters.and_then(run_of).is_some_and(|run| self.runs.contains(&run))
            })
    }

    /// Returns what was found.
    pub(super) fn into_traces(mut self) -> Traces {
        self.found.runs.sort_unstable();
        self.found.named_in.retain(|run| !self.runs.contains(run));
        while self.found.named_in.len() > NAMED {
            self.found.named_in.pop_last();
        }
        self.found
    }
}

/// Returns the run of an id without its prefix: of a run, a response, a task, a file or a worker.
fn run_of(letters: &str) -> Option<u64> {
    if !letters.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')) {
        return None;
    }
    let run = format!("run_{letters}").parse::<RunId>().ok().map(RunId::num);
    run.or_else(|| format!("task_{letters}").parse().ok().map(TaskId::run))
        .or_else(|| format!("art_{letters}").parse().ok().map(ArtifactId::run))
        .or_else(|| format!("wrk_{letters}").parse().ok().map(WorkerId::run))
}

/// Returns a text as it stands within a JSON string.
fn quoted(text: &str) -> String {
    let json = serde_json::to_string(text).expect("a text is JSON");
    json[1..json.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sought(subject: Option<&str>, text: Option<&str>, runs: &[u64]) -> Sought {
        Sought::new(&ErasureTarget {
            runs: runs.iter().copied().collect(),
            subject: subject.map(str::to_owned),
            text: text.map(str::to_owned),
        })
    }

    #[test]
    fn a_text_is_found_as_it_is_and_within_json() {
        let it = sought(None, Some("a \"b\"\n"), &[]);
        for has in ["x a \"b\"\n", r#"{"v":"a \"b\"\n"}"#, r#""{\"v\":\"a \\\"b\\\"\\n\"}""#] {
            assert!(it.is_in(has.as_bytes()), "{has}");
        }
        assert!(!it.is_in(b"a b"));
    }

    #[test]
    fn a_source_goes_unless_it_is_published_or_another_run_has_it() {
        let mut it = sought(None, Some("zacharias"), &[7]);
        for (run, hash) in [(7, "own"), (7, "shared"), (8, "shared"), (8, "others")] {
            it.source_of(run, hash);
        }
        it.blueprint(("own", "a"), b"nobody", false);
        it.blueprint(("left", "b"), b"for zacharias", false);
        it.blueprint(("plain", "c"), b"nobody", false);
        for (hash, is_published) in [("shared", false), ("others", false), ("public", true)] {
            it.blueprint((hash, "d"), b"for zacharias", is_published);
        }
        let found = it.into_traces();
        let hashes: Vec<&str> = found
            .rows
            .iter()
            .map(|row| match row {
                Trace::Blueprint { hash, .. } => hash.as_str(),
                other => other.place(),
            })
            .collect();
        assert_eq!(hashes, ["own", "left"]);
        assert_eq!(found.stays, BTreeMap::from([("blueprints", 3)]));
    }

    #[test]
    fn a_subject_is_a_whole_name() {
        let it = sought(Some("ann"), None, &[]);
        assert!(it.touches(br#"{"by":"ann"}"#) && it.touches(b"\x03ann") && it.touches(b"ann"));
        assert!(!it.touches(br#"{"by":"anna"}"#) && !it.touches(b"ann is here"));
        assert!(it.is_subject("Ann") && !it.is_subject("Anna"), "in any case");
        for it in [it, sought(Some("Ann"), None, &[])] {
            for name in [&br#"{"by":"Ann"}"#[..], br#"{"by":"ann"}"#, b"\x03Ann", b"ANN"] {
                assert!(it.touches(name), "{}", String::from_utf8_lossy(name));
            }
        }
    }

    #[test]
    fn what_names_a_run_or_something_of_it_is_found_by_its_number() {
        let it = sought(None, None, &[7]);
        let run = RunId::new(7, 1_700_000_000_000);
        let response = run.to_string().replace("run_", "resp_");
        let others = RunId::new(8, 1_700_000_000_000);
        for id in [run.to_string(), response, TaskId::new(7, 3, 5).to_string()] {
            assert!(it.mentions(format!("x {id}.").as_bytes()), "{id}");
        }
        assert!(!it.mentions(others.to_string().as_bytes()));
        assert!(!it.mentions(b"run_") && !it.mentions(b"a_b"));
    }
}
