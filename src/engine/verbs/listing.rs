//! The lists of layers and of the audit log.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::engine::{Caller, EngineError, Page, rfc3339, verbs::engine::UpkeepVerbs};
use crate::{protocol::Json, token::Verb};

/// The maximum number of lines of the audit log in one page.
const LINES: usize = 1_000;
/// The maximum number of values of one layer that are listed.
const STATES: usize = 100;

/// A layer of middleware, in its place.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LayerView {
    /// The boundary that it wraps: `dispatch`, `store` or `exec`.
    pub boundary: String,
    /// Its class: `observer`, `transformer` or `guard`.
    pub class: String,
    /// Its name.
    pub name: String,
    /// The origin: `host` or `blueprint`.
    pub from: String,
    /// Its settings; absent for a layer that is code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub settings: Option<Json>,
}

/// The value that a layer keeps under a key: the count of a breaker, the bucket of a rate limit.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LayerState {
    /// The layer's name.
    pub layer: String,
    /// The key: mostly an operator.
    pub key: String,
    /// The value.
    #[schema(value_type = serde_json::Value)]
    pub value: Json,
    /// RFC 3339, UTC: when it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A line of the audit log.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AuditView {
    /// Its number, from 1 and without gaps.
    pub seq: u64,
    /// The time, RFC 3339 in UTC.
    pub at: String,
    /// The event, as the text of a JSON object: the exact bytes that were hashed.
    pub line: String,
    /// BLAKE3 in hex of the hash before, the number, the time and the line, each after its length
    /// as 8 bytes, least first; the hash before the first line is 64 zeros.
    pub hash: String,
}

impl UpkeepVerbs<'_> {
    /// Returns the layers of runs, boundary by boundary, from the outermost to the innermost; with
    /// a blueprint (`name[@hash]`) those of its runs.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the blueprint is unknown.
    pub async fn layers(
        self,
        caller: &Caller,
        blueprint: Option<String>,
    ) -> Result<Vec<LayerView>, EngineError> {
        caller.grant.check(Verb::HostRead, &[])?;
        let inner = Arc::clone(&self.engine.inner);
        let list = move || {
            let shared = &inner.shared;
            let program =
                blueprint.map(|reference| shared.programs.resolve(&reference, None)).transpose()?;
            Ok(shared.stacks.list(program.as_deref()))
        };
        let listed = self.engine.shared().tasks.spawn_blocking(list).await;
        let listed = listed.map_err(|_| EngineError::Stopping)?;
        let view = |it: crate::middleware::Listed| LayerView {
            boundary: it.boundary.as_str().to_owned(),
            class: it.class.as_str().to_owned(),
            name: it.name,
            from: it.from.to_owned(),
            settings: it.settings.map(Json::from_trusted),
        };
        listed.map(|listed| listed.into_iter().map(view).collect())
    }

    /// Returns what the breakers and rate limits of the host keep, at most 100 values of each.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn layer_states(self, caller: &Caller) -> Result<Vec<LayerState>, EngineError> {
        const SHOWN: [&str; 2] = ["circuit_breaker", "rate_limit"];
        let layers = self.layers(caller, None).await?;
        let now_ms = self.engine.shared().clock.now_ms();
        let kind = |it: &LayerView| it.settings.as_ref().map(|it| it.to_value()["kind"].clone());
        let shown =
            |it: &LayerView| kind(it).is_some_and(|kind| SHOWN.iter().any(|shown| kind == *shown));
        let mut states = Vec::new();
        for layer in layers.into_iter().filter(shown) {
            let name = layer.name.clone();
            let rows = self.engine.read(move |store| store.kept_by(&name, "", STATES)).await?;
            let live = rows.into_iter().filter(|it| it.expires_ms.is_none_or(|at| at > now_ms));
            states.extend(live.map(|it| LayerState {
                layer: layer.name.clone(),
                key: it.key,
                value: Json::from_trusted(it.value),
                expires_at: it.expires_ms.map(rfc3339),
            }));
        }
        Ok(states)
    }

    /// Returns lines of the audit log after a number, oldest first.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn audit(
        self,
        caller: &Caller,
        after: u64,
        limit: usize,
    ) -> Result<Page<AuditView>, EngineError> {
        caller.grant.check(Verb::AuditRead, &[])?;
        let limit = limit.clamp(1, LINES);
        let mut rows = self.engine.read(move |store| store.audit(after, limit + 1)).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next_cursor = rows.last().filter(|_| more).map(|row| row.seq.to_string());
        let view = |it: crate::store::AuditRow| AuditView {
            seq: it.seq,
            at: it.at,
            line: it.line,
            hash: it.hash,
        };
        Ok(Page { items: rows.into_iter().map(view).collect(), next_cursor })
    }
}
