//! Kills the children of a host that was killed.
//!
//! A host that shuts down ends its children itself. For a host that is killed, a small shell script
//! in its own process group holds the read end of a pipe. The host reports each group that starts
//! and ends, and when the pipe closes, the script kills the remaining groups. Unlike
//! `PR_SET_PDEATHSIG`, this does not depend on the thread that spawned the child, covers
//! grandchildren, and works wherever there is a shell.
//!
//! The script starts before the first child, and holds the lock that the next host waits for
//! (`children_lock.rs`). A child behind a gate (`gate.rs`) becomes its program
//! only after its group was reported to the script. The children of the launcher (`births.rs`) are not
//! reported: the launcher does the same for them.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process_group},
};

use super::children_lock::ChildrenLock;

/// Maintains the list of groups. At the end of its input, kills them, and stays until their first processes are
/// dead: a dying process keeps its files, locks and ports for a moment.
const SCRIPT: &str = r#"trap '' HUP INT TERM
groups=' '
while read -r what group; do
  case $what in
    +) groups="$groups$group " ;;
    -) groups="${groups%%" $group "*} ${groups#*" $group "}" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
lives() {
  [ -r "/proc/$1/stat" ] || return 1
  read -r stat <"/proc/$1/stat" || return 1
  case $stat in *') Z '*) return 1 ;; esac
}
tries=100
for group in $groups; do
  while [ $tries -gt 0 ] && lives "$group"; do
    tries=$((tries - 1))
    sleep 0.05
  done
done 2>/dev/null
"#;

/// The living groups, and the script that kills them if the host cannot.
#[derive(Debug, Default)]
pub(super) struct DeathWatch {
    lock: Arc<ChildrenLock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: BTreeSet<i32>,
    script: Option<Child>,
}

impl DeathWatch {
    /// Creates a watch whose script holds a lock.
    pub(super) fn new(lock: Arc<ChildrenLock>) -> Self {
        Self { lock, state: Mutex::default() }
    }

    /// Starts the script, unless it is running. Must be called before a child starts.
    pub(super) fn begin(&self) {
        let mut state = self.state.lock();
        let runs = state.script.as_mut().is_some_and(|it| matches!(it.try_wait(), Ok(None)));
        if !runs {
            state.restart(&self.lock);
        }
    }

    /// Adds a group.
    pub(super) fn add(&self, group: Pid) {
        let mut state = self.state.lock();
        let group = group.as_raw_nonzero().get();
        state.groups.insert(group);
        if state.script.is_none() || state.tell(&format!("+ {group}\n")).is_err() {
            state.restart(&self.lock);
        }
    }

    /// Removes a group that has ended.
    pub(super) fn remove(&self, group: Pid) {
        let mut state = self.state.lock();
        let group = group.as_raw_nonzero().get();
        state.groups.remove(&group);
        if state.tell(&format!("- {group}\n")).is_err() {
            // If the script is gone, the next child restarts it with the whole list.
            state.stop();
        }
    }

    /// Kills the groups and ends the script.
    pub(super) fn end(&self) {
        self.state.lock().end();
    }

    /// Simulates a killed host: the pipe closes, and nothing else happens.
    #[cfg(test)]
    pub(super) fn lose_host(&self) {
        let mut state = self.state.lock();
        state.groups.clear();
        if let Some(mut script) = state.script.take() {
            drop(script.stdin.take());
            script.wait().expect("the script ends");
        }
    }
}

impl State {
    fn restart(&mut self, lock: &ChildrenLock) {
        if let Err(error) = self.start(lock) {
            tracing::warn!(%error, "children may outlive a killed host: no shell watches them");
        }
    }

    fn start(&mut self, lock: &ChildrenLock) -> io::Result<()> {
        self.stop();
        let mut script = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "moonswarm-death-watch"])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(lock.stdout())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        if let Some(pipe) = &script.stdin {
            // A stopped script must never block the host.
            let flags = rustix::fs::fcntl_getfl(pipe)?;
            rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK)?;
        }
        let known: String = self.groups.iter().map(|group| format!("+ {group}\n")).collect();
        if let Some(pipe) = &mut script.stdin {
            pipe.write_all(known.as_bytes())?;
        }
        self.script = Some(script);
        Ok(())
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        match self.script.as_mut().and_then(|script| script.stdin.as_mut()) {
            Some(pipe) => pipe.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }

    fn end(&mut self) {
        for group in &self.groups {
            if let Some(group) = Pid::from_raw(*group) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        self.stop();
    }

    fn stop(&mut self) {
        let Some(mut script) = self.script.take() else { return };
        // Kill it before its pipe closes. Otherwise it would treat living groups as orphans.
        let _ = script.kill();
        let _ = script.wait();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Read as _},
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn group(script: &str) -> (Child, Pid) {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.process_group(0).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    #[test]
    fn the_watch_kills_what_a_killed_host_leaves() {
        let (mut sleeper, first) = group("sleep 1000 & echo $!; wait");
        let (mut other, second) = group("read x; echo done");
        let watch = DeathWatch::default();
        watch.begin();
        watch.add(first);
        watch.add(second);
        watch.remove(second);
        let mut grandchild = String::new();
        BufReader::new(sleeper.stdout.take().unwrap()).read_line(&mut grandchild).unwrap();

        watch.lose_host();

        assert!(!sleeper.wait().unwrap().success());
        // There may be no parent that reaps it, so a zombie counts as dead.
        let stat = format!("/proc/{}/stat", grandchild.trim());
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        #[expect(clippy::disallowed_methods, reason = "a test that waits for a process")]
        let since = std::time::Instant::now();
        while lives() {
            assert!(since.elapsed().as_secs() < 20, "the grandchild lives");
            std::thread::yield_now();
        }
        drop(other.stdin.take());
        let mut said = String::new();
        other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said, "done\n", "a group that was removed is left alone");
    }

    #[test]
    fn a_watch_that_was_killed_begins_again_with_what_it_knew() {
        let (mut sleeper, pid) = group("sleep 1000");
        let watch = DeathWatch::default();
        watch.begin();
        watch.add(pid);
        let mut state = watch.state.lock();
        let script = state.script.as_mut().unwrap();
        script.kill().unwrap();
        script.wait().unwrap();
        drop(state);

        watch.begin();
        watch.lose_host();

        assert!(!sleeper.wait().unwrap().success());
    }
}
