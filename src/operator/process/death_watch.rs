//! Makes children die with a host that is killed.
//!
//! A host that ends in order ends its children itself. For one that is killed, a tiny shell
//! script in a group of its own holds the other end of a pipe: it is told each group that begins
//! and ends, and when the pipe closes it kills those that are left. Against
//! `PR_SET_PDEATHSIG`, that needs no code between fork and exec, does not depend on the thread
//! that spawned, takes grandchildren along and works wherever there is a shell.
//!
//! What is left open: a host killed between a fork and the write that follows it. The child has
//! not been given its input then, and its attempt is fenced like any other.

use std::{
    collections::BTreeSet,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::OFlags,
    process::{Pid, Signal, kill_process_group},
};

/// Keeps the list of groups; at the end of its input, kills them.
const SCRIPT: &str = r#"trap '' HUP INT TERM
groups=' '
while read -r what group; do
  case $what in
    +) groups="$groups$group " ;;
    -) groups="${groups%%" $group "*} ${groups#*" $group "}" ;;
  esac
done
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
"#;

/// The groups that are alive, and who ends them if the host cannot.
#[derive(Debug, Default)]
pub(in crate::operator) struct DeathWatch {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: BTreeSet<i32>,
    script: Option<Child>,
}

impl DeathWatch {
    /// Watches over a group from now on.
    pub(super) fn add(&self, group: Pid) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let group = group.as_raw_nonzero().get();
        state.groups.insert(group);
        if state.script.is_some() && state.tell(&format!("+ {group}\n")).is_ok() {
            return;
        }
        if let Err(error) = state.start() {
            tracing::warn!(%error, "children may outlive a killed host: no shell watches them");
        }
    }

    /// The group has ended.
    pub(super) fn remove(&self, group: Pid) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let group = group.as_raw_nonzero().get();
        state.groups.remove(&group);
        if state.tell(&format!("- {group}\n")).is_err() {
            // Without its script the watch starts again at the next child, from the list.
            state.stop();
        }
    }

    /// What a killed host does: the pipe closes, and nothing else happens.
    #[cfg(test)]
    pub(super) fn lose_host(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.groups.clear();
        if let Some(mut script) = state.script.take() {
            drop(script.stdin.take());
            script.wait().expect("the script ends");
        }
    }
}

impl State {
    fn start(&mut self) -> io::Result<()> {
        self.stop();
        let mut script = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "moonswarm-death-watch"])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        if let Some(pipe) = &script.stdin {
            // A script that was stopped must never stop the host.
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

    fn stop(&mut self) {
        let Some(mut script) = self.script.take() else { return };
        // Killed before its pipe closes: it must not take living groups for orphans.
        let _ = script.kill();
        let _ = script.wait();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for group in &self.groups {
            if let Some(group) = Pid::from_raw(*group) {
                let _ = kill_process_group(group, Signal::KILL);
            }
        }
        self.stop();
    }
}
