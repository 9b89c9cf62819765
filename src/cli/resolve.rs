//! From what a person types for a run to its id.

use anyhow::Result;

use super::{
    client::Client,
    exit::{Exit, Stop},
};
use crate::protocol::{RunId, TaskId};

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

/// Reads a task's id.
///
/// # Errors
/// A word that is no task id.
pub fn task(word: &str) -> Result<TaskId> {
    word.parse().map_err(|_| {
        Stop::usage(format!("{word:?} is not a task id"))
            .next("`moonswarm inbox` lists open tasks")
            .into()
    })
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
    async fn last_is_the_newest() {
        let newest = RunId::new(9, 5_000);
        assert_eq!(find("last", &[newest]).await.unwrap(), newest);
        assert!(find("last", &[]).await.is_err());
    }
}
