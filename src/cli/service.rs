//! Tells the service manager how the daemon is: ready, alive, stopping.
//!
//! The manager names a socket in `NOTIFY_SOCKET` and receives short datagrams there; systemd does so
//! for units of `Type=notify`, and other managers have taken it over. Without the variable nothing
//! is sent. With `WATCHDOG_USEC` the daemon reports that it is alive twice in that time, from the
//! runtime that serves requests: one that hangs is restarted.

use std::{
    convert::Infallible, env, ffi::OsString, os::unix::net::UnixDatagram, process, time::Duration,
};

/// The service manager that started this process, if there is one.
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    alive_every: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the manager that the environment names.
    pub fn of_environment() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|name| match connect(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(%error, "could not reach the service manager");
                None
            }
        });
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
        let limit = number("WATCHDOG_USEC").filter(|limit| is_ours && *limit > 0);
        Self { socket, alive_every: limit.map(|limit| Duration::from_micros((limit / 2).max(1))) }
    }

    /// Reports that requests are answered from now on.
    pub fn ready(&self, url: &str) {
        self.send(&format!("READY=1\nMAINPID={}\nSTATUS=serving {url}", process::id()));
    }

    /// Reports that the daemon stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Reports again and again that the daemon is alive, as often as the manager asks for it.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn keep_alive(&self) -> Infallible {
        let Some(every) = self.alive_every else { return std::future::pending().await };
        loop {
            self.send("WATCHDOG=1");
            tokio::time::sleep(every).await;
        }
    }

    fn send(&self, words: &str) {
        let Some(socket) = &self.socket else { return };
        // A manager that does not listen is no reason to stop.
        if let Err(error) = socket.send(words.as_bytes()) {
            tracing::debug!(%error, "could not notify the service manager");
        }
    }
}

fn connect(name: &OsString) -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    #[cfg(target_os = "linux")]
    if let Some(name) = name.to_str().and_then(|name| name.strip_prefix('@')) {
        // A name that is no file.
        use std::os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr};
        socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        return Ok(socket);
    }
    socket.connect(name)?;
    Ok(socket)
}
