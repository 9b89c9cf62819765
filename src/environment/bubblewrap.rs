//! Bubblewrap (`bwrap`): namespaces where the kernel gives this program none of its own.
//!
//! A system that lets no user make namespaces may still have a `bwrap` that it lets: by its
//! profile, or by set-user-id. It goes around the helper, which then draws the rest of the
//! boundary, and which looks first whether it stands where it was told that it would. A `bwrap` that
//! does less than it says is found out by that, when the machine is looked at and at each start.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::plan::{PROBE_WITHIN, Probed, VERB, said};

/// The program's name.
const NAME: &str = "bwrap";
/// How large a directory is that it tries to have for itself, in bytes.
pub(super) const TRIAL_BYTES: u64 = 1 << 16;

/// The program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bubblewrap(PathBuf);

impl Bubblewrap {
    /// The first one on the host's PATH.
    pub(super) fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let found = std::env::split_paths(&path)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(NAME))
            .find(|file| is_program(file));
        found.map(Self)
    }

    /// One at a path.
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn program(&self) -> &Path {
        &self.0
    }

    /// Its arguments before the program that it starts. All files stay what they are, but for the
    /// directory of `disk`, which is a file system of that size: what may be used of the others
    /// is the helper's to say.
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

    /// Lets it try what it can do here, around the helper at a path.
    pub(super) fn probe(&self, helper: &io::Result<PathBuf>) -> Probed {
        // One that holds nothing: what is covered cannot be executed any more.
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

/// The network that this process is in, by the kernel's name for it: `net:[4026531840]`.
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
