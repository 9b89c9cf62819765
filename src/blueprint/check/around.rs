//! Checks the triggers of a blueprint.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    checker::Checker,
    value::{Table, describe},
};
use crate::{
    blueprint::{
        FileWatch, Schedule,
        definition::{Missed, Trigger, TriggerEvent},
        diagnostics::code,
        library,
        locate::pointer,
    },
    protocol::Tags,
    schema::{Schema, first_of},
};

/// The events that a trigger can wait for, each with its own keys.
const EVENTS: [(&str, &[&str]); 3] = [
    ("schedule", &["zone", "missed"]),
    ("signal", &[]),
    ("watch", &["root", "settle", "max_open", "missed"]),
];
/// Triggers of one blueprint.
const MOST: usize = 64;
/// File watches of one blueprint.
const MOST_WATCHES: usize = 8;
/// The shortest and the longest time that watched files rest, in milliseconds.
const SETTLES: std::ops::RangeInclusive<u64> = 100..=3_600_000;

impl Checker<'_> {
    pub(super) fn triggers(&mut self, table: &Table<'_>, input: Option<&Value>) -> Vec<Trigger> {
        let mut triggers = Vec::new();
        let list = self.list(table, "on");
        let input = input.filter(|_| !list.is_empty());
        let accepts = input.and_then(|it| Schema::compile_value(it.clone(), true).ok());
        if list.len() > MOST {
            let message =
                format!("`on` has {} triggers, and at most {MOST} are allowed", list.len());
            self.findings.push(self.at_value("/on", code::OUT_OF_RANGE, message));
        }
        for (value, at) in list.into_iter().take(MOST) {
            match Table::new(value, &at, "a trigger in `on`") {
                Some(trigger) => {
                    let read = self.trigger(&trigger);
                    if let (Some(read), Some(accepts)) = (&read, &accepts) {
                        self.starts(&trigger, read, accepts);
                    }
                    triggers.extend(read);
                }
                None => {
                    let message = format!("a trigger is a table, and this is {}", describe(value));
                    let finding = self
                        .at_value(&at, code::WRONG_TYPE, message)
                        .hint("write `{ schedule = \"0 7 * * 1-5\" }`, `{ signal = \"name\" }` or `{ watch = \"inbox/*.json\" }`");
                    self.findings.push(finding);
                }
            }
        }
        let watched = |it: &&Trigger| matches!(it.event, TriggerEvent::Watch { .. });
        let watches = triggers.iter().filter(watched).count();
        if watches > MOST_WATCHES {
            let message =
                format!("`on` has {watches} file watches, and at most {MOST_WATCHES} are allowed");
            self.findings.push(self.at_value("/on", code::OUT_OF_RANGE, message));
        }
        triggers
    }

    fn trigger(&mut self, table: &Table<'_>) -> Option<Trigger> {
        self.known_keys(table, &library::keys("Trigger"), &[]);
        let input = table.get("input").map(Into::into);
        let given: Vec<_> = EVENTS.iter().filter(|(it, _)| table.get(it).is_some()).collect();
        let [(event, keys)] = given[..] else {
            if given.is_empty() {
                self.missing(table, "schedule", "schedule = \"0 7 * * 1-5\"");
            } else {
                let names: Vec<_> = given.iter().map(|(name, _)| format!("`{name}`")).collect();
                let message = format!("a trigger is one of {}, not several", names.join(" and "));
                let finding = self.at_value(table.at(), code::KEY_DOES_NOT_FIT, message);
                self.findings.push(finding.hint("write a trigger for each"));
            }
            return None;
        };
        let mut said = Vec::new();
        for (other, their) in EVENTS {
            let strange = their.iter().filter(|key| !keys.contains(key));
            for key in strange.filter(|key| table.get(key).is_some()) {
                if said.contains(key) {
                    continue;
                }
                said.push(*key);
                let message = format!("`{key}` is for `{other}`, and this trigger is a `{event}`");
                let finding = self.at_key(&table.pointer(key), code::KEY_DOES_NOT_FIT, message);
                self.findings.push(finding.hint("remove it"));
            }
        }
        let tags = self.tags(table);
        let text = self.text(table, event)?;
        let tags = tags?;
        let event = match *event {
            "schedule" => self.schedule(table, &text)?,
            "watch" => self.watch(table, &text)?,
            _ => TriggerEvent::Signal(text),
        };
        Some(Trigger { event, input, tags })
    }

    /// Warns of a trigger that starts no run, since the blueprint refuses its input.
    fn starts(&mut self, table: &Table<'_>, trigger: &Trigger, accepts: &Schema) {
        let (input, at) = match (table.get("input"), &trigger.event) {
            (Some(input), _) => (input.clone(), table.pointer("input")),
            // The sender of the signal gives the input.
            (None, TriggerEvent::Signal(_)) => return,
            (None, TriggerEvent::Schedule { .. } | TriggerEvent::Watch { .. }) => {
                (serde_json::json!({}), table.at().to_owned())
            }
        };
        if let Err(violations) = accepts.accept(input) {
            let message = format!(
                "this trigger starts no run: its input does not match the blueprint's `input`{}",
                first_of(&violations)
            );
            let finding = self.at_value(&at, code::TRIGGER_INPUT, message).warning();
            self.findings.push(finding.hint("write the `input` of its runs in the trigger"));
        }
    }

    /// Reads the tags of the runs that a trigger starts.
    fn tags(&mut self, table: &Table<'_>) -> Option<Tags> {
        let Some(value) = table.get("tags") else { return Some(Tags::default()) };
        let map = serde_json::from_value::<BTreeMap<String, String>>(value.clone());
        let Ok(map) = map else {
            // An empty table of Lua is an array.
            if value.as_array().is_some_and(Vec::is_empty) {
                return Some(Tags::default());
            }
            self.wrong_type(table, "tags", "a table of strings by name", value);
            return None;
        };
        match Tags::new(map) {
            Ok(tags) => Some(tags),
            Err(error) => {
                let message = format!("failed to {error}");
                let finding = self.at_value(&table.pointer("tags"), code::OUT_OF_RANGE, message);
                self.findings.push(finding);
                None
            }
        }
    }

    fn schedule(&mut self, table: &Table<'_>, cron: &str) -> Option<TriggerEvent> {
        let zone = self.text(table, "zone");
        let missed = self.missed(table)?;
        match Schedule::parse(cron, zone.as_deref()) {
            Ok(schedule) => Some(TriggerEvent::Schedule { schedule: Box::new(schedule), missed }),
            Err(error) => {
                let key = if error.is_zone() { "zone" } else { "schedule" };
                let finding = self
                    .at_value(&table.pointer(key), code::BAD_SCHEDULE, format!("failed to {error}"))
                    .hint("minute, hour, day, month, weekday: `0 7 * * 1-5`; zones are those of the tz database: `Europe/Berlin`");
                self.findings.push(finding);
                None
            }
        }
    }

    fn watch(&mut self, table: &Table<'_>, pattern: &str) -> Option<TriggerEvent> {
        let root = self.text(table, "root");
        let missed = self.missed(table)?;
        let bad = |it: &mut Self, key: &str, message: String, hint: &str| {
            let finding = it.at_value(&table.pointer(key), code::BAD_WATCH, message);
            it.findings.push(finding.hint(hint));
        };
        if missed == Missed::All {
            let message = "nobody counts the changes of a file while no host runs".to_owned();
            bad(
                self,
                "missed",
                message,
                "`missed = \"once\"`, which is the default, or `\"skip\"`",
            );
        }
        let settle_ms = self.duration(table, "settle");
        if settle_ms.is_some_and(|ms| !SETTLES.contains(&ms)) {
            let message = "`settle` must be between 100ms and 1h".to_owned();
            bad(self, "settle", message, "how long files rest before a change counts: `\"2s\"`");
        }
        let open = self.integer(table, "max_open", 1..=100);
        match FileWatch::parse(pattern, root.as_deref()) {
            Ok(watch) => {
                let watch = Box::new(watch.with(settle_ms, open));
                Some(TriggerEvent::Watch { watch, missed })
            }
            Err(error) => {
                let hint = "a pattern below the blueprint's directory: `inbox/*.json`, `docs/**/*.md`; another directory needs `root`";
                bad(self, "watch", format!("failed to {error}"), hint);
                None
            }
        }
    }

    fn missed(&mut self, table: &Table<'_>) -> Option<Missed> {
        match self.text(table, "missed").as_deref() {
            None | Some("once") => Some(Missed::Once),
            Some("skip") => Some(Missed::Skip),
            Some("all") => Some(Missed::All),
            Some(_) => {
                let message = "`missed` must be \"skip\", \"once\" or \"all\"";
                let at = table.pointer("missed");
                let code =
                    if table.get("watch").is_some() { code::BAD_WATCH } else { code::BAD_SCHEDULE };
                self.findings.push(self.at_value(&at, code, message));
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
