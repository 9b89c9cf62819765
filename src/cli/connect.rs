//! Which daemon a verb speaks to: the named one, the owner of the data directory, or one that
//! lives as long as the verb.

use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::time::{Sleep, sleep};

use super::{
    client::{Client, Way},
    exit::{Exit, Stop},
    terminal::Terminal,
};
use crate::{
    config::Config,
    host::{Host, HostConfig, HostError, Socket},
    protocol::RunId,
    store::{Migrated, StoreError},
    telemetry::otlp,
};

/// The time limit for a live owner to respond and become ready.
const ALIVE: Duration = Duration::from_secs(2);
const BOOTING: u32 = 20;
/// The number of tries to find an owner that has published its address.
const STARTING: u32 = 8;
/// The time limit for an owner that publishes no address: it is stopping, or starting.
const RELEASE: Duration = Duration::from_secs(12);
/// The number of tries after which the wait for such an owner is announced.
const QUIET: u32 = 2;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);
const GRACE: Duration = Duration::from_secs(10);

/// The content of `server.json`: the owner of a data directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Owner {
    /// The address it listens on.
    pub url: String,
    /// Its process.
    pub pid: u32,
    /// The program's version.
    pub version: String,
    /// The SHA-256 of its certificate, if it speaks TLS.
    #[serde(default)]
    pub certificate: Option<String>,
}

impl Owner {
    /// Returns the content of the file, if it can be read; it may be stale.
    pub fn read(data: &Path) -> Option<Self> {
        let text = fs::read_to_string(data.join("server.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns a client for this daemon, which trusts the certificate that it published.
    ///
    /// # Errors
    /// Fails when its address cannot be used.
    pub fn client(&self, token: &str) -> Result<Client> {
        let certificate = self.certificate.clone();
        Client::by(&Way { certificate, ..Way::default() }, &self.url, token)
    }

    /// Returns a client that uses the socket in the data directory, if there is one.
    fn local_client(&self, data: &Path, token: &str) -> Option<Client> {
        let way = Way { socket: Some(Socket::of(data)?), ..Way::default() };
        Client::by(&way, &self.url, token).ok()
    }
}

/// The daemon that the command line selects.
#[derive(Debug, Clone)]
pub struct Target {
    /// The daemon's URL.
    pub server: Option<String>,
    /// The token for it.
    pub token: Option<String>,
    /// A file of certificates to trust beside the machine's.
    pub ca: Option<PathBuf>,
}

/// True if a verb makes sense in a directory where nothing ever ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The command starts a daemon, and creates the data directory.
    Fresh,
    /// The command starts none over an empty directory: there is nothing to show or to change.
    Existing,
    /// Only a daemon that outlives the verb will do.
    Attached,
}

/// A daemon to speak to.
pub struct Connection {
    /// Speaks to it.
    pub client: Client,
    host: Option<Host>,
}

impl Connection {
    /// Finds or opens the daemon.
    ///
    /// # Errors
    /// No daemon answers, no token, or the data directory cannot be opened.
    pub async fn open(
        target: &Target,
        config: &Config,
        start: Start,
        terminal: Terminal,
    ) -> Result<Self> {
        if let Some(server) = &target.server {
            let token = named_token(server, target, config)?;
            let client = match owner_at(server, config) {
                Some(owner) => owner.client(&token)?,
                None => {
                    Client::by(&Way { ca: target.ca.clone(), ..Way::default() }, server, &token)?
                }
            };
            let client = match start {
                Start::Fresh | Start::Existing => client.optional(),
                Start::Attached => client,
            };
            return Ok(Self { client, host: None });
        }
        if start == Start::Existing && !config.data.is_dir() {
            let message = format!("there is no data directory at {}", config.data.display());
            return Err(Stop::new(Exit::NotFound, message)
                .next("`moonswarm run FILE` makes one; --data DIR names another")
                .into());
        }
        if let Some(connection) = attach(target, config, terminal).await? {
            return Ok(connection);
        }
        if start == Start::Attached {
            let message = format!("no daemon owns {}", config.data.display());
            return Err(Stop::new(Exit::Unavailable, message)
                .next("start one with `moonswarm serve`")
                .into());
        }
        let mut wait = DirectoryWait::new(STARTING);
        loop {
            let error = match Host::open(embedded(config)?).await {
                Ok(host) => {
                    if let Some(migrated) = host.migrated() {
                        terminal.say(&format!("migrated {}", told_of(&migrated)));
                    }
                    let token = target.token.as_deref().unwrap_or(host.admin_token());
                    let client = Client::new(host.url(), token)?;
                    return Ok(Self { client, host: Some(host) });
                }
                Err(error) => error,
            };
            // Another process became the owner since the first look, or is about to give it up.
            if let Some(found) = attach(target, config, terminal).await? {
                return Ok(found);
            }
            let HostError::Store(StoreError::Owned { pid, .. }) = &error else {
                return Err(explain(&config.data, error));
            };
            if !wait.permits(&config.data, pid, |line| terminal.say(line)).await {
                return Err(explain(&config.data, error));
            }
        }
    }

    /// Returns true if the daemon lives in this process.
    pub fn is_embedded(&self) -> bool {
        self.host.is_some()
    }

    /// The embedded daemon.
    pub fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// Waits until runs that others started here have ended, whatever `own` and the runs that it
    /// called still wait for; at once where the daemon is elsewhere.
    ///
    /// # Errors
    /// A daemon that does not list its runs.
    pub async fn serve_others(&self, own: RunId, terminal: Terminal) -> Result<()> {
        let Some(host) = &self.host else { return Ok(()) };
        let mut told = false;
        loop {
            let busy = host.busy();
            let others = match busy {
                0 => return Ok(()),
                busy => busy.saturating_sub(self.open_family(own).await?),
            };
            if others == 0 {
                return Ok(());
            }
            if !told {
                let line = format!("{others} other run(s) are in progress here; Ctrl-C stops them");
                terminal.say(&line);
                told = true;
            }
            sleep(BETWEEN_TRIES).await;
        }
    }

    /// Returns the number of open runs among a run and its children.
    async fn open_family(&self, own: RunId) -> Result<u64> {
        let open = "queued,running,waiting,paused,compensating".to_owned();
        let mut query = vec![("status", open), ("limit", "500".to_owned())];
        let mut runs = Vec::new();
        loop {
            let page = self.client.runs(&query).await?;
            // Newest first: what came before `own` was not called by it.
            let past = page.items.iter().any(|run| run.id.num() <= own.num());
            runs.extend(page.items.into_iter().filter(|run| run.id.num() >= own.num()));
            query.truncate(2);
            match page.next_cursor.filter(|_| !past) {
                Some(cursor) => query.push(("cursor", cursor)),
                None => break,
            }
        }
        let mut family = HashSet::from([own]);
        for run in runs.iter().rev().filter(|run| run.id != own) {
            if run.parent.is_some_and(|parent| family.contains(&parent)) {
                family.insert(run.id);
            }
        }
        Ok(runs.iter().filter(|run| family.contains(&run.id)).count() as u64)
    }

    /// Waits until an embedded daemon cannot store anything any more; for ever, where it is elsewhere.
    pub async fn lost(&self) -> Stop {
        match &self.host {
            Some(host) => disk_failed(&host.lost().await),
            None => std::future::pending().await,
        }
    }

    /// Ends an embedded daemon; open runs stay in the data directory.
    pub async fn close(self) {
        if let Some(host) = self.host {
            host.stop(GRACE).await;
        }
    }
}

/// The wait for a data directory of another process. A host that stops publishes no address any
/// more, but keeps the directory until its work has ended.
struct DirectoryWait {
    /// The number of tries while the owner has published its address.
    most: u32,
    tries: u32,
    end: Pin<Box<Sleep>>,
}

impl DirectoryWait {
    /// Begins a wait, with at most so many tries while the owner has published its address.
    fn new(most: u32) -> Self {
        Self { most, tries: 0, end: Box::pin(sleep(RELEASE)) }
    }

    /// Waits, and returns true if another try to get the directory makes sense.
    async fn permits(&mut self, data: &Path, pid: &str, say: impl Fn(&str)) -> bool {
        self.tries += 1;
        if is_published(data, pid) {
            if self.tries >= self.most {
                return false;
            }
        } else if self.tries == QUIET {
            let data = data.display();
            say(&format!("process {pid} has {data}, and starts or stops: waiting for it"));
        }
        tokio::select! {
            biased;
            () = &mut self.end => false,
            () = sleep(BETWEEN_TRIES) => true,
        }
    }
}

/// Returns true if a process has published its address in the data directory.
fn is_published(data: &Path, pid: &str) -> bool {
    Owner::read(data).is_some_and(|owner| owner.pid.to_string() == pid)
}

/// Opens the host of a daemon; waits for a data directory that another process is about to free.
/// Returns `None` if `stop` ends that wait.
///
/// # Errors
/// Fails as [`Host::open`] does.
pub async fn open_daemon(
    config: HostConfig,
    say: impl Fn(&str),
    stop: impl Future<Output = ()>,
) -> Result<Option<Host>> {
    // A daemon at work is reported at once.
    let mut wait = DirectoryWait::new(1);
    let mut stop = std::pin::pin!(stop);
    loop {
        let error = match Host::open(config.clone()).await {
            Ok(host) => return Ok(Some(host)),
            Err(error) => error,
        };
        let HostError::Store(StoreError::Owned { pid, .. }) = &error else {
            return Err(explain(&config.data, error));
        };
        let is_permitted = tokio::select! {
            () = &mut stop => return Ok(None),
            is_permitted = wait.permits(&config.data, pid, &say) => is_permitted,
        };
        if !is_permitted {
            return Err(explain(&config.data, error));
        }
    }
}

/// The reason why a data directory could not be opened, and what helps. Only one that somebody else
/// has is a conflict.
pub fn explain(data: &Path, error: HostError) -> anyhow::Error {
    let (exit, next) = match &error {
        HostError::Store(StoreError::Owned { pid, .. }) => {
            let owner = Owner::read(data).filter(|owner| owner.pid.to_string() == *pid);
            let next = owner.map_or_else(
                || "end that process, or name another directory with --data".to_owned(),
                |owner| format!("it listens at {}", owner.url),
            );
            (Exit::Conflict, Some(next))
        }
        HostError::Store(StoreError::Taken { .. }) => {
            let next = "stop the other host, or name another database with --store; with the key of a \
                        cluster, --cluster-key FILE, several hosts share one";
            (Exit::Conflict, Some(next.to_owned()))
        }
        HostError::Store(StoreError::Away { .. }) => {
            let next = "start the database, or check its address; --store names it";
            (Exit::Unavailable, Some(next.to_owned()))
        }
        HostError::Store(StoreError::NoRoom { .. }) => {
            (Exit::Unavailable, Some("free disk space, and start it again".to_owned()))
        }
        HostError::Store(StoreError::Full) => {
            (Exit::Failed, Some("free disk space, and start it again".to_owned()))
        }
        HostError::Exposed { .. } => {
            let next = "set `tls = { cert, key }`, or `proxies` if a proxy with TLS is in front; \
                        `--insecure` does without";
            (Exit::Usage, Some(next.to_owned()))
        }
        HostError::People(_) => {
            let next = "people.secret = { file = \"PATH\" }, or { env = \"NAME\" }: see \
                        docs/deploy.md, \"The secret of the proxy\"";
            (Exit::Usage, Some(next.to_owned()))
        }
        HostError::Listen { address, source } if source.kind() == ErrorKind::AddrInUse => {
            let message = format!("another program listens on {address} already");
            let next = "`--listen 127.0.0.1:0` takes a free port";
            return Stop::new(Exit::Conflict, message).next(next).into();
        }
        _ => (Exit::Failed, None),
    };
    let error = anyhow::Error::new(error).context(format!("open {}", data.display()));
    match next {
        Some(next) => Stop::new(exit, format!("{error:#}")).next(next).into(),
        None => error,
    }
}

/// Returns the notice of a migration at the opening of a data directory.
pub fn told_of(it: &Migrated) -> String {
    let Migrated { from, to, backup } = it;
    format!("the database from format {from} to {to}; a copy from before: {}", backup.display())
}

/// The failure of a program that lost what it stores under its hands.
pub fn disk_failed(error: &StoreError) -> Stop {
    let next = match error {
        StoreError::Gone { .. } => {
            "put the directory back, or restore it from a backup: `moonswarm restore`"
        }
        StoreError::Fenced => "the other host goes on with its runs; end this one, or that one",
        StoreError::Damaged { .. } => "start it again: it checks the database at startup",
        _ => "check the disk; acknowledged writes are there at the next start",
    };
    Stop::new(Exit::Unavailable, format!("failed to {error}")).next(next)
}

/// Returns the export of traces and metrics that the variables of OpenTelemetry ask for.
pub fn exported() -> Result<Option<otlp::Settings>> {
    otlp::Settings::read(|name| std::env::var(name).ok())
        .map_err(|error| Stop::new(Exit::Usage, format!("failed to {error}")).into())
}

/// A host for as long as one verb takes.
fn embedded(config: &Config) -> Result<HostConfig> {
    if config.store.is_some() {
        let message = "no daemon is there, and only a daemon has a PostgreSQL database";
        return Err(Stop::new(Exit::Unavailable, message)
            .next("start one with `moonswarm serve`, which uses `store` of the configuration")
            .into());
    }
    Ok(HostConfig {
        retention: config.retention,
        effects: config.effects,
        store: crate::store::Options::default(),
        postgres: None,
        cluster: None,
        door: crate::door::DoorConfig::default(),
        data: config.data.clone(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        blueprints: None,
        watch: std::collections::BTreeMap::new(),
        recover: false,
        safe_mode: false,
        memory: config.memory,
        run_memory: config.run_memory,
        lease: config.lease,
        metrics: None,
        export: exported()?,
        shards: config.shards,
        operators: config.operators.clone(),
        webhooks: config.webhooks.clone(),
        environments: config.environments.clone(),
        shown: Vec::new(),
        code: crate::operator::Coded::default(),
        spawners: Default::default(),
        fallback: config.fallback.clone(),
        middleware: crate::engine::Middleware::of(config.middleware.clone()),
    })
}

/// Returns the owner of the data directory, if it has this address.
fn owner_at(server: &str, config: &Config) -> Option<Owner> {
    Owner::read(&config.data).filter(|owner| owner.url == server.trim_end_matches('/'))
}

fn named_token(server: &str, target: &Target, config: &Config) -> Result<String> {
    if let Some(token) = &target.token {
        return Ok(token.clone());
    }
    if owner_at(server, config).is_some() {
        return admin_token(&config.data);
    }
    Err(Stop::new(Exit::Denied, format!("{server} needs a token"))
        .next("pass --token or set MOONSWARM_TOKEN; `moonswarm token mint` makes one")
        .into())
}

/// The token that commands use in this directory.
pub fn own_token(target: &Target, config: &Config) -> Result<String> {
    target.token.clone().map_or_else(|| admin_token(&config.data), Ok)
}

fn admin_token(data: &Path) -> Result<String> {
    let file: PathBuf = data.join("admin.token");
    let token = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok(token.trim().to_owned())
}

/// The owner of the data directory, if one is alive. A file that nobody answers for is ignored.
async fn attach(
    target: &Target,
    config: &Config,
    terminal: Terminal,
) -> Result<Option<Connection>> {
    let Some(owner) = Owner::read(&config.data) else { return Ok(None) };
    let token = match &target.token {
        Some(token) => token.clone(),
        None => match admin_token(&config.data) {
            Ok(token) => token,
            Err(_) => return Ok(None),
        },
    };
    // The socket belongs to whoever owns the directory now; the address may be somebody else's.
    let client = match owner.local_client(&config.data, &token) {
        Some(client) if client.answers(ALIVE).await => client,
        Some(_) | None => owner.client(&token)?,
    };
    for _ in 0..BOOTING {
        match client.ready(ALIVE).await {
            Ok(()) => {
                if terminal.live {
                    terminal.say(&format!("attached to {} (pid {})", owner.url, owner.pid));
                }
                return Ok(Some(Connection { client, host: None }));
            }
            Err(error) => match error.downcast_ref::<Stop>() {
                // It answers, but is not ready yet.
                Some(stop) if stop.exit == Exit::Unavailable && stop.code.is_some() => {}
                // A daemon, whose owner this token is not: what the verb asks is its own matter.
                Some(stop) if stop.code.as_deref() == Some("forbidden_verb") => {
                    return Ok(Some(Connection { client, host: None }));
                }
                Some(stop) if stop.exit == Exit::Denied && target.token.is_some() => {
                    return Err(error);
                }
                // Nobody is there, or somebody else is: the file was left behind.
                Some(_) | None => return Ok(None),
            },
        }
        sleep(BETWEEN_TRIES).await;
    }
    let message = format!("the daemon at {} (pid {}) does not get ready", owner.url, owner.pid);
    Err(Stop::new(Exit::Unavailable, message).next("`moonswarm doctor` says more").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::fixture, config::Layer};

    fn config(data: &Path) -> Config {
        Layer { data: Some(data.to_owned()), ..Layer::default() }.into()
    }

    fn owned_by(url: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(r#"{{"url":"{url}","pid":7,"version":"0.1.0","incarnation":"x"}}"#);
        fs::write(dir.path().join("server.json"), text).unwrap();
        fs::write(dir.path().join("admin.token"), "secret\n").unwrap();
        dir
    }

    const NOBODY: Target = Target { server: None, token: None, ca: None };

    #[tokio::test]
    async fn a_live_owner_is_attached_to_with_its_admin_token() {
        let server = fixture::serve(vec![(200, "{}".into())]).await;
        let dir = owned_by(&server.url);
        let found = attach(&NOBODY, &config(dir.path()), Terminal::quiet()).await.unwrap();
        assert_eq!(found.unwrap().client.url(), server.url);
        assert!(server.asked()[0].contains("Bearer secret"));
    }

    #[tokio::test]
    async fn a_token_that_may_not_read_the_host_attaches_all_the_same() {
        let refused = r#"{"code":"forbidden_verb","detail":"this token may not host.read"}"#;
        let server = fixture::serve(vec![(403, refused.into())]).await;
        let dir = owned_by(&server.url);
        let ann = Target { token: Some("ann".into()), ..NOBODY };
        let found = attach(&ann, &config(dir.path()), Terminal::quiet()).await.unwrap();
        assert_eq!(found.unwrap().client.url(), server.url);
        assert!(server.asked()[0].contains("Bearer ann"));
    }

    #[tokio::test]
    async fn a_stale_file_is_ignored() {
        let dir = owned_by("http://127.0.0.1:1");
        let found = attach(&NOBODY, &config(dir.path()), Terminal::quiet()).await.unwrap();
        assert!(found.is_none());
    }

    #[tokio::test]
    async fn a_port_that_another_program_took_is_no_owner() {
        let server = fixture::serve(vec![(404, "nope".into())]).await;
        let dir = owned_by(&server.url);
        let found = attach(&NOBODY, &config(dir.path()), Terminal::quiet()).await.unwrap();
        assert!(found.is_none());
    }

    #[tokio::test]
    async fn a_verb_that_only_looks_makes_no_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("none");
        let opened =
            Connection::open(&NOBODY, &config(&data), Start::Existing, Terminal::quiet()).await;
        assert!(opened.err().unwrap().to_string().contains("no data directory"));
        assert!(!data.exists());
    }

    #[test]
    fn a_named_server_needs_a_token_unless_it_is_the_owner() {
        let dir = owned_by("http://127.0.0.1:7700");
        let config = config(dir.path());
        assert_eq!(named_token("http://127.0.0.1:7700/", &NOBODY, &config).unwrap(), "secret");
        assert!(named_token("http://127.0.0.1:7701", &NOBODY, &config).is_err());
    }
}
