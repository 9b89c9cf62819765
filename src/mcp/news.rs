//! The messages to a client while a run that it called goes on: the texts of `ctx:status` as progress,
//! and the lines of `ctx:log` as log messages.

#![expect(
    deprecated,
    reason = "log messages are deprecated in the newest revision, and still part of it"
)]

use rmcp::{
    RoleServer,
    model::{
        LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken,
    },
    service::Peer,
};
use serde_json::{Value, json};

use super::transport::{Path, Transport};

/// The number of events that are read after a look. Of more, only the last are told.
const MOST: usize = 500;

/// The way to a client during a call, and what it asked to be told.
pub(super) struct Told<'a> {
    /// The client.
    pub(super) peer: &'a Peer<RoleServer>,
    /// The token of the progress, if it asked for that.
    pub(super) progress: Option<ProgressToken>,
    /// The least level of the log messages that it gets, if it asked for these.
    pub(super) logs: Option<LoggingLevel>,
}

impl Told<'_> {
    /// Returns true if it is told anything.
    pub(super) fn is_any(&self) -> bool {
        self.progress.is_some() || self.logs.is_some()
    }
}

/// The part of a run's events that a client knows.
#[derive(Debug, Default)]
pub(super) struct News {
    seen: u64,
    count: u32,
}

impl News {
    /// Tells a client what has happened since it was told something.
    pub(super) async fn tell(&mut self, transport: &dyn Transport, run: &Value, client: &Told<'_>) {
        let Some(id) = run["id"].as_str().filter(|_| client.is_any()) else { return };
        let path = Path::new("/v1/runs").at(id).at("events");
        let path = path.with("format", Some("json")).with("limit", Some(MOST));
        // What cannot be read now is told after the next look.
        let Ok(page) = transport.get(path).await else { return };
        for event in self.fresh(&page) {
            let data = &event["data"];
            match (event["type"].as_str(), &client.progress, client.logs) {
                (Some("status"), Some(token), _) => {
                    self.count += 1;
                    let count = f64::from(self.count);
                    let mut told = ProgressNotificationParam::new(token.clone(), count);
                    told.message = data["text"].as_str().map(str::to_owned);
                    // A client that has gone is noticed where its answer is sent.
                    let _ = client.peer.notify_progress(told).await;
                }
                (Some("log"), _, Some(least)) => {
                    let level = level_of(&data["level"]);
                    if rank(level) >= rank(least) {
                        let said = json!({ "message": data["message"], "data": data["data"] });
                        let mut told = LoggingMessageNotificationParam::new(level, said);
                        told.logger = Some(id.to_owned());
                        let _ = client.peer.notify_logging_message(told).await;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the events of a page that were not seen before.
    fn fresh<'a>(&mut self, page: &'a Value) -> Vec<&'a Value> {
        let seq = |event: &Value| event["seq"].as_u64().unwrap_or_default();
        let all = page["items"].as_array().into_iter().flatten();
        let fresh: Vec<&Value> = all.filter(|event| seq(event) > self.seen).collect();
        self.seen = fresh.last().map_or(self.seen, |event| seq(event));
        fresh
    }
}

/// Returns the level of a line of `ctx:log`.
fn level_of(level: &Value) -> LoggingLevel {
    match level.as_str() {
        Some("debug") => LoggingLevel::Debug,
        Some("warn") => LoggingLevel::Warning,
        Some("error") => LoggingLevel::Error,
        _ => LoggingLevel::Info,
    }
}

/// Returns the place of a level in their order.
fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

/// The level that a client of an older revision has set, for as long as its session or its pipe.
#[derive(Debug, Clone, Default)]
pub(super) struct Level(std::sync::Arc<parking_lot::Mutex<Option<LoggingLevel>>>);

impl Level {
    /// Sets the least level of log messages.
    pub(super) fn set(&self, level: LoggingLevel) {
        *self.0.lock() = Some(level);
    }

    /// Returns the level, if one was set.
    pub(super) fn get(&self) -> Option<LoggingLevel> {
        *self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_once() {
        let event = |seq: u64| json!({ "seq": seq, "type": "log" });
        let mut news = News::default();
        assert_eq!(news.fresh(&json!({ "items": [event(1), event(2)] })).len(), 2);
        assert_eq!(news.fresh(&json!({ "items": [event(1), event(2)] })).len(), 0);
        assert_eq!(news.fresh(&json!({ "items": [event(2), event(3)] })), [&event(3)]);
        assert_eq!(news.fresh(&json!({ "code": "not_found" })).len(), 0);
    }

    #[test]
    fn every_level_of_a_flow_is_one_of_the_protocol() {
        let ranks = ["debug", "info", "warn", "error"].map(|it| rank(level_of(&json!(it))));
        assert_eq!(ranks, [0, 1, 3, 4]);
    }
}
