//! An event as a line.

use super::text::printable;
use crate::engine::EventView;

/// What a model said before an event, on one line.
pub fn said_line(before: &EventView, line: &str) -> String {
    let time = before.at.get(11..23).unwrap_or(&before.at);
    format!("{time}     ~ {line}")
}

/// Time, number, kind and data of an event in one line.
pub fn event(it: &EventView) -> String {
    let time = it.at.get(11..23).unwrap_or(&it.at);
    let seq = it.seq.map_or_else(|| "~".to_owned(), |seq| seq.to_string());
    let data = it.data.to_value();
    let said = ["message", "text", "name"].iter().find_map(|key| data.get(key)?.as_str());
    match (it.kind.as_str(), said) {
        ("log" | "status", Some(text)) => {
            let level = data.get("level").and_then(|level| level.as_str()).unwrap_or(&it.kind);
            format!("{time} {seq:>5} {level}: {}", printable(text))
        }
        (kind, _) if it.data.is_null() => format!("{time} {seq:>5} {kind}"),
        (kind, _) => format!("{time} {seq:>5} {kind} {}", printable(it.data.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Json;

    #[test]
    fn an_event_is_one_line() {
        let shown = |seq, kind: &str, data: &str| {
            event(&EventView {
                seq,
                kind: kind.into(),
                at: "2026-01-01T10:20:30.456Z".into(),
                data: Json::parse(data).unwrap(),
            })
        };
        let lines = [
            shown(Some(3), "step.completed", r#"{"step":2}"#),
            shown(Some(4), "log", r#"{"level":"warn","message":"odd\nname"}"#),
            shown(Some(5), "status", r#"{"text":"half way"}"#),
            shown(None, "progress", "null"),
        ];
        insta::assert_snapshot!(lines.join("\n"), @r#"
        10:20:30.456     3 step.completed {"step":2}
        10:20:30.456     4 warn: odd name
        10:20:30.456     5 status: half way
        10:20:30.456     ~ progress
        "#);
    }
}
