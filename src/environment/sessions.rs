//! The sessions of launchers (`births.rs`), noted for the next host of the data directory.
//!
//! The children of a launcher are in its session. A launcher that is killed cannot kill them; its host
//! does, and if that was killed as well, the next one, before it repeats an attempt. A number may be
//! another's by then: a session is noted with the boot, the process namespace, the start and the control
//! group of its launcher, and nothing is killed of which that is not true.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

use super::{cgroup::DYING_PAUSE, place::make_private};
use crate::clock::Clock;

/// The directory of the notes, in the directory of work.
const NOTES: &str = ".launchers";
/// The maximum time for the end of processes that were killed, in milliseconds.
const DYING_MS: u64 = 1_000;

/// The note of a session, which is removed when dropped.
#[derive(Debug)]
pub(super) struct Noted(PathBuf);

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The state of a process, from `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    is_dead: bool,
    group: i32,
    session: i32,
    /// In ticks since the boot.
    start: u64,
}

/// Notes the session of a launcher.
///
/// # Errors
/// Fails when the note cannot be written, or the launcher has ended.
pub(super) fn note(work: &Path, launcher: Pid) -> io::Result<Noted> {
    let notes = work.join(NOTES);
    make_private(&notes)?;
    let number = launcher.as_raw_nonzero().get();
    let stat = stat(number).ok_or(io::ErrorKind::NotFound)?;
    let noted = Noted(notes.join(number.to_string()));
    let within = cgroup(number).unwrap_or_default();
    fs::write(&noted.0, format!("{} {}\n{within}", place()?, stat.start))?;
    Ok(noted)
}

/// Kills what is left of the noted sessions, and removes the notes. Blocks until it is gone.
pub(super) fn sweep(work: &Path) {
    let Ok(entries) = fs::read_dir(work.join(NOTES)) else { return };
    for entry in entries.flatten() {
        if let Some(session) = read(&entry.path()) {
            session.kill();
        }
        let _ = fs::remove_file(entry.path());
    }
}

/// Kills the process groups of a session. Blocks until their processes are gone.
pub(super) fn kill(session: Pid) {
    Session { number: session.as_raw_nonzero().get(), start: 0, within: String::new() }.kill();
}

/// Returns a noted session, unless another process has the number of its launcher now.
fn read(note: &Path) -> Option<Session> {
    let number: i32 = note.file_name()?.to_str()?.parse().ok()?;
    let text = fs::read_to_string(note).ok()?;
    let (line, within) = text.split_once('\n').unwrap_or((text.as_str(), ""));
    let (noted, start) = line.rsplit_once(' ')?;
    let start = start.parse().ok()?;
    let is_other = stat(number).is_some_and(|now| now.start != start);
    let session = Session { number, start, within: within.to_owned() };
    (noted == place().ok()? && !is_other).then_some(session)
}

/// Returns the name of this boot and of this process namespace, in which numbers and ticks count.
fn place() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

/// Returns the control group of a process, of version 2; `None` where there is none.
fn cgroup(process: i32) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// A session of which something may be left.
#[derive(Debug)]
struct Session {
    number: i32,
    /// When its launcher started. No process of it is older.
    start: u64,
    /// The control group of its launcher, which all of its processes are in or below. Empty if there is
    /// none, and for a launcher that is not awaited yet: the number is no other's then.
    within: String,
}

impl Session {
    /// Kills its process groups until their processes are gone, or for as long as that may take. Groups
    /// that may not be killed are left alone.
    fn kill(&self) {
        let (clock, mut refused) = (Clock::system(), BTreeSet::new());
        let until_ms = clock.steady_ms() + DYING_MS;
        loop {
            let groups = &self.groups() - &refused;
            for group in &groups {
                let killed = Pid::from_raw(*group).map(|it| kill_process_group(it, Signal::KILL));
                if killed == Some(Err(Errno::PERM)) {
                    refused.insert(*group);
                }
            }
            if groups.is_subset(&refused) || clock.steady_ms() >= until_ms {
                return;
            }
            std::thread::park_timeout(DYING_PAUSE);
        }
    }

    /// Returns its groups with a process that lives.
    fn groups(&self) -> BTreeSet<i32> {
        let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
        let processes = entries.flatten().filter_map(|entry| {
            let number: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = stat(number)?;
            (self.has(&stat) && self.is_around(number)).then_some(stat.group)
        });
        processes.collect()
    }

    fn has(&self, it: &Stat) -> bool {
        it.session == self.number && it.start >= self.start && !it.is_dead
    }

    /// Returns true if a process is in the control group of the launcher, or below it.
    fn is_around(&self, process: i32) -> bool {
        let is_below = |group: String| Path::new(&group).starts_with(&self.within);
        self.within.is_empty() || cgroup(process).is_some_and(is_below)
    }
}

/// Returns the state of a process; `None` if it is gone.
fn stat(process: i32) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    read_stat(&String::from_utf8_lossy(&stat))
}

fn read_stat(stat: &str) -> Option<Stat> {
    // After the name, which may contain anything: state, parent, group, session; the number of threads
    // is 18th, the start 20th.
    let (_, after) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let [state, _, group, session, ..] = fields[..] else { return None };
    Some(Stat {
        // The first thread of a process may have ended before others.
        is_dead: matches!(state, "Z" | "X") && fields.get(17)?.parse::<u32>().ok()? <= 1,
        group: group.parse().ok()?,
        session: session.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Starts a leader of a session with a child, and returns the number of the child.
    fn session() -> (Child, String) {
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "sleep 1000 & echo $!; read x"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = String::new();
        BufReader::new(leader.stdout.take().unwrap()).read_line(&mut child).unwrap();
        (leader, child.trim().to_owned())
    }

    fn lives(number: &str) -> bool {
        stat(number.parse().unwrap()).is_some_and(|it| !it.is_dead)
    }

    #[test]
    fn what_a_launcher_has_left_is_killed_by_the_next_host() {
        let work = tempfile::tempdir().unwrap();
        let (mut leader, child) = session();
        let pid = Pid::from_child(&leader);
        std::mem::forget(note(work.path(), pid).unwrap());
        drop(leader.stdin.take());
        leader.wait().unwrap();
        assert!(lives(&child), "it outlives its leader");
        sweep(work.path());
        assert!(!lives(&child));
        assert_eq!(fs::read_dir(work.path().join(NOTES)).unwrap().count(), 0);
    }

    #[test]
    fn a_session_that_only_has_the_number_is_left_alone() {
        let work = tempfile::tempdir().unwrap();
        let (mut leader, child) = session();
        let pid = Pid::from_child(&leader);
        let number = pid.as_raw_nonzero().to_string();
        let start = stat(pid.as_raw_nonzero().get()).unwrap().start;
        let place = place().unwrap();
        let file = work.path().join(NOTES).join(&number);
        drop(note(work.path(), pid).unwrap());
        assert!(!file.exists(), "it goes with its launcher");
        let others = [
            format!("{place} {}", start + 1),
            format!("another {start}"),
            format!("{place} {start}\n/another/group"),
            String::new(),
        ];
        for text in others {
            fs::write(&file, text).unwrap();
            sweep(work.path());
            assert!(lives(&child) && !file.exists());
        }
        // The same, but alive: its host has waited for its end in vain.
        fs::write(&file, format!("{place} {start}")).unwrap();
        sweep(work.path());
        assert!(!lives(&child) && !lives(&number));
        leader.wait().unwrap();
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_as_long_as_another() {
        let is_dead = |state: &str, threads: u32| {
            let between = "0 ".repeat(12);
            let text = format!("7 (a) b) {state} 1 7 7 {between}0 {threads} 0 99 0");
            let stat = read_stat(&text).unwrap();
            assert_eq!((stat.group, stat.session, stat.start), (7, 7, 99));
            stat.is_dead
        };
        assert!(is_dead("Z", 1) && is_dead("X", 0));
        assert!(!is_dead("Z", 2) && !is_dead("S", 1));
    }
}
