//! A run as a document: JSON lines, each an object whose one member is the kind of line.
//!
//! The first line identifies the document, and the last one has a hash over all lines before it.
//! docs/export.md describes version 2; version 1, which had only keys and values of state, is read
//! as well. Other versions are refused.

use crate::{
    engine::verbs::document_lines::{
        DocumentLine, EvidenceLine, File, Head, LinkLine, Seal, Source, Value,
    },
    journal::Entry,
};
pub(crate) use limits::Limits;

mod limits;

/// The name of the format, in the first line.
pub(crate) const FORMAT: &str = "moonswarm.run";

/// The version that is written.
pub(crate) const VERSION: u32 = 2;

/// The oldest version that is read.
const OLDEST: u32 = 1;

/// Writes the lines of one document.
#[derive(Default)]
pub(crate) struct DocumentWriter {
    hasher: blake3::Hasher,
    lines: u64,
}

impl DocumentWriter {
    /// Returns a line in the form of the document.
    pub(crate) fn line(&mut self, line: &DocumentLine) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(line).expect("a line is plain data");
        // Values are kept verbatim; a line break within them is only whitespace.
        for byte in &mut bytes {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        bytes.push(b'\n');
        self.hasher.update(&bytes);
        self.lines += 1;
        bytes
    }

    /// Returns the last line.
    pub(crate) fn seal(self) -> Vec<u8> {
        let seal = Seal { lines: self.lines, hash: self.hasher.finalize().to_hex().to_string() };
        let mut bytes = serde_json::to_vec(&DocumentLine::End(seal)).expect("a seal is plain data");
        bytes.push(b'\n');
        bytes
    }
}

/// A complete document of a known version.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) head: Head,
    pub(crate) source: Source,
    pub(crate) entries: Vec<Entry>,
    pub(crate) state: Vec<Value>,
    pub(crate) links: Vec<LinkLine>,
    pub(crate) files: Vec<File>,
    pub(crate) evidence: Vec<EvidenceLine>,
}

impl Document {
    /// Parses a document.
    ///
    /// # Errors
    /// Returns what is invalid, with the line.
    pub(crate) fn read(bytes: &[u8], limits: Limits) -> Result<Self, String> {
        let at = |n: u64, what: String| format!("line {n} of the document: {what}");
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let head = read_head(first).map_err(|what| at(1, what))?;
        let (mut hasher, mut count) = (blake3::Hasher::new(), 1);
        hasher.update(first);
        let (mut source, mut seal) = (None, None);
        let (mut entries, mut files, mut evidence) = (Vec::new(), Vec::new(), Vec::new());
        let (mut state, mut links) = (Vec::new(), Vec::new());
        for bytes in lines {
            let line: DocumentLine =
                serde_json::from_slice(bytes).map_err(|error| at(count + 1, error.to_string()))?;
            if seal.is_some() {
                return Err(at(count + 1, "it comes after the end".to_owned()));
            }
            limits.check(&line).map_err(|what| at(count + 1, what))?;
            match line {
                DocumentLine::Run(_) => {
                    return Err(at(count + 1, "a second run begins".to_owned()));
                }
                DocumentLine::Blueprint(it) if it.bundle.hash() != it.hash => {
                    return Err(at(
                        count + 1,
                        format!("the files have the hash {}, not {}", it.bundle.hash(), it.hash),
                    ));
                }
                DocumentLine::Blueprint(it) => source = Some(it),
                DocumentLine::Entry(it) => entries.push(*it),
                DocumentLine::State(it) => state.push(it),
                DocumentLine::Link(_) if head.version < 2 => {
                    return Err(at(count + 1, "version 1 has no links".to_owned()));
                }
                DocumentLine::Link(it) => links.push(it),
                DocumentLine::Artifact(it) => files.push(it),
                DocumentLine::Evidence(it) => evidence.push(it),
                DocumentLine::End(found) => {
                    let hash = hasher.finalize().to_hex().to_string();
                    if found != (Seal { lines: count, hash }) {
                        let what = "what comes before it was changed, or is not all there";
                        return Err(at(count + 1, what.to_owned()));
                    }
                    seal = Some(found);
                    continue;
                }
            }
            hasher.update(bytes);
            count += 1;
        }
        if seal.is_none() {
            return Err("the document breaks off: its last line is missing".to_owned());
        }
        let source = source.ok_or("the document has no blueprint")?;
        Ok(Self { head, source, entries, state, links, files, evidence })
    }
}

/// Checks the version before anything that another version may have changed.
fn read_head(line: &[u8]) -> Result<Head, String> {
    let json: serde_json::Value = serde_json::from_slice(line)
        .map_err(|_| "it is no run that moonswarm exported".to_owned())?;
    let head = &json["run"];
    if head["format"] != FORMAT {
        return Err("it is no run that moonswarm exported".to_owned());
    }
    let version = head["version"].as_u64().and_then(|version| u32::try_from(version).ok());
    if !version.is_some_and(|version| (OLDEST..=VERSION).contains(&version)) {
        return Err(format!(
            "it has version {}; this program knows versions {OLDEST} to {VERSION}: use the release that wrote it \
             ({})",
            head["version"], head["program"]
        ));
    }
    serde_json::from_value(head.clone()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::{
        env, fs,
        path::{Path, PathBuf},
    };

    use data_encoding::BASE64;

    use super::*;
    use crate::{
        blueprint::Bundle,
        journal::{
            Decision, Fact, Outcome, RunStarted, Scheduled, ScopePath, SignalReceived, StepKey,
        },
        protocol::{Failure, Json, MemoryLink, StepKind, StoreOptions},
        store::ArtifactRow,
    };

    fn entries() -> Vec<Entry> {
        let json = |text: &str| Json::parse(text).unwrap();
        let started = RunStarted {
            blueprint: "hello".into(),
            hash: bundle().hash().into(),
            input: json("{\"n\":\n 1}"),
            trigger: Json::null(),
            seed: u64::MAX,
            parent: None,
            depth: 0,
            workdir: None,
            principal: "admin".into(),
            delegate: None,
            grant: Json::null(),
            generation: 0,
            first_step: 1,
            queued: vec![("go".into(), json("true"))],
            continues: None,
        };
        let step = Scheduled {
            step: 1,
            key: StepKey::new(ScopePath::main().branch(3, 1), 0),
            prev: None,
            parent: None,
            kind: StepKind::Task,
            name: "e".into(),
            call_id: None,
            request: json("[1.50,null]"),
            fingerprint: 7,
            attempt: 1,
            epoch: 1,
            seat_epoch: 0,
            wake_at_ms: Some(9),
            summary: None,
        };
        let facts = [
            Fact::RunStarted(Box::new(started)),
            Fact::StepRecorded(Box::new(step), Outcome::Failed(Failure::new("worker", "no"))),
            Fact::SignalReceived(SignalReceived {
                name: "go".into(),
                payload: json("{}"),
                sender: Some((2, 3)),
            }),
            Fact::Decided(Decision::Copied { by: "ann".into(), from: "run_x".into(), step: None }),
            Fact::RunEnded(Outcome::Completed(json("2"))),
        ];
        let entry = |(seq, fact)| Entry::new(seq, 5, fact);
        (1..).zip(facts).map(entry).collect()
    }

    fn limits() -> Limits {
        Limits { value: 1 << 20, now_ms: 1_800_000_000_000 }
    }

    fn bundle() -> Bundle {
        Bundle::from_source("hello.lua", "return 1").unwrap()
    }

    fn written() -> String {
        let head = Head {
            format: FORMAT.into(),
            version: VERSION,
            run: "run_x".into(),
            exported_at: "2026-01-01T00:00:00.000Z".into(),
            program: "0.1.0".into(),
        };
        let row = ArtifactRow {
            run: 1,
            n: 1,
            name: "a.txt".into(),
            hash: blake3::hash(b"hello").to_hex().to_string(),
            size: 5,
            created_ms: 5,
            step: 1,
            attempt: 1,
            published: true,
        };
        let source =
            Source { name: "hello".into(), hash: bundle().hash().into(), bundle: bundle() };
        let mut lines = vec![DocumentLine::Run(head), DocumentLine::Blueprint(source)];
        lines.extend(entries().into_iter().map(|entry| DocumentLine::Entry(Box::new(entry))));
        let plain = StoreOptions::default();
        let value = |key: &str, expires_ms, hints| {
            let (operator, key) = (None, key.into());
            DocumentLine::State(Value { operator, key, value: Json::null(), expires_ms, hints })
        };
        lines.push(value("k", None, plain.clone()));
        let hints = StoreOptions { salience: Some(0.5), ..plain };
        lines.push(value("passing", Some(1_700_000_000_000), hints));
        let mut link = MemoryLink::new("k", "l", "near");
        link.metadata = Some(serde_json::json!({ "by": "foot" }));
        lines.push(DocumentLine::Link(LinkLine::new("run:run_x", link)));
        lines.push(DocumentLine::Artifact(File::new(&row, b"hello")));
        lines.push(DocumentLine::Evidence(EvidenceLine {
            step: 1,
            attempt: 2,
            at_ms: 5,
            code: "fenced".into(),
            body: "{}".into(),
        }));
        let mut scribe = DocumentWriter::default();
        let mut bytes: Vec<u8> = lines.iter().flat_map(|line| scribe.line(line)).collect();
        bytes.extend(scribe.seal());
        String::from_utf8(bytes).unwrap()
    }

    fn golden(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/verbs/document").join(name)
    }

    #[test]
    fn version_1_is_read_as_it_always_was() {
        let text = fs::read_to_string(golden("run_v1.jsonl")).unwrap();
        let document = Document::read(text.as_bytes(), limits()).unwrap();
        assert_eq!(document.entries[1..], entries()[1..]);
        let state: Vec<_> =
            document.state.iter().map(|it| (it.key.as_str(), it.expires_ms)).collect();
        assert_eq!(state, [("k", None)]);
        assert_eq!((document.files.len(), document.evidence.len()), (1, 1));
    }

    #[test]
    fn a_link_in_version_1_and_an_unknown_version_are_refused() {
        let text = written().replacen("\"version\":2", "\"version\":1", 1);
        let refused = Document::read(text.as_bytes(), limits()).unwrap_err();
        assert!(refused.contains("version 1 has no links"), "{refused}");
        for version in ["0", "3", "\"2\""] {
            let text = written().replacen("\"version\":2", &format!("\"version\":{version}"), 1);
            let refused = Document::read(text.as_bytes(), limits()).unwrap_err();
            assert!(refused.contains("knows versions 1 to 2"), "{refused}");
        }
    }

    #[test]
    fn version_2_is_written_and_read_as_it_always_was() {
        let file = golden("run_v2.jsonl");
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, written()).unwrap();
        }
        let golden = fs::read_to_string(&file).unwrap();
        assert_eq!(written(), golden);
        let document = Document::read(golden.as_bytes(), limits()).unwrap();
        assert_eq!(document.entries[1..], entries()[1..]);
        assert_eq!(
            (document.files.len(), document.state.len(), document.evidence.len()),
            (1, 2, 1)
        );
        assert_eq!(document.state[1].hints.salience, Some(0.5));
        assert_eq!(document.links[0].metadata, Some(serde_json::json!({ "by": "foot" })));
        let file = document.files.into_iter().next().unwrap().open(9).unwrap();
        assert_eq!((file.0.run, &*file.1), (9, &b"hello"[..]));
    }

    #[test]
    fn bytes_that_are_not_the_ones_of_their_hash_are_refused() {
        let mut document = Document::read(written().as_bytes(), limits()).unwrap();
        let mut file = document.files.pop().unwrap();
        file.data = BASE64.encode(b"jello");
        assert!(file.open(1).unwrap_err().contains("a.txt"));
    }
}
