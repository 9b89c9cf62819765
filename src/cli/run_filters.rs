//! The flags that select runs: those of lists, and of acts on many runs.

use anyhow::Result;
use clap::Args;

use crate::{
    cli::{client::Client, exit::Stop, resolve},
    store::RunStatus,
};

/// The filters of a list of runs.
#[derive(Debug, Default, Args)]
pub struct RunFilters {
    /// Only runs with this status (repeatable, or several with commas)
    #[arg(long, value_delimiter = ',')]
    status: Vec<String>,
    /// Only runs of this blueprint
    #[arg(long)]
    blueprint: Option<String>,
    /// Only runs with this tag (repeatable)
    #[arg(long = "tag", value_name = "NAME[=VALUE]")]
    tags: Vec<String>,
    /// Only runs whose error or status text has these words, or whose id begins like this
    #[arg(short = 'q', long, value_name = "WORDS")]
    text: Option<String>,
    /// Only runs with an error of this kind
    #[arg(long, alias = "error")]
    kind: Option<String>,
    /// Only runs that had a task of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only runs that wait for this: task, signal, timer, or a name
    #[arg(long, value_name = "WHAT")]
    waiting_on: Option<String>,
    /// Only runs started by this subject
    #[arg(long, value_name = "SUBJECT")]
    started_by: Option<String>,
    /// Only runs that this run called
    #[arg(long, value_name = "RUN")]
    parent: Option<String>,
    /// Only runs whose reported cost is at least this, in US dollars
    #[arg(long, value_name = "USD")]
    min_cost: Option<String>,
    /// Only runs started at or after this time (RFC 3339)
    #[arg(long)]
    since: Option<String>,
    /// Only runs started before this time (RFC 3339)
    #[arg(long)]
    until: Option<String>,
    /// Only runs that ended at or after this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    ended_since: Option<String>,
    /// Only runs that ended before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    ended_until: Option<String>,
}

impl RunFilters {
    /// Returns the filters under their names in the API. Those that may be repeated are `status` and `tag`.
    ///
    /// # Errors
    /// A status that does not exist, or a parent that is not found.
    pub async fn parameters(&self, client: &Client) -> Result<Vec<(&'static str, String)>> {
        check(&self.status)?;
        let mut all: Vec<_> = self.status.iter().map(|it| ("status", it.clone())).collect();
        all.extend(self.tags.iter().map(|tag| ("tag", tag.clone())));
        for (name, value) in [
            ("blueprint", &self.blueprint),
            ("q", &self.text),
            ("kind", &self.kind),
            ("agent", &self.agent),
            ("waiting_on", &self.waiting_on),
            ("started_by", &self.started_by),
            ("min_cost", &self.min_cost),
            ("since", &self.since),
            ("until", &self.until),
            ("ended_since", &self.ended_since),
            ("ended_until", &self.ended_until),
        ] {
            all.extend(value.clone().map(|value| (name, value)));
        }
        if let Some(parent) = &self.parent {
            all.push(("parent", resolve::run(client, parent).await?.to_string()));
        }
        Ok(all)
    }
}

fn check(statuses: &[String]) -> Result<(), Stop> {
    for word in statuses {
        if RunStatus::parse(word).is_none() {
            let known: Vec<_> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
            let message = format!("there is no status {word:?}");
            return Err(Stop::usage(message).next(format!("one of: {}", known.join(", "))));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_status_is_refused_with_those_there_are() {
        let stop = check(&["done".into()]).unwrap_err();
        assert!(stop.next.unwrap().contains("completed"));
    }
}
