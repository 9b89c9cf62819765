//! Control groups: limits on the processes of an attempt, and a way to find all of them.
//!
//! Uses version 2 where it has the controllers, and version 1 where a machine still has them there.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::needs::Needs;

/// The maximum number of checks for dying processes in a sweep.
pub(super) const DYING_TRIES: usize = 1_000;
/// The delay between two checks.
pub(super) const DYING_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Controller {
    Cpu,
    Memory,
    Pids,
}

const CONTROLLERS: [(Controller, &str); 3] =
    [(Controller::Cpu, "cpu"), (Controller::Memory, "memory"), (Controller::Pids, "pids")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A directory in which groups of a controller can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    dir: PathBuf,
    version: Version,
}

/// The places where this host can create groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cgroups {
    bases: BTreeMap<Controller, Base>,
    /// The reason, for missing controllers.
    why: String,
    /// Distinguishes the groups of this data directory from others.
    id: String,
}

/// Held while a group is created or removed, so that its parent directory is not removed meanwhile.
static MAKING: Mutex<()> = Mutex::new(());

/// The limit that was exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Broken {
    /// A process was killed because of the memory limit.
    Memory,
    /// A fork was refused.
    Pids,
}

/// The groups of one attempt. Removed together with their processes.
#[derive(Debug, Default)]
pub(super) struct Cage {
    dirs: Vec<(PathBuf, Version)>,
}

impl Cgroups {
    /// Finds out where groups can be created, by trying it.
    pub(super) fn find(id: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut found = Self {
            bases: BTreeMap::new(),
            why: "no control group with this controller is given to the host".to_owned(),
            id: format!("moonswarm-{id}"),
        };
        for base in version_two(&mounts, &own) {
            found.try_two(&base);
        }
        for (controller, word) in CONTROLLERS {
            if let Some(dir) = version_one(&mounts, &own, word) {
                found.try_one(controller, dir);
            }
        }
        found
    }

    #[cfg(test)]
    pub(super) fn none(why: &str) -> Self {
        Self { bases: BTreeMap::new(), why: why.to_owned(), id: String::new() }
    }

    #[cfg(test)]
    pub(super) fn every() -> Self {
        let base = || Base { dir: PathBuf::new(), version: Version::Two };
        let bases = CONTROLLERS.map(|(controller, _)| (controller, base())).into();
        Self { bases, why: String::new(), id: String::new() }
    }

    fn try_two(&mut self, base: &Path) {
        let dir = base.join(&self.id);
        if !base.is_dir() || fs::create_dir_all(&dir).is_err() {
            return;
        }
        let words: Vec<String> = CONTROLLERS.iter().map(|(_, word)| format!("+{word}")).collect();
        // One at a time: a missing controller must not affect the others.
        for word in &words {
            let _ = fs::write(base.join("cgroup.subtree_control"), word);
            let _ = fs::write(dir.join("cgroup.subtree_control"), word);
        }
        let has = fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
        for (controller, word) in CONTROLLERS {
            if has.split_whitespace().any(|it| it == word) {
                let base = || Base { dir: base.to_owned(), version: Version::Two };
                self.bases.entry(controller).or_insert_with(base);
            }
        }
        let _ = fs::remove_dir(&dir);
    }

    fn try_one(&mut self, controller: Controller, base: PathBuf) {
        let dir = base.join(&self.id);
        if self.bases.contains_key(&controller) || fs::create_dir_all(&dir).is_err() {
            return;
        }
        let _ = fs::remove_dir(&dir);
        self.bases.insert(controller, Base { dir: base, version: Version::One });
    }

    fn given(&self, controller: Controller) -> Result<(), String> {
        if self.bases.contains_key(&controller) { Ok(()) } else { Err(self.why.clone()) }
    }

    pub(super) fn cpu(&self) -> Result<(), String> {
        self.given(Controller::Cpu)
    }

    pub(super) fn memory(&self) -> Result<(), String> {
        self.given(Controller::Memory)
    }

    pub(super) fn pids(&self) -> Result<(), String> {
        self.given(Controller::Pids)
    }

    /// Returns the version, for people.
    pub(super) fn version(&self) -> &'static str {
        match self.bases.values().next().map(|base| base.version) {
            Some(Version::One) => "control groups, version 1",
            Some(Version::Two) | None => "control groups, version 2",
        }
    }

    /// Creates the groups of an attempt, even without limits if possible: they find all its
    /// processes, whatever those did to escape.
    pub(super) fn cage(&self, name: &str, needs: &Needs) -> io::Result<Cage> {
        // Dropped after the lock: it takes that itself to remove what was made before an error.
        let mut cage = Cage::default();
        let _made = MAKING.lock();
        for (controller, base) in &self.bases {
            let parent = base.dir.join(&self.id);
            let dir = parent.join(name);
            if !cage.dirs.iter().any(|(known, _)| *known == dir) {
                fs::create_dir_all(&parent)?;
                if base.version == Version::Two {
                    for (_, word) in CONTROLLERS {
                        let _ =
                            fs::write(parent.join("cgroup.subtree_control"), format!("+{word}"));
                    }
                }
                fs::create_dir_all(&dir)?;
                cage.dirs.push((dir.clone(), base.version));
            }
            limit(*controller, base.version, &dir, needs)?;
        }
        Ok(cage)
    }

    /// Kills the processes and removes the groups of earlier attempts of this data directory.
    pub(super) fn sweep(&self) {
        for base in self.bases.values() {
            let parent = base.dir.join(&self.id);
            let Ok(entries) = fs::read_dir(&parent) else { continue };
            for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
                let mut cage = Cage { dirs: vec![(entry.path(), base.version)] };
                // A killed process disappears a moment later. If the kernel still holds it, the
                // next sweep removes its group.
                for _ in 0..DYING_TRIES {
                    if cage.remove() {
                        break;
                    }
                    std::thread::park_timeout(DYING_PAUSE);
                }
                cage.dirs.clear();
            }
            let _ = fs::remove_dir(&parent);
        }
    }
}

fn limit(controller: Controller, version: Version, dir: &Path, needs: &Needs) -> io::Result<()> {
    const PERIOD_US: u64 = 100_000;
    let put = |file: &str, value: String| fs::write(dir.join(file), value);
    match (controller, version) {
        (Controller::Cpu, Version::Two) => {
            let Some(cpu) = needs.cpu else { return Ok(()) };
            put("cpu.max", format!("{} {PERIOD_US}", cpu * PERIOD_US / 1_000))
        }
        (Controller::Cpu, Version::One) => {
            let Some(cpu) = needs.cpu else { return Ok(()) };
            put("cpu.cfs_period_us", PERIOD_US.to_string())?;
            put("cpu.cfs_quota_us", (cpu * PERIOD_US / 1_000).to_string())
        }
        (Controller::Memory, Version::Two) => {
            let Some(memory) = needs.memory else { return Ok(()) };
            put("memory.max", memory.to_string())?;
            // The file does not exist on a machine without swap.
            let _ = put("memory.swap.max", "0".to_owned());
            put("memory.oom.group", "1".to_owned())
        }
        (Controller::Memory, Version::One) => {
            let Some(memory) = needs.memory else { return Ok(()) };
            put("memory.limit_in_bytes", memory.to_string())?;
            let _ = put("memory.memsw.limit_in_bytes", memory.to_string());
            Ok(())
        }
        (Controller::Pids, _) => {
            let Some(pids) = needs.pids else { return Ok(()) };
            put("pids.max", pids.to_string())
        }
    }
}

impl Cage {
    /// Returns the files that a process writes itself into to join the groups.
    pub(super) fn doors(&self) -> Vec<PathBuf> {
        self.dirs.iter().map(|(dir, _)| dir.join("cgroup.procs")).collect()
    }

    /// Returns the limit that was exceeded, according to the kernel's counters.
    pub(super) fn broken(&self) -> Option<Broken> {
        let counted = |dir: &Path, file: &str, word: &str| {
            let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
            line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0) > 0
        };
        for (dir, _) in &self.dirs {
            if counted(dir, "memory.events", "oom_kill")
                || counted(dir, "memory.oom_control", "oom_kill")
            {
                return Some(Broken::Memory);
            }
        }
        let refused = |(dir, _): &(PathBuf, Version)| counted(dir, "pids.events", "max");
        self.dirs.iter().any(refused).then_some(Broken::Pids)
    }

    /// Kills all processes in the groups and removes the groups. Returns false while processes are
    /// dying.
    pub(super) fn remove(&mut self) -> bool {
        self.dirs.retain(|(dir, version)| {
            if *version == Version::Two {
                let _ = fs::write(dir.join("cgroup.kill"), "1");
            }
            let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            for pid in procs.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
                let _ = kill_process(pid, Signal::KILL);
            }
            match fs::remove_dir(dir) {
                Ok(()) => {
                    // The last group removed also removes the parent directory.
                    let _unmade = MAKING.lock();
                    let _ = dir.parent().map(fs::remove_dir);
                    false
                }
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            }
        });
        self.dirs.is_empty()
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // The next start removes the groups of processes that are still dying.
        self.remove();
    }
}

/// Returns the candidate groups of version 2: this host's own group, and its parent unless that is
/// a slice, which belongs to the system manager.
fn version_two(mounts: &str, own: &str) -> Vec<PathBuf> {
    let Some(mount) = mount_of(mounts, |kind, _| kind == "cgroup2") else { return Vec::new() };
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else {
        return Vec::new();
    };
    let own = mount.join(path.trim_start_matches('/'));
    let around = own.parent().filter(|around| {
        let name = around.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        around.starts_with(&mount) && *around != mount && !name.ends_with(".slice")
    });
    let around = around.map(Path::to_owned);
    [Some(own), around].into_iter().flatten().collect()
}

/// Returns this host's group of a controller of version 1.
fn version_one(mounts: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|it| it == controller);
    let mount = mount_of(mounts, |kind, options| kind == "cgroup" && has(options))?;
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (list, path) = (parts.next()?, parts.next()?);
        has(list).then_some(path)
    })?;
    Some(mount.join(path.trim_start_matches('/')))
}

/// Returns the first mount whose type and options match.
fn mount_of(mounts: &str, fits: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let point = place.split(' ').nth(4)?;
        fits(kind, options).then(|| PathBuf::from(point))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 20 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
31 20 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 20 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
";
    const OWN: &str = "4:memory:/box/1\n2:cpu,cpuacct:/\n0::/user.slice/m.service/host\n";

    #[test]
    fn the_hosts_groups_are_found() {
        let unified = Path::new("/sys/fs/cgroup/unified/user.slice");
        let own = unified.join("m.service/host");
        assert_eq!(version_two(MOUNTS, OWN), [own, unified.join("m.service")]);
        assert_eq!(version_two(MOUNTS, "0::/a.slice/b").len(), 1, "a slice is somebody else's");
        assert_eq!(version_two(MOUNTS, "0::/"), [Path::new("/sys/fs/cgroup/unified")]);
        let of = |word| version_one(MOUNTS, OWN, word);
        assert_eq!(of("memory"), Some("/sys/fs/cgroup/memory/box/1".into()));
        assert_eq!(of("cpu"), Some("/sys/fs/cgroup/cpu,cpuacct/".into()));
        assert_eq!(of("pids"), None);
    }

    #[test]
    fn groups_that_nobody_uses_go_also_when_another_could_not_be_made() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        let good = Base { dir: base.path().join("good"), version: Version::One };
        let bad = Base { dir: file, version: Version::One };
        let groups = |bases: &[(Controller, &Base)]| {
            let bases = bases.iter().map(|(controller, base)| (*controller, (*base).clone()));
            Cgroups { bases: bases.collect(), why: String::new(), id: "m".into() }
        };
        let both = groups(&[(Controller::Cpu, &good), (Controller::Memory, &bad)]);
        both.cage("a", &Needs::default()).unwrap_err();
        assert!(good.dir.is_dir() && !good.dir.join("m").exists());
        let one = groups(&[(Controller::Cpu, &good)]);
        let cage = one.cage("a", &Needs::default()).unwrap();
        assert!(good.dir.join("m/a").is_dir());
        drop(cage);
        assert!(!good.dir.join("m").exists());
    }

    #[test]
    fn limits_of_version_two_are_written_as_the_kernel_reads_them() {
        let base = tempfile::tempdir().unwrap();
        let bases = CONTROLLERS.map(|(controller, _)| {
            (controller, Base { dir: base.path().to_owned(), version: Version::Two })
        });
        let groups = Cgroups { bases: bases.into(), why: String::new(), id: "m".into() };
        let needs =
            Needs { cpu: Some(500), memory: Some(1 << 26), pids: Some(7), ..Needs::default() };
        let cage = groups.cage("a", &needs).unwrap();
        let read = |file: &str| fs::read_to_string(base.path().join("m/a").join(file)).unwrap();
        assert_eq!(read("cpu.max"), "50000 100000");
        assert_eq!((read("memory.max"), read("pids.max")), ("67108864".into(), "7".into()));
        assert_eq!(cage.doors(), [base.path().join("m/a/cgroup.procs")]);
        assert_eq!(cage.broken(), None);
        fs::write(base.path().join("m/a/pids.events"), "max 2\n").unwrap();
        assert_eq!(cage.broken(), Some(Broken::Pids));
        fs::write(base.path().join("m/a/memory.events"), "oom 1\noom_kill 1\n").unwrap();
        assert_eq!(cage.broken(), Some(Broken::Memory));
    }
}
