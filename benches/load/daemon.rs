//! The daemon under load: a child process, or one that somebody else started.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// The daemon under load, and the access to its memory and its rows.
pub struct Daemon {
    address: String,
    token: String,
    own: Option<Own>,
}

struct Own {
    child: Child,
    /// Kept open: a daemon that cannot write its output may stop.
    _stdout: BufReader<ChildStdout>,
    binary: PathBuf,
    database: PathBuf,
    start_to_ready: Duration,
}

impl Daemon {
    /// Starts `binary` over a data directory and waits until it listens.
    pub fn start(binary: &Path, data: &Path) -> Result<Self> {
        Self::start_with(binary, data, &[])
    }

    /// As [`Daemon::start`], with more in its environment.
    pub fn start_with(binary: &Path, data: &Path, env: &[(&str, &Path)]) -> Result<Self> {
        let began = Instant::now();
        let mut child = Command::new(binary)
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .env_remove("MOONSWARM_URL")
            .env_remove("MOONSWARM_TOKEN")
            // It is killed on purpose here.
            .env("MOONSWARM_SAFE_MODE", "off")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let mut stdout = BufReader::new(child.stdout.take().context("the child's output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let start_to_ready = began.elapsed();
        let greeting: serde_json::Value =
            serde_json::from_str(&line).context("read what the daemon says about itself")?;
        let url = greeting["url"].as_str().context("the daemon's URL")?;
        let token = fs::read_to_string(data.join("admin.token"))?.trim().to_owned();
        let own = Own {
            child,
            _stdout: stdout,
            binary: binary.to_owned(),
            database: database(data)?,
            start_to_ready,
        };
        Ok(Self { address: authority(url)?, token, own: Some(own) })
    }

    /// A daemon that runs already; nothing is known of its memory and its rows.
    pub fn elsewhere(url: &str, token: &str) -> Result<Self> {
        Ok(Self { address: authority(url)?, token: token.to_owned(), own: None })
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// From the start of the process until it listened.
    pub fn start_to_ready(&self) -> Option<Duration> {
        self.own.as_ref().map(|own| own.start_to_ready)
    }

    /// The size of the program.
    pub fn binary_bytes(&self) -> Option<u64> {
        Some(fs::metadata(&self.own.as_ref()?.binary).ok()?.len())
    }

    /// The resident memory of the process.
    pub fn rss(&self) -> Option<u64> {
        let pid = self.own.as_ref()?.child.id();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// The processor time of all threads of the process.
    pub fn cpu(&self) -> Option<Duration> {
        let pid = self.own.as_ref()?.child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold spaces; user and system time are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        // Linux counts a hundred ticks a second wherever programs look.
        Some(Duration::from_millis(ticks * 10))
    }

    /// Returns the number of runs with a status.
    pub fn runs(&self, status: &str) -> Result<u64> {
        let Some(own) = &self.own else { return Ok(0) };
        let conn = open(&own.database)?;
        let count = "SELECT count(*) FROM runs WHERE status = ?1";
        Ok(conn.query_row(count, [status], |row| row.get::<_, i64>(0))?.unsigned_abs())
    }

    /// The last row of the journal; its rows are numbered without gaps while nothing is deleted.
    pub fn journal_rows(&self) -> Result<Option<i64>> {
        let Some(own) = &self.own else { return Ok(None) };
        let rows = "SELECT coalesce(max(lsn), 0) FROM journal";
        Ok(Some(open(&own.database)?.query_row(rows, [], |row| row.get(0))?))
    }
}

fn open(database: &Path) -> Result<rusqlite::Connection> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let conn = rusqlite::Connection::open_with_flags(database, flags)?;
    conn.busy_timeout(Duration::from_secs(5))?;
    Ok(conn)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(own) = &mut self.own {
            // It may be gone already; there is nothing of it to keep.
            let _ = own.child.kill();
            let _ = own.child.wait();
        }
    }
}

fn database(data: &Path) -> Result<PathBuf> {
    fs::read_dir(data)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|it| it == "db" || it == "sqlite"))
        .with_context(|| format!("find the database in {}", data.display()))
}

fn authority(url: &str) -> Result<String> {
    let rest = url.strip_prefix("http://").context("a URL that begins with http://")?;
    Ok(rest.trim_end_matches('/').to_owned())
}
