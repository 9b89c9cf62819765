//! The options of the load generator.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

/// The arguments.
#[derive(Default)]
pub struct Options {
    /// Short loads, for a look.
    quick: bool,
    /// Everything at the sizes that the promises name: a million runs and more.
    long: bool,
    /// Milliseconds that each sync of the disk takes longer.
    pub slow_sync_ms: Option<u32>,
    /// True if ratios beyond their limits are an error.
    pub gate: bool,
    /// A JSON document instead of the tables.
    pub json: bool,
    /// The one load to send, such as `serial/10/64`, `fan-out/1000/1`, `queue/10/64`, `queue-next/10/64`, `batch/10/64`, `batch-next/10/64`, `process/10/32`, `worker`, `parked`, `sessions`, `mcp`, `llm`, `state`, `fairness`.
    only: Option<String>,
    /// The program to start.
    binary: Option<PathBuf>,
    /// The number of sessions that are connected.
    pub sessions: usize,
    /// The directory for the data and the bare database.
    dir: Option<PathBuf>,
    /// A daemon that runs already: its URL and a token.
    pub server: Option<(String, String)>,
}

impl Options {
    /// Reads the arguments; `--bench` is what cargo adds.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self { sessions: 200, ..Self::default() };
        let (mut url, mut token) = (None, None);
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--bench" => {}
                "--quick" => options.quick = true,
                "--long" => options.long = true,
                "--gate" => options.gate = true,
                "--slow-sync" => options.slow_sync_ms = Some(value()?.parse()?),
                "--json" => options.json = true,
                "--only" => options.only = Some(value()?),
                "--binary" => options.binary = Some(value()?.into()),
                "--sessions" => options.sessions = value()?.parse()?,
                "--dir" => options.dir = Some(value()?.into()),
                "--server" => url = Some(value()?),
                "--token" => token = Some(value()?),
                _ => bail!(
                    "unknown argument {arg}; known are --quick, --long, --gate, --json, --only LOAD, \
                     --slow-sync MS, --sessions N, --binary FILE, --dir DIR, --server URL and --token T"
                ),
            }
        }
        options.server = match (url, token) {
            (Some(url), Some(token)) => Some((url, token)),
            (None, None) => None,
            _ => bail!("--server and --token belong together"),
        };
        Ok(options)
    }

    /// Returns true if a load is to be sent.
    pub fn wants(&self, load: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only.split(',').any(|only| only == load))
    }

    /// Returns the size of a load: a look, the usual one, or the one that the promises name.
    pub fn size(&self, quick: usize, usual: usize, long: usize) -> usize {
        match (self.quick, self.long) {
            (_, true) => long,
            (true, false) => quick,
            (false, false) => usual,
        }
    }

    /// Returns the duration of each load.
    pub fn time(&self) -> Duration {
        if self.quick { Duration::from_millis(500) } else { Duration::from_secs(3) }
    }

    /// Returns the directory for the data.
    pub fn dir(&self) -> &Path {
        self.dir.as_deref().unwrap_or(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// The program: what was named, or what cargo built beside this bench.
    pub fn binary(&self) -> Result<PathBuf> {
        let path = match &self.binary {
            Some(path) => path.clone(),
            None => PathBuf::from(env!("CARGO_BIN_EXE_moonswarm")),
        };
        path.canonicalize().with_context(|| format!("find {}", path.display()))
    }
}
