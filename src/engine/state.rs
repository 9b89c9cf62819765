//! A run's state and files, and the effects that workers declare.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    run::{Perform, Run},
    shard::Shard,
};
use crate::{
    fault,
    flow::{ArtifactOp, StateOp},
    protocol::{ArtifactId, Effect, Failure, Json, RunId, Scope, failure::kind},
    store::{ArtifactRow, Errand, OutboxRow, Write},
};

/// The longest key, in bytes.
const KEY_BYTES: usize = 1_024;
/// The most keys that one run may have.
const KEYS: usize = 100_000;
/// The largest artifact, in bytes.
const ARTIFACT_BYTES: usize = 64 << 20;
/// The longest name of an artifact, in bytes.
const NAME_BYTES: usize = 255;

/// The scope that a run's own state is stored under.
pub(super) fn run_scope(run: &Run) -> String {
    format!("run:{}", run.id)
}

impl Shard {
    /// Applies an operation to the run's state, within the transition that is under way.
    pub(super) fn apply_state(&mut self, run: &mut Run, op: &StateOp) -> Result<Json, Failure> {
        let scope = run_scope(run);
        let at_ms = self.time_of(run);
        let state = self.state_of(run)?;
        match op {
            StateOp::Get { key } => Ok(state.get(key).cloned().unwrap_or_else(Json::null)),
            StateOp::List { prefix } => {
                let keys = state.keys().filter(|key| key.starts_with(prefix.as_str()));
                let keys: Vec<&String> = keys.collect();
                Ok(Json::encode(&keys).expect("strings are JSON"))
            }
            StateOp::Set { key, value } => {
                self.put_state(run, scope, key, value.clone(), at_ms)?;
                Ok(Json::null())
            }
            StateOp::Delete { key } => {
                if state.remove(key).is_some() {
                    run.pending.writes.push(Write::DeleteState { scope, key: key.clone() });
                }
                Ok(Json::null())
            }
            StateOp::Add { key, by } => {
                let before = match state.get(key).map(Json::to_value) {
                    None | Some(serde_json::Value::Null) => 0.0,
                    Some(serde_json::Value::Number(number)) => number.as_f64().unwrap_or(f64::NAN),
                    Some(_) => {
                        return Err(refused(format!("state.add {key:?}: it is not a number")));
                    }
                };
                let sum = number(before + by).ok_or_else(|| {
                    refused(format!("state.add {key:?}: the sum is not a number"))
                })?;
                self.put_state(run, scope, key, sum.clone(), at_ms)?;
                Ok(sum)
            }
            StateOp::Append { key, value } => {
                let mut list = match state.get(key).map(Json::to_value) {
                    None | Some(serde_json::Value::Null) => Vec::new(),
                    Some(serde_json::Value::Array(list)) => list,
                    Some(_) => {
                        return Err(refused(format!("state.append {key:?}: it is not an array")));
                    }
                };
                list.push(value.to_value());
                let list = Json::from(serde_json::Value::Array(list));
                self.put_state(run, scope, key, list.clone(), at_ms)?;
                Ok(list)
            }
        }
    }

    /// Writes a value of the run's state.
    pub(super) fn put_state(
        &mut self,
        run: &mut Run,
        scope: String,
        key: &str,
        value: Json,
        at_ms: u64,
    ) -> Result<(), Failure> {
        let limit = self.shared.settings.limits.value;
        let state = self.state_of(run)?;
        let breach = |message: String| Err(Failure::new(kind::LIMIT, message));
        if key.is_empty() || key.len() > KEY_BYTES {
            return breach(format!("a key of state has 1 to {KEY_BYTES} bytes, not {}", key.len()));
        }
        if value.len() > limit {
            return breach(format!("state {key:?} has {} bytes; {limit} are allowed", value.len()));
        }
        if state.len() >= KEYS && !state.contains_key(key) {
            return breach(format!("a run has at most {KEYS} keys of state"));
        }
        fault::point("engine.state");
        state.insert(key.to_owned(), value.clone());
        let value = value.as_str().to_owned();
        run.pending.writes.push(Write::PutState {
            scope,
            key: key.to_owned(),
            value,
            hints: crate::protocol::StoreOptions::default(),
            at_ms,
        });
        Ok(())
    }

    pub(super) fn state_of<'a>(
        &self,
        run: &'a mut Run,
    ) -> Result<&'a mut BTreeMap<String, Json>, Failure> {
        if run.state.is_none() {
            // Nothing of the run's state is on its way yet: the first write goes through here.
            let rows = self.shared.store.state(&run_scope(run)).map_err(|error| {
                Failure::new("storage", format!("read the run's state: {error}")).retryable()
            })?;
            let rows = rows.into_iter().map(|row| (row.key, Json::from_trusted(row.value)));
            run.state = Some(rows.collect());
        }
        Ok(run.state.as_mut().expect("it was read just now"))
    }

    /// Writes or reads a file of the run.
    pub(super) fn apply_artifact(
        &mut self,
        run: &mut Run,
        step: u32,
        op: &ArtifactOp,
    ) -> Result<Json, Failure> {
        match op {
            ArtifactOp::Write { name, data } => {
                let (id, hash, size) = self.put_artifact(run, (step, 1), name, data, true)?;
                Ok(serde_json::json!({ "id": id, "hash": hash, "size": size }).into())
            }
            ArtifactOp::Read { id } => {
                let found: ArtifactId = id.parse().map_err(|error| refused(format!("{error}")))?;
                let is_ancestors = |origin: &String| {
                    origin.parse::<RunId>().is_ok_and(|origin| origin.num() == found.run())
                };
                // A copied history names its files by the run that it was copied from.
                if found.run() != run.num && !run.chain.origins().iter().any(is_ancestors) {
                    return Err(refused(format!("artifact {id} belongs to another run")));
                }
                let data = self.artifact_bytes(run, found)?;
                match String::from_utf8(data) {
                    Ok(text) => Ok(Json::encode(&text).expect("text is JSON")),
                    Err(_) => Err(refused(format!("artifact {id} is not UTF-8 text"))),
                }
            }
        }
    }

    fn artifact_bytes(&self, run: &Run, id: ArtifactId) -> Result<Vec<u8>, Failure> {
        let fault = |error| Failure::new("storage", format!("read artifact {id}: {error}"));
        let is_published = |row: &ArtifactRow| {
            let of = (row.step, row.attempt);
            row.published || run.on_their_way().any(|after| after.published.contains(&of))
        };
        let hash_in = |rows: &[ArtifactRow]| {
            let row = rows.iter().find(|row| row.n == id.number() && is_published(row));
            row.map(|row| row.hash.clone())
        };
        let hash = match &run.artifacts {
            Some(rows) => hash_in(rows),
            None => hash_in(&self.shared.store.artifacts(run.num).map_err(fault)?),
        };
        let hash = hash.ok_or_else(|| refused(format!("there is no artifact {id}")))?;
        let mut files = run.on_their_way().flat_map(|after| &after.files);
        match files.find(|(of, _)| *of == hash) {
            Some((_, data)) => Ok(data.to_vec()),
            None => self
                .shared
                .store
                .blob(&hash)
                .map_err(fault)?
                .ok_or_else(|| refused(format!("the bytes of artifact {id} are gone"))),
        }
    }

    /// Stores a file of (step, attempt).
    pub(super) fn put_artifact(
        &mut self,
        run: &mut Run,
        (step, attempt): (u32, u32),
        name: &str,
        data: &[u8],
        published: bool,
    ) -> Result<(ArtifactId, String, u64), Failure> {
        let bad_name = name.is_empty()
            || name.len() > NAME_BYTES
            || name.chars().any(|c| c.is_control() || c == '/' || c == '\\');
        if bad_name {
            let message = format!(
                "an artifact's name has 1 to {NAME_BYTES} bytes and no slash, backslash or control character"
            );
            return Err(refused(message));
        }
        if data.len() > ARTIFACT_BYTES {
            let message =
                format!("artifact {name:?} has {} bytes; {ARTIFACT_BYTES} are allowed", data.len());
            return Err(Failure::new(kind::LIMIT, message));
        }
        let hash = blake3::hash(data).to_hex().to_string();
        let size = data.len() as u64;
        let created_ms = self.time_of(run);
        let num = run.num;
        let files = match &mut run.artifacts {
            Some(files) => files,
            none => {
                let rows = self.shared.store.artifacts(num).map_err(|error| {
                    Failure::new("storage", format!("number artifact {name:?}: {error}"))
                })?;
                none.insert(rows)
            }
        };
        // A worker that did not hear the answer sends the same again.
        let known = files.iter().find(|file| {
            !published
                && (file.step, file.attempt) == (step, attempt)
                && (file.name.as_str(), &file.hash) == (name, &hash)
        });
        if let Some(file) = known {
            return Ok((ArtifactId::new(num, file.n, file.created_ms), hash, size));
        }
        let n = files.iter().map(|row| row.n).max().unwrap_or(0) + 1;
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
        fault::point("engine.artifact");
        let data: Arc<[u8]> = data.into();
        run.pending.after.files.push((hash.clone(), Arc::clone(&data)));
        run.pending.writes.push(Write::PutBlob { hash: hash.clone(), data });
        run.pending.writes.push(Write::PutArtifact(row));
        Ok((id, hash, size))
    }

    /// Applies the effects of an accepted result, in their order; answers with what the journal
    /// keeps of them.
    ///
    /// All of them are looked at before the first is applied: a refused one leaves nothing behind.
    pub(super) fn apply_effects(
        &mut self,
        run: &mut Run,
        step: u32,
        effects: &[Effect],
    ) -> Result<Option<Json>, Failure> {
        if effects.is_empty() {
            return Ok(None);
        }
        for effect in effects {
            self.admit(effect)?;
        }
        for (n, effect) in (0u32..).zip(effects) {
            self.apply_effect(run, step, n, effect)?;
        }
        let kept = Json::encode(effects)
            .map_err(|error| Failure::new(kind::EFFECT, format!("keep the effects: {error}")))?;
        Ok(Some(kept))
    }

    fn admit(&self, effect: &Effect) -> Result<(), Failure> {
        let no = |what: String| Err(Failure::new(kind::EFFECT, what));
        match effect {
            Effect::WriteMemory { scope: Scope::Workflow(_), key, value, .. } => {
                let size = value.to_string().len();
                if key.is_empty()
                    || key.len() > KEY_BYTES
                    || size > self.shared.settings.limits.value
                {
                    return no(format!("write_memory {key:?}: the key or the value is too large"));
                }
                Ok(())
            }
            Effect::DeleteMemory { scope: Scope::Workflow(_), .. } | Effect::Log { .. } => Ok(()),
            Effect::Signal { target, .. } => match target.to_string().parse::<RunId>() {
                Ok(_) => Ok(()),
                Err(error) => no(format!("signal: {error}")),
            },
            Effect::WriteMemory { .. } | Effect::DeleteMemory { .. } => {
                no("an effect may write the state of its own run (scope workflow) only".into())
            }
            other => no(format!("this host does not apply the effect {}", effect_name(other))),
        }
    }

    fn apply_effect(
        &mut self,
        run: &mut Run,
        step: u32,
        n: u32,
        effect: &Effect,
    ) -> Result<(), Failure> {
        fault::point("engine.effect");
        let at_ms = self.time_of(run);
        match effect {
            Effect::WriteMemory { key, value, .. } => {
                self.put_state(run, run_scope(run), key, value.into(), at_ms)
            }
            Effect::DeleteMemory { key, .. } => {
                self.apply_state(run, &StateOp::Delete { key: key.clone() }).map(|_| ())
            }
            Effect::Signal { target, payload } => {
                let Ok(to) = target.to_string().parse::<RunId>() else { return Ok(()) };
                let (name, payload) = (payload.signal_type.clone(), Json::from(&payload.data));
                // A step sends at most 64 signals: its number is spread so that each has a key of
                // its own in the outbox.
                let key = (1 << 31) | (step << 6) | (n & 63);
                run.pending.writes.push(Write::PutOutbox(OutboxRow {
                    run: run.num,
                    step: key,
                    to: to.num(),
                    errand: Errand::Signal {
                        name: name.clone(),
                        payload: payload.as_str().to_owned(),
                    },
                }));
                run.pending.after.performs.push(Perform::SendSignal {
                    step: key,
                    to: to.num(),
                    name,
                    payload,
                });
                Ok(())
            }
            // Log lines stay with the result: `show` and the steps API print them from there.
            _ => Ok(()),
        }
    }
}

fn effect_name(effect: &Effect) -> String {
    serde_json::to_value(effect)
        .ok()
        .and_then(|value| value.get("type").and_then(|t| t.as_str().map(str::to_owned)))
        .unwrap_or_else(|| "without a type".to_owned())
}

fn refused(message: String) -> Failure {
    Failure::new(kind::REFUSED, message)
}

/// A finite number as JSON, an integral one as an integer.
fn number(value: f64) -> Option<Json> {
    if !value.is_finite() {
        return None;
    }
    let integral = value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0;
    let text = if integral {
        format!("{value:.0}")
    } else {
        serde_json::Number::from_f64(value)?.to_string()
    };
    Some(Json::from_trusted(if text == "-0" { "0".to_owned() } else { text }))
}
