//! PostgreSQL servers for tests, of the machine's own binaries: one that all test processes share, and
//! servers of one test, which can be stopped and started.
//!
//! A server runs as an unprivileged user below the directory for temporary files. A shell beside it
//! waits until no process has a lock on its directory any more, and then stops it: also when the
//! tests are killed.
#![allow(dead_code, reason = "every test program uses its own part of it")]

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, Permissions},
    net::{TcpListener, TcpStream},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, OnceLock},
};

/// The password of the user `postgres` over TCP; over the socket it needs none.
pub const PASSWORD: &str = "a-pass%word";
/// The same within an address.
const PASSWORD_IN_URL: &str = "a-pass%25word";
/// The unprivileged user.
const USER: &str = "postgres";
/// The mark of a file system in memory, in `statfs`.
const TMPFS: i64 = 0x0102_1994;
/// The oldest version that is supported.
const OLDEST: u32 = 15;

/// A running server.
pub struct Server {
    dir: PathBuf,
    binaries: PathBuf,
    port: u16,
    /// The options of the server beside its place.
    options: String,
    /// Locked as long as the server is needed.
    _use: File,
}

/// Returns where the shared server is: in memory, if there was plenty when it began. Each test has a
/// database of hundreds of files, and a file system takes longer to create and remove these than the
/// test takes.
fn shared_place(name: &str) -> PathBuf {
    let (memory, plenty) = (Path::new("/dev/shm"), 6 << 30);
    let is_roomy = rustix::fs::statfs(memory).is_ok_and(|it| {
        let free = it.f_bavail.saturating_mul(u64::try_from(it.f_bsize).unwrap_or_default());
        it.f_type == TMPFS && free >= plenty
    });
    let here = memory.join(name);
    if is_roomy || here.exists() { here } else { std::env::temp_dir().join(name) }
}

/// A pooler before a server, which is ended with it.
pub struct Pooler {
    child: Child,
    port: u16,
}

impl Pooler {
    /// Starts one in transaction mode; none where there is no PgBouncer.
    pub fn before(server: &Server) -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let mut places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        let program = places.find_map(|it| Some(it.join("pgbouncer")).filter(|it| it.is_file()))?;
        // It may be where an unprivileged user cannot go.
        let runs = unprivileged(&program).arg("--version").status().is_ok_and(|it| it.success());
        if !runs {
            return None;
        }
        let (port, dir) = (free_port(), server.dir.join("pooler"));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("pgbouncer.ini");
        let config = format!(
            "[databases]\n* = host={} port={} user={USER}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             ignore_startup_parameters = extra_float_digits\n",
            server.dir.display(),
            server.port
        );
        fs::write(&file, config).unwrap();
        let child = unprivileged(&program).arg(&file).spawn().unwrap();
        Some(Self { child, port })
    }

    /// Returns the address of a database through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns true once it listens.
    pub fn listens(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // The child is what runs the pooler as another user. It passes this signal on, and no other.
        let child = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(child, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// A database of a test, which is dropped with it.
pub struct Database {
    server: &'static Server,
    name: String,
}

impl Server {
    /// Returns the server that all tests of this machine share.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    pub fn shared() -> Result<&'static Self, String> {
        static SERVER: OnceLock<Result<Server, String>> = OnceLock::new();
        let server = SERVER.get_or_init(|| {
            let place = env!("CARGO_MANIFEST_DIR").replace(|c: char| !c.is_alphanumeric(), "-");
            let uid = rustix::process::geteuid().as_raw();
            let name = format!("moonswarm-postgres-{uid}{place}");
            Self::take(shared_place(&name), false, "-c fsync=off", Self::create)
        });
        server.as_ref().map_err(Clone::clone)
    }

    /// Starts a server of its own.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    pub fn own() -> Result<Self, String> {
        Self::own_with("", Self::create)
    }

    /// Starts a server of its own that has a certificate.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    pub fn with_tls(certificate: &Path, key: &Path) -> Result<Self, String> {
        let options = "-c ssl=on -c ssl_cert_file=cert.pem -c ssl_key_file=key.pem \
                       -c listen_addresses=127.0.0.1,127.0.0.2";
        Self::own_with(options, |server| {
            server.create()?;
            for (from, name) in [(certificate, "cert.pem"), (key, "key.pem")] {
                let to = server.dir.join("data").join(name);
                fs::copy(from, &to).map_err(|error| error.to_string())?;
                fs::set_permissions(&to, Permissions::from_mode(0o600)).unwrap();
                if let Some((uid, gid)) = user_for_root() {
                    chown(&to, Some(uid), Some(gid)).map_err(|error| error.to_string())?;
                }
            }
            Ok(())
        })
    }

    /// Starts a standby of this server, which follows it.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    pub fn standby(&self) -> Result<Self, String> {
        Self::own_with("", |standby| {
            standby.give_directory()?;
            let mut copy = unprivileged(&standby.binaries.join("pg_basebackup"));
            copy.arg("-D").arg(standby.dir.join("data")).args(["-R", "-X", "stream", "-c", "fast"]);
            copy.arg("-h").arg(&self.dir).arg("-p").arg(self.port.to_string()).args(["-U", USER]);
            match copy.status() {
                Ok(status) if status.success() => Ok(()),
                other => Err(format!("pg_basebackup: {other:?}")),
            }
        })
    }

    /// Starts a standby of this server for which every commit waits.
    ///
    /// # Errors
    /// Returns the reason why there is none.
    ///
    /// # Panics
    /// If it does not become synchronous.
    pub fn synchronous_standby(&self) -> Result<Self, String> {
        let standby = self.standby()?;
        self.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("postgres", "SELECT pg_reload_conf()");
        self.wait_for("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
        Ok(standby)
    }

    /// Waits until a query of the database `postgres` answers `t`.
    ///
    /// # Panics
    /// If it does not for a minute.
    pub fn wait_for(&self, query: &str) {
        for _ in 0..1_200 {
            if self.sql("postgres", query).trim() == "t" {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        panic!("in vain: {query}");
    }

    /// Returns the address of a database at whichever of two servers takes writes.
    pub fn url_with(&self, other: &Self, database: &str) -> String {
        let (one, other) = (self.port, other.port);
        format!("postgres://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{one},127.0.0.1:{other}/{database}")
    }

    /// Makes a standby a server that takes writes.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn promote(&self) {
        assert!(self.control(&["-w", "promote"]), "the standby is not promoted");
    }

    fn own_with(
        options: &str,
        create: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Result<Self, String> {
        let name = format!("moonswarm-postgres-{}", random());
        let options = format!("-c fsync=on {options}");
        Self::take(std::env::temp_dir().join(name), true, &options, create)
    }

    fn take(
        dir: PathBuf,
        is_own: bool,
        options: &str,
        create: impl FnOnce(&Self) -> Result<(), String>,
    ) -> Result<Self, String> {
        let binaries = binaries().ok_or("there is no initdb of PostgreSQL 15 or newer")?;
        fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let file = |name: &str| {
            let path = dir.join(name);
            OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap()
        };
        // Whoever starts the server holds the first lock; whoever uses it, the second one.
        let start = file("start");
        start.lock().unwrap();
        let in_use = file("users");
        in_use.lock_shared().unwrap();
        let port_file = dir.join("port");
        let known = fs::read_to_string(&port_file).ok().and_then(|text| text.parse().ok());
        let port = known.unwrap_or_default();
        // Nobody takes the power from the shared one; each commit of each test waits for syncs otherwise.
        let options = options.to_owned();
        let mut server = Self { dir, binaries, port, options, _use: in_use };
        if known.is_none() || !server.is_running() {
            server.port = free_port();
            create(&server)?;
            server.start();
            fs::write(&port_file, server.port.to_string()).unwrap();
            server.watch(is_own);
        }
        Ok(server)
    }

    /// Returns the address of a database over the socket.
    pub fn url(&self, database: &str) -> String {
        let dir = self.dir.to_str().unwrap().replace('/', "%2F");
        format!("postgres://{USER}@{dir}:{}/{database}", self.port)
    }

    /// Returns the address of a database over TCP, with the password.
    pub fn tcp_url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD_IN_URL}@127.0.0.1:{}/{database}", self.port)
    }

    /// Returns the port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the output of SQL, with a line a row.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let output = self.psql(database, sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn psql(&self, database: &str, sql: &str) -> Output {
        let mut psql = Command::new(self.binaries.join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER, "-d", database]);
        psql.arg("-h").arg(&self.dir).arg("-p").arg(self.port.to_string()).args(["-c", sql]);
        psql.current_dir("/").stdin(Stdio::null()).output().unwrap()
    }

    /// Creates an empty database.
    pub fn create_database(&self) -> String {
        let name = format!("t_{}", random().replace('-', "_"));
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// Drops the databases of directories that are gone.
    fn drop_left_over(&self) {
        let known = self.sql(
            "postgres",
            "SELECT datname, shobj_description(oid, 'pg_database') FROM pg_database
             WHERE shobj_description(oid, 'pg_database') LIKE '/%'",
        );
        for line in known.lines() {
            let Some((name, home)) = line.split_once('|') else { continue };
            if !Path::new(home).exists() {
                // Another test may drop it at the same time.
                let _ =
                    self.psql("postgres", &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
            }
        }
    }

    /// Starts the server, after [`Server::stop`].
    ///
    /// # Panics
    /// If it does not start; with its log.
    pub fn start(&self) {
        let options = format!(
            "-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories={} \
             -c max_connections=200 -c shared_buffers=32MB {}",
            self.port,
            self.dir.display(),
            self.options
        );
        let log = self.dir.join("data/log");
        let started = self.control(&[
            "-w",
            "-t",
            "120",
            "-l",
            log.to_str().unwrap(),
            "-o",
            &options,
            "start",
        ]);
        let log = || fs::read_to_string(&log).unwrap_or_default();
        assert!(started, "the server in {} does not start: {}", self.dir.display(), log());
    }

    /// Stops the server as if its machine had lost its power, as far as the system allows.
    pub fn stop(&self) {
        assert!(self.control(&["-m", "immediate", "-w", "stop"]), "the server does not stop");
    }

    fn is_running(&self) -> bool {
        self.control(&["status"])
    }

    fn control(&self, args: &[&str]) -> bool {
        let mut control = unprivileged(&self.binaries.join("pg_ctl"));
        control.arg("-D").arg(self.dir.join("data")).args(args);
        control.status().is_ok_and(|status| status.success())
    }

    fn create(&self) -> Result<(), String> {
        let data = self.dir.join("data");
        if data.exists() {
            fs::remove_dir_all(&data).map_err(|error| error.to_string())?;
        }
        let password = self.dir.join("password");
        fs::write(&password, PASSWORD).unwrap();
        fs::set_permissions(&password, Permissions::from_mode(0o644)).unwrap();
        self.give_directory()?;
        let mut init = unprivileged(&self.binaries.join("initdb"));
        init.arg("-D").arg(&data).arg(format!("--pwfile={}", password.display())).args([
            "-U",
            USER,
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
        ]);
        match init.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("initdb ends with {status}")),
            Err(error) => Err(format!("initdb cannot be run: {error}")),
        }
    }

    /// Gives the directory to the unprivileged user.
    fn give_directory(&self) -> Result<(), String> {
        match user_for_root() {
            Some((uid, gid)) => {
                chown(&self.dir, Some(uid), Some(gid)).map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    /// Starts the shell that stops the server when nobody uses it any more.
    fn watch(&self, is_own: bool) {
        let gone = if is_own { "rm -rf \"$1\"" } else { "rm -rf \"$1/data\" \"$1/port\"" };
        let stop = unprivileged_words(&self.binaries.join("pg_ctl")).join(" ");
        let last = format!("{stop} -D \"$1/data\" -m immediate -w stop >/dev/null 2>&1; {gone}");
        // The next test process may come a moment after the last one has gone.
        let pause = if is_own { 0 } else { 3 };
        let script = format!(
            "cd /; while :; do flock -x \"$1/users\" true || exit; sleep {pause}; \
             flock -n -E 200 -x \"$1/users\" sh -c '{last}' sh \"$1\"; [ $? = 200 ] || exit; done"
        );
        let mut shell = Command::new("setsid");
        shell.arg("-f").arg("flock").arg(self.dir.join("watch")).args(["sh", "-c", &script, "sh"]);
        let shell = shell.arg(&self.dir).stdin(Stdio::null()).stdout(Stdio::null());
        assert!(shell.stderr(Stdio::null()).status().unwrap().success());
    }
}

impl Database {
    /// Creates an empty database of the shared server.
    ///
    /// # Errors
    /// Returns the reason why there is no server.
    pub fn fresh() -> Result<Self, String> {
        let server = Server::shared()?;
        Ok(Self { server, name: server.create_database() })
    }

    /// Returns the address of the database that belongs to a data directory, also after the daemon
    /// over it has ended. It is dropped some time after the directory is gone.
    ///
    /// # Panics
    /// If there is no server.
    pub fn of(data: &Path) -> String {
        static OF: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
        let mut all = OF.lock().unwrap();
        if let Some(url) = all.get(data) {
            return url.clone();
        }
        let server = Server::shared().expect("MOONSWARM_TEST_STORE=postgres needs a server");
        server.drop_left_over();
        let name = server.create_database();
        let home = data.parent().unwrap_or(data).display().to_string().replace('\'', "");
        server.sql("postgres", &format!("COMMENT ON DATABASE {name} IS '{home}'"));
        let url = server.url(&name);
        all.insert(data.to_owned(), url.clone());
        url
    }

    /// Returns a copy of it as it is now. Nobody may be connected to it.
    pub fn snapshot(&self) -> Self {
        let name = format!("t_{}", random().replace('-', "_"));
        let sql = format!("CREATE DATABASE {name} TEMPLATE {}", self.name);
        self.server.sql("postgres", &sql);
        Self { server: self.server, name }
    }

    /// Returns its address over the socket.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Returns its address over TCP, with the password.
    pub fn tcp_url(&self) -> String {
        self.server.tcp_url(&self.name)
    }

    /// Returns the port of its server on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// Returns the output of SQL, with a line a row.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.name, sql)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.server.sql("postgres", &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Returns true if a data directory has its runs in itself.
pub fn has_runs(data: &Path) -> bool {
    data.join("moonswarm.db").exists()
}

/// Returns the directory of the newest binaries.
fn binaries() -> Option<PathBuf> {
    let of_system = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = of_system
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(version, path)| *version >= OLDEST && path.join("initdb").is_file())
        .collect();
    found.sort();
    if let Some((_, newest)) = found.pop() {
        return Some(newest);
    }
    let path = std::env::var_os("PATH")?;
    let of_path = std::env::split_paths(&path).find(|dir| dir.join("initdb").is_file())?;
    let version = Command::new(of_path.join("postgres")).arg("--version").output().ok()?;
    let version = String::from_utf8(version.stdout).ok()?;
    let number = version.split(|c: char| !c.is_ascii_digit()).find(|part| !part.is_empty())?;
    (number.parse::<u32>().ok()? >= OLDEST).then_some(of_path)
}

/// A command as a user without rights: the server refuses root.
fn unprivileged(program: &Path) -> Command {
    let words = unprivileged_words(program);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir("/").env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn unprivileged_words(program: &Path) -> Vec<String> {
    let program = program.to_str().unwrap().to_owned();
    match user_for_root() {
        None => vec![program],
        Some(_) => vec!["runuser".into(), "-u".into(), USER.into(), "--".into(), program],
    }
}

/// Returns the user and the group of the server, if this process is root.
fn user_for_root() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.starts_with(&format!("{USER}:")))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn random() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim().to_owned()
}
