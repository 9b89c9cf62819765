//! From what a person types for a run or a task to its id.

use anyhow::Result;

use super::{
    client::Client,
    exit::{Exit, Stop},
};
use crate::{
    engine::TaskView,
    operator::HUMAN,
    protocol::{RunId, TaskId},
};

const PAGES: usize = 20;

/// Finds a run by its id, by a unique beginning of it, or by `last`.
///
/// # Errors
/// No such run, or more than one.
pub async fn run(client: &Client, word: &str) -> Result<RunId> {
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    if word == "last" {
        let page = client.runs(&[("limit", "1".to_owned())]).await?;
        let newest = page.items.first().map(|run| run.id);
        return newest.ok_or_else(|| none("no run was ever started here"));
    }
    let prefix = if word.starts_with("run_") { word.to_owned() } else { format!("run_{word}") };
    let mut found = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES {
        let mut query = vec![("q", prefix.clone()), ("limit", "200".to_owned())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page = client.runs(&query).await?;
        let ids = page.items.iter().map(|run| run.id);
        found.extend(ids.filter(|id| id.to_string().starts_with(&prefix)));
        cursor = page.next_cursor;
        if cursor.is_none() || found.len() > 1 {
            break;
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(none(&format!("there is no run {word}"))),
        [first, second, ..] => Err(Stop::usage(format!("{word} could be {first} or {second}"))
            .next("type more of the id")
            .into()),
    }
}

/// A task as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskName {
    /// The task with this id.
    Id(TaskId),
    /// The newest open task that the command can be about.
    Last,
}

/// The open tasks that a command can be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidates {
    /// Tasks that ask the holder of the token, who has not answered them.
    You,
    /// Tasks of people.
    People,
    /// Tasks whose worker asks a senior.
    Senior,
    /// Tasks of people, and those whose worker asks a senior.
    Anybody,
}

/// Reads the name of a task: its id, or `last`.
///
/// # Errors
/// A word that is neither.
pub fn task(word: &str) -> Result<TaskName> {
    if word == "last" {
        return Ok(TaskName::Last);
    }
    word.parse().map(TaskName::Id).map_err(|_| {
        let stop = match word.parse::<RunId>() {
            Ok(run) => Stop::usage(format!("{run} is a run, and no task"))
                .next("`moonswarm show RUN` names the tasks that it waits for"),
            Err(_) => Stop::usage(format!("{word:?} is not a task id"))
                .next("`moonswarm inbox` lists open tasks; `last` stands for the newest"),
        };
        stop.into()
    })
}

impl TaskName {
    /// Returns the id of the task.
    ///
    /// # Errors
    /// No open task that the command can be about.
    pub async fn find(self, client: &Client, among: Candidates) -> Result<TaskId> {
        match self {
            Self::Id(task) => Ok(task),
            Self::Last => newest(client, among).await,
        }
    }
}

/// Finds the newest of the open tasks.
async fn newest(client: &Client, among: Candidates) -> Result<TaskId> {
    let mut newest: Option<TaskView> = None;
    let mut cursor = None;
    for _ in 0..PAGES {
        let mut query = vec![("state", "open".to_owned()), ("limit", "500".to_owned())];
        match among {
            Candidates::You => query.push(("mine", "true".to_owned())),
            Candidates::People => query.push(("kind", HUMAN.to_owned())),
            Candidates::Senior | Candidates::Anybody => {}
        }
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page = client.tasks(&query).await?;
        for task in page.items.into_iter().filter(|task| among.has(task)) {
            // The list goes by runs, and an old run may have asked last.
            if newest.as_ref().is_none_or(|known| known.scheduled_at <= task.scheduled_at) {
                newest = Some(task);
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    newest.map(|task| task.id).ok_or_else(|| among.nothing())
}

impl Candidates {
    fn has(self, task: &TaskView) -> bool {
        match self {
            Self::You | Self::People => task.kind == HUMAN,
            Self::Senior => task.question.is_some(),
            Self::Anybody => task.kind == HUMAN || task.question.is_some(),
        }
    }

    fn nothing(self) -> anyhow::Error {
        let message = match self {
            Self::You => "no open task asks you",
            Self::People => "no open task is for people",
            Self::Senior => "no worker waits for the answer to a question",
            Self::Anybody => "nothing waits for an answer",
        };
        let next = match self {
            Self::Senior => "`moonswarm inbox` lists the questions of workers while they are open",
            Self::You | Self::People | Self::Anybody => {
                "`moonswarm inbox` lists the open tasks; name one by its id"
            }
        };
        Stop::new(Exit::NotFound, message).next(next).into()
    }
}

fn none(message: &str) -> anyhow::Error {
    Stop::new(Exit::NotFound, message).next("`moonswarm ps` lists runs").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cli::fixture, protocol::RunId, store::RunStatus};

    fn page(ids: &[RunId]) -> (u16, String) {
        let items: Vec<_> = ids
            .iter()
            .map(|id| crate::engine::RunView { id: *id, ..fixture::run(RunStatus::Running) })
            .collect();
        (200, json!({"items": items, "next_cursor": null}).to_string())
    }

    async fn find(word: &str, ids: &[RunId]) -> Result<RunId> {
        let server = fixture::serve(vec![page(ids)]).await;
        run(&Client::new(&server.url, "t").unwrap(), word).await
    }

    #[tokio::test]
    async fn a_run_is_found_by_its_beginning_if_that_is_unique() {
        let (a, b) = (RunId::new(1, 1_000), RunId::new(2, 900_000_000_000));
        let beginning: String = b.to_string().chars().take(10).collect();
        assert_eq!(find(&beginning, &[b, a]).await.unwrap(), b);
        assert_eq!(find(beginning.trim_start_matches("run_"), &[b, a]).await.unwrap(), b);
        assert!(find("run_", &[b, a]).await.unwrap_err().to_string().contains("could be"));
        assert!(find("zz", &[b, a]).await.unwrap_err().to_string().contains("no run zz"));
    }

    #[tokio::test]
    async fn the_last_task_is_the_newest_that_the_command_can_be_about() {
        let task = |run: u64, kind: &str, at: &str, question: Option<&str>| {
            let id = TaskId::new(run, 1, 1_000);
            let task = json!({"id": id, "run": RunId::new(run, 1_000), "step": 1, "attempt": 1,
                "agent": "a", "operator": kind, "kind": kind, "state": "pending",
                "scheduled_at": at, "question": question});
            (id, task)
        };
        let (old, first) = task(1, "human", "2026-01-01T00:00:02.000Z", None);
        let (_, second) = task(2, "human", "2026-01-01T00:00:01.000Z", None);
        let (asking, third) = task(3, "queue", "2026-01-01T00:00:03.000Z", Some("Which?"));
        let (_, fourth) = task(4, "queue", "2026-01-01T00:00:04.000Z", None);
        let pages = || {
            let one = json!({"items": [first, second], "next_cursor": "2-1"});
            let two = json!({"items": [third, fourth], "next_cursor": null});
            vec![(200, one.to_string()), (200, two.to_string())]
        };
        let all = [
            (Candidates::You, old, "mine=true"),
            (Candidates::People, old, "kind=human"),
            (Candidates::Senior, asking, "limit=500"),
            (Candidates::Anybody, asking, "limit=500"),
        ];
        for (among, newest, part) in all {
            let server = fixture::serve(pages()).await;
            let client = Client::new(&server.url, "t").unwrap();
            assert_eq!(TaskName::Last.find(&client, among).await.unwrap(), newest, "{among:?}");
            assert!(server.asked()[0].contains(part), "{:?}", server.asked());
            assert!(server.asked()[1].contains("cursor=2-1"), "{:?}", server.asked());
        }
    }

    #[tokio::test]
    async fn without_an_open_task_last_says_where_they_are_listed() {
        let none = json!({"items": [], "next_cursor": null}).to_string();
        let server = fixture::serve(vec![(200, none)]).await;
        let client = Client::new(&server.url, "t").unwrap();
        let error = TaskName::Last.find(&client, Candidates::Senior).await.unwrap_err().to_string();
        assert!(error.contains("no worker waits") && error.contains("moonswarm inbox"), "{error}");
    }

    #[test]
    fn a_word_that_is_no_task_is_told_apart_from_a_run() {
        let id = TaskId::new(1, 1, 1_000);
        assert_eq!(task(&id.to_string()).unwrap(), TaskName::Id(id));
        assert_eq!(task("last").unwrap(), TaskName::Last);
        let run = RunId::new(1, 1_000).to_string();
        assert!(task(&run).unwrap_err().to_string().contains("is a run"));
        assert!(task("first").unwrap_err().to_string().contains("not a task id"));
    }

    #[tokio::test]
    async fn last_is_the_newest() {
        let newest = RunId::new(9, 5_000);
        assert_eq!(find("last", &[newest]).await.unwrap(), newest);
        assert!(find("last", &[]).await.is_err());
    }
}
