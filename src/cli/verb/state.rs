//! `state`: reads and changes what runs, sessions and the host remember.

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    exit::Exit,
    render::{fitted, printable},
    values,
};

/// Read or change state
#[derive(Debug, Args)]
pub struct State {
    /// The scope: global, run:ID, session:ID, operator:RUN:OPERATOR, custom:NAME
    #[arg(long, short, default_value = "global", global = true)]
    scope: String,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a value
    Get {
        /// The key
        key: String,
    },
    /// Write a value; prints its revision, or the result of a reducer
    Set(Set),
    /// Delete a value
    Delete {
        /// The key
        key: String,
        /// Only if the key has this revision
        #[arg(long, value_name = "N")]
        if_revision: Option<u64>,
    },
    /// List the scopes that have values, with their sizes
    Scopes {
        /// Only scopes with this prefix: `custom:`, `run:`
        prefix: Option<String>,
    },
    /// List keys
    Ls {
        /// Only keys with this prefix
        prefix: Option<String>,
    },
    /// Search for values that contain every word
    Search {
        /// Words to search for; a * at the end matches any ending
        #[arg(required = true)]
        words: Vec<String>,
        /// Maximum number of results
        #[arg(long, default_value_t = 20)]
        limit: usize,
    },
    /// Link a key to another one
    Link(Ends),
    /// Remove a link
    Unlink(Ends),
    /// List the keys reachable over links
    Links {
        /// The key to start from
        key: String,
        /// Follow only links of this relation
        #[arg(long)]
        relation: Option<String>,
        /// Maximum number of links in a row
        #[arg(long, default_value_t = 1)]
        depth: u32,
    },
}

#[derive(Debug, Args)]
struct Set {
    /// The key
    key: String,
    /// The value: JSON, @FILE, or - for stdin
    #[arg(allow_negative_numbers = true)]
    value: String,
    /// The way to combine it with the present value
    #[arg(long, value_enum, default_value = "overwrite")]
    reduce: Reduce,
    /// Only if the key has this revision; 0 if it must not exist
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    /// Time until the value expires
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Lifetime of the value
    #[arg(long, value_enum)]
    lifetime: Option<Lifetime>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Reduce {
    Overwrite,
    Append,
    Merge,
    Sum,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Lifetime {
    Transient,
    Session,
    Durable,
}

#[derive(Debug, Args)]
struct Ends {
    /// The key that the link starts at
    from: String,
    /// The key that the link points to
    to: String,
    /// Name of the relation
    relation: String,
}

async fn scopes(cx: &Context, at: &Connection, prefix: Option<&str>) -> Result<()> {
    let scopes = at.client.state_scopes(prefix.unwrap_or_default()).await?;
    if cx.terminal.json {
        return Ok(cx.terminal.print_json(&scopes)?);
    }
    let rows = scopes.iter().map(|it| {
        let more = if it.more { "+" } else { "" };
        vec![it.scope.clone(), format!("{}{more}", it.keys), format!("{}{more}", it.bytes)]
    });
    let heads = ["scope", "keys", "bytes"];
    Ok(cx.terminal.print(&fitted(cx.terminal.width(), &heads, rows))?)
}

impl State {
    /// Runs the command.
    ///
    /// # Errors
    /// No such value, another revision, or a token that does not reach the scope.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Existing, async |at| {
            match &self.action {
                Action::Get { key } => {
                    let found = at.client.state(&self.scope, key).await?;
                    match cx.terminal.json {
                        true => cx.terminal.print_json(&found)?,
                        false => cx.terminal.print_value(&found.value.to_value())?,
                    }
                }
                Action::Set(set) => self.set(cx, at, set).await?,
                Action::Delete { key, if_revision } => {
                    at.client.delete_state(&self.scope, key, *if_revision).await?;
                    cx.terminal.say(&format!("deleted {key} from {}", self.scope));
                }
                Action::Scopes { prefix } => scopes(cx, at, prefix.as_deref()).await?,
                Action::Ls { prefix } => {
                    self.list(cx, at, &[("prefix", prefix.clone().unwrap_or_default())]).await?;
                }
                Action::Search { words, limit } => {
                    let query = [("q", words.join(" ")), ("limit", limit.to_string())];
                    self.list(cx, at, &query).await?;
                }
                Action::Links { key, relation, depth } => {
                    let mut query = vec![("from", key.clone()), ("depth", depth.to_string())];
                    query.extend(relation.clone().map(|it| ("relation", it)));
                    self.list(cx, at, &query).await?;
                }
                Action::Link(ends) => self.link(cx, at, "link", ends).await?,
                Action::Unlink(ends) => self.link(cx, at, "unlink", ends).await?,
            }
            Ok(Exit::Ok)
        })
        .await
    }

    async fn set(&self, cx: &Context, at: &Connection, set: &Set) -> Result<()> {
        let mut body = json!({
            "value": values::document(&set.value)?,
            "reduce": word(set.reduce),
        });
        let given = [
            ("if_revision", set.if_revision.map(Value::from)),
            ("ttl", set.ttl.clone().map(Value::from)),
            ("lifetime", set.lifetime.map(|it| word(it).into())),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        let changed = at.client.put_state(&self.scope, &set.key, &body).await?;
        match (&changed.value, cx.terminal.json) {
            (_, true) => cx.terminal.print_json(&changed)?,
            (Some(value), false) => cx.terminal.print_value(&value.to_value())?,
            (None, false) => {
                cx.terminal.say(&format!("{} has revision {}", set.key, changed.revision));
            }
        }
        Ok(())
    }

    async fn link(&self, cx: &Context, at: &Connection, op: &str, ends: &Ends) -> Result<()> {
        let op = json!({
            "op": op, "scope": self.scope, "key": ends.from, "to": ends.to,
            "relation": ends.relation,
        });
        at.client.batch_state(&json!({"ops": [op]})).await?;
        cx.terminal.say(&format!("{} {} {}", ends.from, ends.relation, ends.to));
        Ok(())
    }

    async fn list(&self, cx: &Context, at: &Connection, query: &[(&str, String)]) -> Result<()> {
        let mut items = Vec::new();
        let mut cursor = None;
        loop {
            let mut query = query.to_vec();
            query.extend(cursor.map(|cursor| ("cursor", cursor)));
            let page = at.client.states(&self.scope, &query).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        if cx.terminal.json {
            return Ok(cx.terminal.print_json(&items)?);
        }
        let found = items.iter().any(|item| item.snippet.is_some());
        let rows = items.iter().map(|item| {
            let more = match (&item.snippet, item.revision) {
                (Some(snippet), _) => printable(snippet),
                (None, Some(revision)) => revision.to_string(),
                (None, None) => String::new(),
            };
            vec![printable(&item.key), more]
        });
        let head = ["key", if found { "found" } else { "revision" }];
        cx.terminal.print(&fitted(cx.terminal.width(), &head, rows))?;
        Ok(())
    }
}

fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, protocol::Json};

    #[tokio::test]
    async fn a_search_is_one_query_and_a_key_one_segment() {
        let item = json!({"key": "a/b", "score": 1.0, "snippet": "the [word]"});
        let page = json!({"items": [item], "next_cursor": null}).to_string();
        let value = json!({
            "scope": "global", "key": "a/b", "value": 7, "revision": 2,
            "updated_at": "2026-01-01T00:00:00Z",
        });
        let server = fixture::serve(vec![(200, page), (200, value.to_string())]).await;
        let client = crate::cli::client::Client::new(&server.url, "t").unwrap();
        let found = client.states("custom:x", &[("q", "two words".to_owned())]).await.unwrap();
        assert_eq!(found.items[0].snippet.as_deref(), Some("the [word]"));
        let got = client.state("custom:x", "a/b").await.unwrap();
        assert_eq!(got.value, Json::from_trusted("7"));
        let asked = server.asked();
        assert!(asked[0].starts_with("GET /v1/state/custom%3Ax?q=two+words"), "{asked:?}");
        assert!(asked[1].starts_with("GET /v1/state/custom%3Ax/a%2Fb "), "{asked:?}");
    }
}
