//! `open`: a link that signs in to the dashboard, once.

use std::{
    io::{IsTerminal as _, stdout},
    process::{Command, Stdio},
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::{
    connect::{Connection, Start},
    context::Context,
    exit::Exit,
};

/// Print a link that signs in to the dashboard once, within a minute
#[derive(Debug, Args)]
pub struct Open {
    /// The role of the sign-in; by default that of the token, which is admin in the daemon's directory
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// Only print the link; by default a desktop's browser is opened as well
    #[arg(long)]
    print: bool,
}

/// A role of a sign-in.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    /// Looks, and changes nothing
    Observer,
    /// Answers tasks that wait for a person
    Approver,
    /// Starts and controls runs
    Operator,
    /// All of it, as the owner of the host
    Admin,
}

impl Role {
    fn as_str(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::Approver => "approver",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl Open {
    /// Runs the command.
    ///
    /// # Errors
    /// No daemon, or a token that may not make others.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        cx.with(Start::Attached, async |at| {
            let link = link(at, self.role).await?;
            if cx.terminal.json {
                let Link { url, role, expires_at } = &link;
                cx.terminal
                    .print_json(&json!({"url": url, "role": role, "expires_at": expires_at}))?;
                return Ok(Exit::Ok);
            }
            cx.terminal.print(&link.url)?;
            cx.terminal.say(&format!("signs in once as {}, until {}", link.role, link.expires_at));
            if !self.print && stdout().is_terminal() {
                browse(&link.url);
            }
            Ok(Exit::Ok)
        })
        .await
    }
}

/// A link, and until when it is good.
struct Link {
    url: String,
    role: String,
    expires_at: String,
}

async fn link(at: &Connection, role: Option<Role>) -> Result<Link> {
    let made = at.client.sign_in_code(role.map(Role::as_str)).await?;
    let base = match (at.client.is_local(), made.url) {
        // A browser checks the name of the certificate.
        (true, Some(url)) => url,
        (true, None) => on_this_machine(at.client.url(), Some(&made.host)),
        (false, _) => at.client.url().to_owned(),
    };
    let url = format!("{base}/ui/login#code={}", made.code);
    Ok(Link { url, role: made.role, expires_at: made.expires_at })
}

/// Returns the address for a browser. On this machine the host has a name of its own below
/// `.localhost`, to which no other local server is sent its cookie.
fn on_this_machine(url: &str, name: Option<&String>) -> String {
    let (Some(name), Some((scheme, rest))) = (name, url.split_once("://")) else {
        return url.to_owned();
    };
    let port = rest.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let port = port.map_or_else(String::new, |(_, port)| format!(":{port}"));
    format!("{scheme}://{name}{port}")
}

/// Opens the browser of a desktop, if there is one. The link is printed in any case.
fn browse(url: &str) {
    let program = match () {
        () if cfg!(target_os = "macos") => "open",
        () if ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|it| std::env::var_os(it).is_some()) => {
            "xdg-open"
        }
        () => return,
    };
    let quiet = || Stdio::null();
    // Nothing depends on it: the link stands on the screen.
    let _ = Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_this_machine_uses_the_name_of_the_host() {
        let name = "moonswarm-1f.localhost".to_owned();
        for (url, own, shown) in [
            ("http://127.0.0.1:7700", true, "http://moonswarm-1f.localhost:7700"),
            ("http://[::1]:7700", true, "http://moonswarm-1f.localhost:7700"),
            ("http://localhost", true, "http://moonswarm-1f.localhost"),
            ("https://swarm.example", false, "https://swarm.example"),
        ] {
            assert_eq!(on_this_machine(url, own.then_some(&name)), shown);
        }
    }
}
