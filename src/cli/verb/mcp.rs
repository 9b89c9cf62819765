//! `mcp`: the tools for coding agents over stdin and stdout, and their set-up in a client.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use clap::{Args, Subcommand};
use futures::StreamExt as _;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{
        client::Client,
        connect::{Connection, Start},
        context::Context,
        exit::{Exit, Stop},
        files,
        mcp_clients::{CA, Entry, McpClient, Reach, TOKEN_FILE},
    },
    mcp::{self, Broken, Pieces, Reply, Request, Transport},
};

/// The interval of looks for the end of the runs of an embedded host.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Serve the tools for coding agents (MCP) over stdin and stdout
///
/// Attaches to the daemon of the directory, or of MOONSWARM_URL. Without one, the program is the
/// host itself until the client has gone and its runs have ended.
#[derive(Debug, Args)]
pub struct Mcp {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write the server and a narrow token for it into the configuration of a client
    Install(Setup),
    /// Take it back, and revoke the token
    Uninstall(Setup),
    /// Print the entry of the server as JSON, for other clients
    Print,
}

#[derive(Debug, Args)]
struct Setup {
    /// The client
    #[arg(long, value_enum)]
    client: McpClient,
    /// Whose configuration: of this directory, or of the user
    #[arg(long, value_enum, default_value = "project")]
    scope: Reach,
    /// The lifetime of the token
    #[arg(long, default_value = "30d")]
    ttl: String,
    /// Write without asking
    #[arg(long)]
    yes: bool,
}

impl Mcp {
    /// Runs the command.
    ///
    /// # Errors
    /// No daemon, a token that is not valid, a client that does not speak MCP, or a configuration
    /// that cannot be read.
    pub async fn execute(&self, cx: &Context) -> Result<Exit> {
        match &self.what {
            None => serve(cx).await,
            Some(What::Install(setup)) => setup.install(cx).await,
            Some(What::Uninstall(setup)) => setup.uninstall(cx).await,
            Some(What::Print) => {
                let file = token_file(cx, "other")?;
                let servers = json!({ "mcpServers": { "moonswarm": entry(cx, &file)?.to_json() } });
                cx.terminal.print_json(&servers)?;
                let line = "put a token there: `moonswarm token mint --role operator`";
                cx.terminal.say(&format!("{}: {line}", file.display()));
                Ok(Exit::Ok)
            }
        }
    }
}

async fn serve(cx: &Context) -> Result<Exit> {
    cx.with(Start::Fresh, async |at| {
        let url = at.client.url();
        // Stdout belongs to the protocol.
        cx.terminal.say(&match at.is_embedded() {
            true => format!("no daemon owns this directory; a host runs here, at {url}"),
            false => format!("attached to {url}"),
        });
        let transport: Arc<dyn Transport> = Arc::new(at.client.clone());
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let stop = CancellationToken::new();
        let told = async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            stop.cancel();
        };
        let served = async {
            let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
            let served = Box::pin(mcp::serve_stdio(transport, input, output, stop.clone())).await;
            served.map_err(|error| Stop::new(Exit::Failed, error))?;
            // Told to stop, it leaves open runs to the next host of the directory.
            stop.run_until_cancelled(await_runs(at, cx)).await;
            Ok(Exit::Ok)
        };
        tokio::pin!(served);
        tokio::select! {
            done = &mut served => return done,
            () = told => {}
        }
        served.await
    })
    .await
}

/// Waits until the runs of an embedded host have ended.
async fn await_runs(at: &Connection, cx: &Context) {
    let Some(host) = at.host() else { return };
    if host.busy() > 0 {
        let runs = match host.busy() {
            1 => "1 run is".to_owned(),
            many => format!("{many} runs are"),
        };
        cx.terminal.say(&format!("{runs} open here; Ctrl-C stops them"));
    }
    while host.busy() > 0 {
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

impl Setup {
    async fn install(&self, cx: &Context) -> Result<Exit> {
        let token = token_file(cx, self.client.word())?;
        let (file, before) = self.file()?;
        let entry = entry(cx, &token)?;
        let after = self.client.with(&before, &entry).map_err(|why| left(&file, &why))?;
        let shown = format!("{}\n{}", file.display(), self.client.shown(&entry));
        if !files::may(cx, self.yes, &shown)? {
            return Ok(Exit::Ok);
        }
        // An operator has neither run.source nor task.answer unless its token names them.
        let name = format!("mcp-{}", self.client.word());
        let body = json!({ "role": "operator", "name": name, "ttl": self.ttl });
        let minted = cx.with(Start::Fresh, async |at| at.client.mint(&body).await).await?;
        files::put_private(&token, &minted.token)?;
        files::put(&file, &after)?;
        cx.terminal.say(&format!("wrote {}", file.display()));
        cx.terminal.say(&format!("wrote {}, until {}", token.display(), minted.expires_at));
        Ok(Exit::Ok)
    }

    async fn uninstall(&self, cx: &Context) -> Result<Exit> {
        let token = token_file(cx, self.client.word())?;
        let (file, before) = self.file()?;
        let after = self.client.without(&before).map_err(|why| left(&file, &why))?;
        let Some(after) = after else {
            let message = format!("{} has no server moonswarm", file.display());
            return Err(Stop::new(Exit::NotFound, message).into());
        };
        if !files::may(cx, self.yes, &format!("{}: without the server moonswarm", file.display()))?
        {
            return Ok(Exit::Ok);
        }
        // What is left of a file with nothing else in it.
        if matches!(after.trim(), "" | "{}") {
            fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
            cx.terminal.say(&format!("removed {}", file.display()));
        } else {
            files::put(&file, &after)?;
            cx.terminal.say(&format!("wrote {}", file.display()));
        }
        if let Ok(text) = fs::read_to_string(&token) {
            let revoked = cx.with(Start::Existing, async |at| {
                let who = at.client.with_token(text.trim()).whoami().await?;
                at.client.revoke(who["jti"].as_str().unwrap_or_default()).await
            });
            if let Err(error) = revoked.await {
                cx.terminal.say(&format!("the token was not revoked: {error:#}"));
            }
            fs::remove_file(&token).with_context(|| format!("remove {}", token.display()))?;
            cx.terminal.say(&format!("removed {}", token.display()));
        }
        Ok(Exit::Ok)
    }

    /// The file of the client and its text; empty, if there is none yet.
    fn file(&self) -> Result<(PathBuf, String)> {
        let file = self.client.file(self.scope, &files::home()?, Path::new("."));
        let text = files::read_if_there(&file)?.unwrap_or_default();
        Ok((file, text))
    }
}

/// The command with which a client starts the program: with the daemon or the directory of this command line.
fn entry(cx: &Context, token: &Path) -> Result<Entry> {
    let program = std::env::current_exe().context("find this program")?;
    let at = match &cx.target.server {
        Some(server) => ("MOONSWARM_URL", server.clone()),
        None => {
            let data = std::path::absolute(&cx.config.data).context("find the data directory")?;
            ("MOONSWARM_DATA", data.display().to_string())
        }
    };
    let token = (TOKEN_FILE, token.display().to_string());
    let mut env = vec![at, token];
    if let Some(ca) = cx.target.ca.as_deref().filter(|_| cx.target.server.is_some()) {
        let ca = std::path::absolute(ca).context("find the file of certificates")?;
        env.push((CA, ca.display().to_string()));
    }
    Ok(Entry { command: program.display().to_string(), env })
}

/// The file of the token of a client of this host, in the directory of the user.
fn token_file(cx: &Context, client: &str) -> Result<PathBuf> {
    let config = match std::env::var_os("XDG_CONFIG_HOME").filter(|it| !it.is_empty()) {
        Some(config) => PathBuf::from(config),
        None => files::home()?.join(".config"),
    };
    let data = std::path::absolute(&cx.config.data).context("find the data directory")?;
    let host = cx.target.server.clone().unwrap_or_else(|| data.display().to_string());
    let host = blake3::hash(host.as_bytes()).to_hex();
    Ok(config.join("moonswarm").join(format!("{client}-{}.token", &host[..12])))
}

fn left(file: &Path, why: &str) -> Stop {
    Stop::new(Exit::Conflict, format!("{}: {why}", file.display()))
        .next("correct it; it was left as it is")
}

#[async_trait]
impl Transport for Client {
    async fn send(&self, request: Request) -> Result<Reply, Broken> {
        let broken = |error: reqwest::Error| Broken(error.to_string());
        let answer = self.raw(request).await.map_err(broken)?;
        let kind = answer.headers().get("content-type");
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        let status = answer.status().as_u16();
        Ok(Reply { status, kind, body: answer.bytes().await.map_err(broken)? })
    }

    async fn stream(&self, path: &str) -> Result<Pieces, Broken> {
        let broken = |error: reqwest::Error| Broken(error.to_string());
        let answer = self.raw_events(path).await.map_err(broken)?;
        let answer = answer.error_for_status().map_err(broken)?;
        Ok(answer.bytes_stream().map(move |piece| piece.map_err(broken)).boxed())
    }

    fn moves(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}
