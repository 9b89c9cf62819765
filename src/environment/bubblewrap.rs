//! Bubblewrap (`bwrap`): creates namespaces where the kernel does not allow this program to.
//!
//! On a system that does not let users create namespaces, `bwrap` may still be allowed to, through
//! a security profile or as a set-user-id program. It wraps the helper, which sets up the rest of
//! the boundary, after verifying that the namespaces are the promised ones. So a `bwrap` that does
//! less than it claims is detected, both by the probe of the machine and at each start.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::plan::{PROBE_WITHIN, Probed, VERB, said};

/// The name of the program.
const NAME: &str = "bwrap";
/// The size in bytes of the file system that the probe asks for.
pub(super) const TRIAL_BYTES: u64 = 1 << 16;

/// The path of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bubblewrap(PathBuf);

impl Bubblewrap {
    /// Returns the first `bwrap` on the host's PATH.
    pub(super) fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let found = std::env::split_paths(&path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(NAME))
            .find(|file| is_program(file));
        found.map(Self)
    }

    /// Returns the program at a path.
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn program(&self) -> &Path {
        &self.0
    }

    /// Returns its arguments, up to the program that it starts. All files stay visible, except that
    /// the directory of `disk` becomes a file system of that size. The helper restricts access to
    /// the others.
    pub(super) fn arguments(closed: bool, disk: Option<(&Path, u64)>) -> Vec<OsString> {
        let mut words: Vec<OsString> =
            ["--die-with-parent", "--dev-bind", "/", "/"].map(OsString::from).to_vec();
        if closed {
            words.push("--unshare-net".into());
        }
        if let Some((room, bytes)) = disk {
            words.extend(["--perms", "0700", "--size"].map(OsString::from));
            words.push(bytes.to_string().into());
            words.extend([OsString::from("--tmpfs"), room.into()]);
        }
        words.push("--".into());
        words
    }

    /// Probes its abilities on this machine, with the helper at a path inside it.
    pub(super) fn probe(&self, helper: &io::Result<PathBuf>) -> Probed {
        // Must be empty, because nothing below a mount can be executed any more.
        let trial = std::env::temp_dir().join(format!("moonswarm-{}", uuid::Uuid::new_v4()));
        if let Err(error) = fs::create_dir(&trial) {
            let why = format!("{}: {error}", trial.display());
            return Probed { network: Some(why.clone()), disk: Some(why) };
        }
        let network = self.tries(helper, true, &trial, None).and_then(|it| said(it.network));
        let disk = self.tries(helper, false, &trial, Some(TRIAL_BYTES));
        let disk = disk.and_then(|it| said(it.disk));
        if let Err(error) = fs::remove_dir(&trial) {
            tracing::warn!(dir = %trial.display(), %error, "a directory of a trial is left");
        }
        Probed { network: network.err(), disk: disk.err() }
    }

    fn tries(
        &self,
        helper: &io::Result<PathBuf>,
        closed: bool,
        room: &Path,
        disk: Option<u64>,
    ) -> Result<Probed, String> {
        let fails = |why: String| format!("{} does not help: {why}", self.0.display());
        let outside = network().map_err(|error| fails(error.to_string()))?;
        let output = Command::new(&self.0)
            .args(Self::arguments(closed, disk.map(|bytes| (room, bytes))))
            .arg(helper.as_ref().map_err(|error| fails(error.to_string()))?)
            .args([VERB, PROBE_WITHIN, &outside])
            .arg(room)
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .map_err(|error| fails(error.to_string()))?;
        let probed: Result<Probed, _> = serde_json::from_slice(&output.stdout);
        let probed = probed.map_err(|_| {
            let text = String::from_utf8_lossy(&output.stderr);
            fails(text.lines().last().unwrap_or("it says nothing").chars().take(200).collect())
        })?;
        Ok(Probed { network: probed.network.map(fails), disk: probed.disk.map(fails) })
    }
}

/// Returns the kernel's name for the network namespace of this process: `net:[4026531840]`.
pub(super) fn network() -> io::Result<String> {
    Ok(fs::read_link("/proc/self/ns/net")?.to_string_lossy().into_owned())
}

pub(super) fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_what_is_needed_and_for_nothing_else() {
        let words = |closed, disk| -> Vec<String> {
            let words = Bubblewrap::arguments(closed, disk).into_iter();
            words.map(|word| word.into_string().unwrap()).collect()
        };
        let plain = ["--die-with-parent", "--dev-bind", "/", "/", "--"];
        assert_eq!(words(false, None), plain);
        let all = words(true, Some((Path::new("/room"), 4096)));
        assert_eq!(
            all[4..],
            ["--unshare-net", "--perms", "0700", "--size", "4096", "--tmpfs", "/room", "--"]
        );
    }
}
