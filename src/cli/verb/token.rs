//! `token`: makes, shows, lists and revokes tokens.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    cli::{
        connect::{Connection, Start, own_token},
        context::Context,
        exit::{Exit, Stop},
        render::{age, fitted},
    },
    engine::QuotaUse,
    token::Quotas,
};

/// Create, inspect, list or revoke tokens
#[derive(Debug, Args)]
pub struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token with at most your own permissions; it is printed once
    Mint(Mint),
    /// Decode a token without checking its signature
    Inspect {
        /// The token [default: the one that other commands use]
        token: Option<String>,
    },
    /// Revoke a token and all tokens created from it
    Revoke {
        /// The token's id (jti)
        jti: String,
    },
    /// List tokens
    #[command(visible_alias = "list")]
    Ls,
}

#[derive(Debug, Args)]
struct Mint {
    /// The role: admin, operator, worker, queue, approver, senior or observer
    #[arg(long)]
    role: String,
    /// Only this verb of the role (repeatable)
    #[arg(long = "verb")]
    verbs: Vec<String>,
    /// A verb that is granted only by name, such as `run.source` (repeatable)
    #[arg(long = "extra-verb", value_name = "VERB")]
    extra_verbs: Vec<String>,
    /// A scope such as `queue:builds` or `run:*` (repeatable) [default: your own]
    #[arg(long = "scope")]
    scopes: Vec<String>,
    /// Lifetime of the token
    #[arg(long, default_value = "24h")]
    ttl: String,
    /// Name of its owner; needed where several people must answer
    #[arg(long)]
    name: Option<String>,
    /// A quota, shared with all tokens created from it: `open_runs=20`, `starts_per_minute=60`,
    /// `stored_bytes=1000000000`, `tokens=5000000`, `usd=20.00` (repeatable)
    #[arg(long = "quota", value_name = "NAME=VALUE")]
    quotas: Vec<String>,
}

impl Token {
    /// Runs the command.
    ///
    /// # Errors
    /// A token that may not do that, or text that is no token.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        if let Action::Inspect { token } = &self.action {
            let own = token.clone().map_or_else(|| own_token(&cx.target, &cx.config), Ok)?;
            cx.terminal.print_json(&inspect(&own)?)?;
            return Ok(Exit::Ok);
        }
        let start = match &self.action {
            Action::Mint(_) => Start::Fresh,
            Action::Inspect { .. } | Action::Revoke { .. } | Action::Ls => Start::Existing,
        };
        cx.with(start, async |at| match &self.action {
            Action::Mint(mint) => mint.execute(cx, at).await,
            Action::Inspect { .. } => Ok(Exit::Ok),
            Action::Revoke { jti } => {
                at.client.revoke(jti).await?;
                match cx.terminal.json {
                    true => cx.terminal.print_json(&json!({"revoked": jti}))?,
                    false => cx.terminal.say(&format!("revoked {jti}")),
                }
                Ok(Exit::Ok)
            }
            Action::Ls => list(cx, at).await,
        })
        .await
    }
}

impl Mint {
    async fn execute(&self, cx: &Context, at: &Connection) -> Result<Exit> {
        let mut body = json!({"role": self.role, "ttl": self.ttl});
        if !self.verbs.is_empty() {
            body["verbs"] = json!(self.verbs);
        }
        if !self.extra_verbs.is_empty() {
            body["extra_verbs"] = json!(self.extra_verbs);
        }
        if !self.scopes.is_empty() {
            body["scopes"] = json!(self.scopes);
        }
        if let Some(name) = &self.name {
            body["name"] = json!(name);
        }
        for quota in &self.quotas {
            let (name, value) = quota.split_once('=').ok_or_else(|| {
                Stop::usage(format!("--quota {quota}: write it as NAME=VALUE, `open_runs=20`"))
            })?;
            // Money is a text; whatever is no number is refused by name.
            let number = value.parse::<u64>().ok().filter(|_| name != "usd");
            body["quotas"][name] = number.map_or_else(|| json!(value), |number| json!(number));
        }
        let minted = at.client.mint(&body).await?;
        if cx.terminal.json {
            cx.terminal.print_json(&minted)?;
        } else {
            cx.terminal.print(&minted.token)?;
            cx.terminal.say(&format!("{} until {}", minted.jti, minted.expires_at));
        }
        Ok(Exit::Ok)
    }
}

async fn list(cx: &Context, at: &Connection) -> Result<Exit> {
    let tokens = at.client.tokens().await?;
    if cx.terminal.json {
        cx.terminal.print_json(&tokens)?;
        return Ok(Exit::Ok);
    }
    let now = cx.clock.now_ms();
    let width = cx.terminal.width();
    // A terminal has room for the minute.
    let time = |at: &str| match at.get(..16).filter(|_| width.is_some()) {
        Some(minute) => minute.replace('T', " "),
        None => at.to_owned(),
    };
    let rows = tokens.iter().map(|token| {
        let state = match &token.revoked_at {
            Some(at) => format!("revoked {}", time(at)),
            None => format!("until {}", time(&token.expires_at)),
        };
        let quotas = quotas(token.quotas.unwrap_or_default(), token.used.unwrap_or_default());
        let used = token.last_used_at.as_deref().map(|at| age(at, now)).unwrap_or_default();
        let (jti, name, role) = (token.jti.clone(), token.subject.clone(), token.role.clone());
        vec![jti, name, role, used, token.scopes.join(" "), state, quotas]
    });
    let mut rows: Vec<_> = rows.collect();
    let mut head = vec!["token", "name", "role", "used", "scopes", "state", "quotas"];
    if width.is_some() && rows.iter().all(|row| row[6].is_empty()) {
        head.pop();
        rows.iter_mut().for_each(|row| drop(row.pop()));
    }
    cx.terminal.print(&fitted(width, &head, rows))?;
    Ok(Exit::Ok)
}

/// Quotas with what is used of them: `open_runs 3/20 usd 1.25/20`.
fn quotas(quotas: Quotas, used: QuotaUse) -> String {
    let of = |name: &str, used: String, most: Option<String>| {
        most.map(|most| format!("{name} {used}/{most}"))
    };
    let text = |most: Option<u64>| most.map(|most| most.to_string());
    let rate = quotas.starts_per_minute.map(|rate| format!("{rate} starts/min"));
    let all = [
        of("open_runs", used.open_runs.to_string(), text(quotas.open_runs)),
        rate,
        of("stored_bytes", used.stored_bytes.to_string(), text(quotas.stored_bytes)),
        of("tokens", used.tokens.to_string(), text(quotas.tokens)),
        of("usd", used.usd.to_string(), quotas.usd.map(|usd| usd.to_string())),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The claims of a JWT, as they stand there.
fn inspect(token: &str) -> Result<Value, Stop> {
    if token.starts_with("wh_") {
        return Ok(json!({"kind": "handle",
            "note": "a worker's handle: it stands for one attempt of one task and says nothing else"}));
    }
    let no_token = || Stop::usage("this is neither a JWT nor a handle");
    let claims = token.split('.').nth(1).ok_or_else(no_token)?;
    let claims =
        data_encoding::BASE64URL_NOPAD.decode(claims.as_bytes()).map_err(|_| no_token())?;
    serde_json::from_slice(&claims).map_err(|_| no_token())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_looked_into_without_a_daemon() {
        let claims = data_encoding::BASE64URL_NOPAD.encode(br#"{"role":"queue","exp":7}"#);
        let seen = inspect(&format!("eyJ9.{claims}.sig")).unwrap();
        assert_eq!(seen, json!({"role": "queue", "exp": 7}));
        assert_eq!(inspect("wh_abc").unwrap()["kind"], "handle");
        assert!(inspect("hello").is_err());
        assert!(inspect("a.!!!.b").is_err());
    }
}
