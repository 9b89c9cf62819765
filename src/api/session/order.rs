//! The order of a connection's calls: those about the same run reach it in the order of their
//! messages.
//!
//! A call begins when the one before it in its line was sent to the run, not when that is answered, so
//! a call that waits long for its answer holds back no other. Calls about different runs do not wait
//! for each other, and neither do calls that only read a run, or start one: a read may wait long for its
//! answer, and whatever is behind it would lose its precedence. A line exists as long as a call of it is
//! in progress.

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::{
    api::body::read_json,
    engine::Turn,
    protocol::{RunId, TaskId},
};

/// A line: its calls begin one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Line {
    /// Calls about a run.
    Run(u64),
    /// Acknowledgements.
    Acks,
    /// Renewals of the session.
    Renewals,
}

/// The part of a call that names its run.
#[derive(Deserialize)]
struct About {
    run: Option<String>,
    task: Option<String>,
}

impl Line {
    /// Returns the line of a call. A call that changes no run that is there has none.
    fn of(method: &str, params: &str) -> Option<Self> {
        match method {
            "ack" => Some(Self::Acks),
            "session/renew" => Some(Self::Renewals),
            "run/get" | "run/start" | "run/subscribe" | "tasks/list" => None,
            _ => {
                // One that cannot be read is refused later.
                let About { run, task } = read_json(params.as_bytes()).ok()?;
                let run = run.and_then(|run| run.parse::<RunId>().ok()).map(RunId::num);
                let of_task = || Some(task?.parse::<TaskId>().ok()?.run());
                run.or_else(of_task).map(Self::Run)
            }
        }
    }
}

/// The end of a line.
struct Tail {
    /// Shared by the calls of the line that are in progress.
    calls: Arc<()>,
    /// Resolves when the last call was sent.
    sent: oneshot::Receiver<()>,
}

/// The lines of a connection.
#[derive(Default)]
pub(super) struct Order {
    lines: HashMap<Line, Tail>,
}

/// The place of a call in its line.
pub(super) struct Stand {
    /// Resolves when the call before it was sent.
    before: Option<oneshot::Receiver<()>>,
    turn: Turn,
    /// Held until the call is answered.
    call: Arc<()>,
}

impl Order {
    /// Adds a call to its line, behind those whose messages came before; `None` if it has no line.
    pub(super) fn join(&mut self, method: &str, params: &str) -> Option<Stand> {
        let line = Line::of(method, params)?;
        self.lines.retain(|_, tail| Arc::strong_count(&tail.calls) > 1);
        let (calls, before) = match self.lines.remove(&line) {
            Some(Tail { calls, sent }) => (calls, Some(sent)),
            None => (Arc::default(), None),
        };
        let (turn, sent) = Turn::new(before.is_some());
        let call = Arc::clone(&calls);
        self.lines.insert(line, Tail { calls, sent });
        Some(Stand { before, turn, call })
    }
}

impl Stand {
    /// Runs the call when it is its turn.
    pub(super) async fn run<T>(self, begun: BoxFuture<'static, T>) -> T {
        let Self { before, turn, call: _call } = self;
        if let Some(before) = before {
            // It never sends anything: its end is the signal.
            let _ = before.await;
        }
        turn.run(begun).await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const RUN: &str = r#"{"run":"run_aaaaaaaaabyaaaeaaaaaaaaaaa","name":"go"}"#;

    #[test]
    fn a_line_is_of_a_run_or_of_a_method() {
        assert!(matches!(Line::of("run/signal", RUN), Some(Line::Run(_))));
        assert_eq!(Line::of("run/signal", RUN), Line::of("run/cancel", RUN));
        assert_eq!(Line::of("ack", r#"{"seq":1}"#), Some(Line::Acks));
        for (method, params) in [
            ("tasks/list", "{}"),
            ("run/get", RUN),
            ("run/start", RUN),
            ("run/subscribe", RUN),
            ("run/signal", "{}"),
            ("run/signal", r#"{"run":"x"}"#),
            ("run/signal", r#"{"run":1}"#),
        ] {
            assert_eq!(Line::of(method, params), None, "{method} {params}");
        }
    }

    #[tokio::test]
    async fn a_call_begins_when_the_one_before_it_is_done_and_lines_do_not_stay() {
        let mut order = Order::default();
        let (first, second) = (order.join("run/signal", RUN), order.join("run/cancel", RUN));
        let acks = order.join("ack", "{}").unwrap();
        assert_eq!(order.lines.len(), 2);
        let mut second = second.unwrap().run(async { 2 }.boxed()).boxed();
        assert!((&mut second).now_or_never().is_none(), "the first has not begun");
        assert_eq!(acks.run(async { 3 }.boxed()).await, 3, "another line");
        assert_eq!(first.unwrap().run(async { 1 }.boxed()).await, 1);
        assert_eq!(second.await, 2);
        assert!(order.join("run/get", RUN).is_none(), "it holds back no other");
        let alone = order.join("run/signal", RUN).unwrap();
        assert!(alone.before.is_none() && order.lines.len() == 1);
    }
}
