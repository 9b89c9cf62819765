//! A run's files: staged by attempts, published with their results.

use std::sync::Arc;

use crate::{
    engine::{
        run::resident::Run,
        turn::{
            facts::{self, Turn},
            lookups,
            state::refused,
        },
    },
    fault,
    flow::ArtifactOp,
    journal::{StepFile, StepFiles},
    protocol::{ArtifactId, Failure, Json, RunId, failure::kind},
    store::{ArtifactRow, Write},
};

/// The largest artifact, in bytes.
pub(crate) const ARTIFACT_BYTES: usize = 64 << 20;

/// The step of artifacts that come from outside of any task.
pub(crate) const OUTSIDE: u32 = 0;

/// The longest name of an artifact, in bytes.
const NAME_BYTES: usize = 255;

/// Writes or reads a file of the run.
pub(crate) fn apply_artifact(
    turn: &mut Turn<'_>,
    step: u32,
    op: &ArtifactOp,
) -> Result<Json, Failure> {
    match op {
        ArtifactOp::Write { name, data } => {
            let (id, hash, size) = put_artifact(turn, (step, 1), name, data, true)?;
            Ok(serde_json::json!({ "id": id, "hash": hash, "size": size }).into())
        }
        ArtifactOp::Read { id } => {
            let found: ArtifactId = id.parse().map_err(|error| refused(format!("{error}")))?;
            let is_ancestors = |origin: &String| {
                origin.parse::<RunId>().is_ok_and(|origin| origin.num() == found.run())
            };
            // A copied history names its files by the run that it was copied from.
            if found.run() != turn.run.num && !turn.run.chain.origins().iter().any(is_ancestors) {
                return Err(refused(format!("artifact {id} belongs to another run")));
            }
            let data = artifact_bytes(turn, found)?;
            match std::str::from_utf8(&data) {
                Ok(text) => Ok(Json::encode(text).expect("text is JSON")),
                Err(_) => Err(refused(format!("artifact {id} is not UTF-8 text"))),
            }
        }
    }
}

fn artifact_bytes(turn: &mut Turn<'_>, id: ArtifactId) -> Result<Arc<[u8]>, Failure> {
    let hash = turn.run.file_hash(id).map(str::to_owned);
    let hash = hash.ok_or_else(|| refused(format!("there is no artifact {id}")))?;
    match turn.run.file_on_its_way(&hash) {
        Some(data) => Ok(data),
        None => lookups::file(turn, &hash)
            .map_err(|error| Failure::new("storage", format!("read artifact {id}: {error}")))?
            .ok_or_else(|| refused(format!("the bytes of artifact {id} are gone"))),
    }
}

/// Stores a file of (step, attempt).
pub(crate) fn put_artifact(
    turn: &mut Turn<'_>,
    (step, attempt): (u32, u32),
    name: &str,
    data: &[u8],
    published: bool,
) -> Result<(ArtifactId, String, u64), Failure> {
    check_name(name).map_err(refused)?;
    if data.len() > ARTIFACT_BYTES {
        let message =
            format!("artifact {name:?} has {} bytes; {ARTIFACT_BYTES} are allowed", data.len());
        return Err(Failure::new(kind::LIMIT, message));
    }
    let hash = blake3::hash(data).to_hex().to_string();
    let size = data.len() as u64;
    let created_ms = facts::time_of(turn);
    let num = turn.run.num;
    let files = &mut turn.run.artifacts;
    // A worker that did not receive the answer sends the same again; a flow does not, and may have
    // very many files.
    let is_known = |file: &&ArtifactRow| {
        (file.step, file.attempt) == (step, attempt)
            && (file.name.as_str(), &file.hash) == (name, &hash)
    };
    let is_ours = published && step != OUTSIDE;
    let sent_before = if is_ours { None } else { files.iter().find(is_known) };
    if let Some(file) = sent_before {
        return Ok((ArtifactId::new(num, file.n, file.created_ms), hash, size));
    }
    // They are in the order of their numbers.
    let n = files.last().map_or(0, |row| row.n) + 1;
    let id = ArtifactId::new(num, n, created_ms);
    let row = ArtifactRow {
        run: num,
        n,
        name: name.to_owned(),
        hash: hash.clone(),
        size,
        created_ms,
        step,
        attempt,
        published,
    };
    files.push(row.clone());
    turn.run.header.bytes += size;
    turn.run.restate |= !is_ours;
    fault::point("engine.artifact");
    let data: Arc<[u8]> = data.into();
    turn.run.pending.after.files.push((hash.clone(), Arc::clone(&data)));
    turn.run.pending.writes.push(Write::PutBlob { hash: hash.clone(), data });
    turn.run.pending.writes.push(Write::PutArtifact(row));
    Ok((id, hash, size))
}

/// Publishes the files of an accepted attempt: they become files of the run.
pub(crate) fn publish(run: &mut Run, step: u32, attempt: u32) {
    let mut sent = false;
    for file in &mut run.artifacts {
        if (file.step, file.attempt) == (step, attempt) && !file.published {
            file.published = true;
            sent = true;
        }
    }
    if sent {
        run.pending.after.published.push((step, attempt));
        run.pending.writes.push(Write::PublishArtifacts { run: run.num, step, attempt });
    }
}

/// Returns the published files of a step, for the entry of its end.
pub(crate) fn published_by(run: &Run, step: u32) -> StepFiles {
    let mut files = StepFiles::default();
    for row in run.artifacts.iter().filter(|row| row.published && row.step == step) {
        files.push(StepFile {
            n: row.n,
            name: row.name.clone(),
            hash: row.hash.clone(),
            size: row.size,
            created_ms: row.created_ms,
        });
    }
    files
}

/// Refuses a name that a file may not have.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_bad = name.is_empty()
        || name.len() > NAME_BYTES
        || name.chars().any(|c| c.is_control() || c == '/' || c == '\\');
    if is_bad {
        return Err(format!(
            "an artifact's name has 1 to {NAME_BYTES} bytes and no slash, backslash or control character"
        ));
    }
    Ok(())
}
