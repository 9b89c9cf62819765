//! The command that moves a waiting run.

pub use crate::dashboard::move_command as command;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, engine::WaitingOn, store::RunStatus};

    fn on(kind: &str, subject: serde_json::Value) -> WaitingOn {
        let subject = serde_json::from_value(subject).unwrap();
        WaitingOn { kind: kind.into(), subject, since: String::new(), until: None }
    }

    fn shown(kind: &str, subject: serde_json::Value) -> (String, Option<String>) {
        let run = fixture::run(RunStatus::Waiting);
        let on = on(kind, subject);
        let own = |command: String| command.replace(&run.id.to_string(), "RUN");
        (on.to_string(), command(&run, &on).map(own))
    }

    #[test]
    fn each_kind_has_its_words_and_the_command_that_moves_it() {
        let rows = [
            ("timer", serde_json::json!({}), "a time", None),
            (
                "signal",
                serde_json::json!({ "name": "it's on" }),
                "signal \"it's on\"",
                Some(r"moonswarm signal RUN 'it'\''s on' '<json>'"),
            ),
            (
                "signal",
                serde_json::json!({ "name": "--server=x" }),
                "signal \"--server=x\"",
                Some("moonswarm signal RUN -- '--server=x' '<json>'"),
            ),
            ("resume", serde_json::json!({ "reason": "why" }), "why", Some("moonswarm resume RUN")),
            (
                "task",
                serde_json::json!({ "name": "build", "operator": "queue", "queue": "builds",
                    "operator_kind": "queue", "labels": { "gpu": "true" } }),
                "build (queue)",
                Some("moonswarm worker --queue builds --label gpu=true -- <command>"),
            ),
            (
                "task",
                serde_json::json!({ "name": "build", "operator": "queue", "queue": "builds",
                    "operator_kind": "queue", "served": false }),
                "build (queue), which no worker takes",
                Some("moonswarm worker --queue builds -- <command>"),
            ),
            (
                "task",
                serde_json::json!({ "name": "build", "operator": "queue", "queue": "q; rm -rf ~",
                    "operator_kind": "queue" }),
                "build (queue)",
                Some("moonswarm worker --queue 'q; rm -rf ~' -- <command>"),
            ),
            (
                "task",
                serde_json::json!({ "name": "code", "operator": "main-ai",
                    "session": { "state": "none" } }),
                "code (main-ai) for a session to open",
                Some("moonswarm sessions open main-ai"),
            ),
            (
                "task",
                serde_json::json!({ "name": "code", "operator": "main-ai",
                    "session": { "state": "several", "open": 2 } }),
                "code (main-ai) for a seat: 2 sessions are open",
                Some("moonswarm seat RUN main-ai <session>"),
            ),
            (
                "capacity",
                serde_json::json!({ "name": "code", "operator": "echo" }),
                "code (echo)",
                None,
            ),
        ];
        for (kind, subject, words, command) in rows {
            assert_eq!(shown(kind, subject), (words.to_owned(), command.map(str::to_owned)));
        }
    }
}
