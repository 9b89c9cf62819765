//! What starts a run by itself.

use serde_json::Value;

use super::{
    Checker,
    value::{Table, describe},
};
use crate::blueprint::{
    Schedule,
    definition::{Missed, Trigger, TriggerEvent},
    diagnostics::code,
    locate::pointer,
};

const TRIGGER: [&str; 5] = ["input", "missed", "schedule", "signal", "zone"];
/// Triggers of one blueprint.
const MOST: usize = 64;

impl Checker<'_> {
    pub(super) fn triggers(&mut self, table: &Table<'_>) -> Vec<Trigger> {
        let mut triggers = Vec::new();
        let list = self.list(table, "on");
        if list.len() > MOST {
            let message =
                format!("`on` has {} triggers, and at most {MOST} are allowed", list.len());
            self.findings.push(self.at_value("/on", code::OUT_OF_RANGE, message));
        }
        for (value, at) in list.into_iter().take(MOST) {
            match Table::new(value, &at, "a trigger in `on`") {
                Some(trigger) => triggers.extend(self.trigger(&trigger)),
                None => {
                    let message = format!("a trigger is a table, and this is {}", describe(value));
                    let finding = self
                        .at_value(&at, code::WRONG_TYPE, message)
                        .hint("write `{ schedule = \"0 7 * * 1-5\" }` or `{ signal = \"name\" }`");
                    self.findings.push(finding);
                }
            }
        }
        triggers
    }

    fn trigger(&mut self, table: &Table<'_>) -> Option<Trigger> {
        self.known_keys(table, &TRIGGER, &[]);
        let input = table.get("input").map(Into::into);
        let (schedule, signal) = (self.text(table, "schedule"), self.text(table, "signal"));
        let event = match (schedule, signal) {
            (Some(cron), None) => {
                let zone = self.text(table, "zone");
                let missed = self.missed(table)?;
                match Schedule::parse(&cron, zone.as_deref()) {
                    Ok(schedule) => TriggerEvent::Schedule { schedule: Box::new(schedule), missed },
                    Err(error) => {
                        let key = if error.is_zone() { "zone" } else { "schedule" };
                        let finding = self
                            .at_value(&table.pointer(key), code::BAD_SCHEDULE, format!("failed to {error}"))
                            .hint("minute, hour, day, month, weekday: `0 7 * * 1-5`; zones are those of the tz database: `Europe/Berlin`");
                        self.findings.push(finding);
                        return None;
                    }
                }
            }
            (None, Some(name)) => {
                for key in ["zone", "missed"] {
                    if table.get(key).is_some() {
                        let message =
                            format!("`{key}` is for schedules, and this trigger is a signal");
                        let finding =
                            self.at_key(&table.pointer(key), code::KEY_DOES_NOT_FIT, message);
                        self.findings.push(finding.hint("remove it"));
                    }
                }
                TriggerEvent::Signal(name)
            }
            (Some(_), Some(_)) => {
                let message = "a trigger is a schedule or a signal, and this one is both";
                let finding = self.at_value(table.at(), code::KEY_DOES_NOT_FIT, message);
                self.findings.push(finding.hint("write two triggers"));
                return None;
            }
            (None, None) => {
                self.missing(table, "schedule", "schedule = \"0 7 * * 1-5\"");
                return None;
            }
        };
        Some(Trigger { event, input })
    }

    fn missed(&mut self, table: &Table<'_>) -> Option<Missed> {
        match self.text(table, "missed").as_deref() {
            None | Some("once") => Some(Missed::Once),
            Some("skip") => Some(Missed::Skip),
            Some("all") => Some(Missed::All),
            Some(_) => {
                let message = "`missed` must be \"skip\", \"once\" or \"all\"";
                let at = table.pointer("missed");
                self.findings.push(self.at_value(&at, code::BAD_SCHEDULE, message));
                None
            }
        }
    }

    /// The items of a list, with where each stands.
    pub(super) fn list<'t>(&mut self, table: &Table<'t>, key: &str) -> Vec<(&'t Value, String)> {
        let at = table.pointer(key);
        match table.get(key) {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                let place = |n: usize| pointer(&at, &n.to_string());
                items.iter().enumerate().map(|(n, item)| (item, place(n))).collect()
            }
            Some(Value::Object(map)) if map.is_empty() => Vec::new(),
            Some(other) => {
                self.wrong_type(table, key, "a list", other);
                Vec::new()
            }
        }
    }
}
