//! What this machine can enforce, found out by trying.

use super::{Refusal, cgroup::Cgroups, confine, helper::Helper, paths};

/// What a machine can enforce, and of the rest why not.
#[derive(Debug, Clone)]
pub struct Machine {
    paths: Result<(), String>,
    network: Result<(), String>,
    disk: Result<(), String>,
    pub(super) cgroups: Cgroups,
}

/// One thing that a machine can enforce, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforces {
    /// What: `paths`, `memory`.
    pub what: &'static str,
    /// By which means, or why not.
    pub how: Result<&'static str, Refusal>,
}

const NAMESPACES: &str = "let users make namespaces: `sysctl user.max_user_namespaces=10000` and, \
                          where it exists, `kernel.apparmor_restrict_unprivileged_userns=0`";
const DELEGATE: &str = "start the host with `systemd-run --user -p Delegate=yes -p \
                        DelegateSubgroup=host`, or in a service with these keys";

impl Machine {
    /// Tries everything once.
    pub(super) fn probe(helper: &Helper, cgroups: Cgroups) -> Self {
        let (network, disk) = match helper.probe() {
            Ok(confine::Probed { network, disk }) => (said(network), said(disk)),
            Err(reason) => (Err(reason.clone()), Err(reason)),
        };
        Self { paths: paths::supported(), network, disk, cgroups }
    }

    /// A machine that enforces nothing.
    #[cfg(test)]
    pub(super) fn nothing(why: &str) -> Self {
        let no = || Err(why.to_owned());
        Self { paths: no(), network: no(), disk: no(), cgroups: Cgroups::none(why) }
    }

    /// A machine that enforces everything.
    #[cfg(test)]
    pub(super) fn everything() -> Self {
        Self { paths: Ok(()), network: Ok(()), disk: Ok(()), cgroups: Cgroups::every() }
    }

    pub(super) fn paths(&self) -> Result<(), Refusal> {
        let helps = "use Linux 5.13 or newer with `landlock` among its security modules (lsm=)";
        self.paths.clone().map_err(|why| Refusal::new("isolation", why, helps))
    }

    pub(super) fn closed_network(&self) -> Result<(), Refusal> {
        self.network.clone().map_err(|why| Refusal::new("network", why, NAMESPACES))
    }

    pub(super) fn disk(&self) -> Result<(), Refusal> {
        self.disk.clone().map_err(|why| Refusal::new("resources.disk", why, NAMESPACES))
    }

    pub(super) fn memory(&self) -> Result<(), Refusal> {
        group("resources.memory", self.cgroups.memory())
    }

    pub(super) fn cpu(&self) -> Result<(), Refusal> {
        group("resources.cpu", self.cgroups.cpu())
    }

    pub(super) fn pids(&self) -> Result<(), Refusal> {
        group("resources.pids", self.cgroups.pids())
    }

    /// Everything that an environment may ask for, for a person.
    pub fn enforces(&self) -> Vec<Enforces> {
        let cgroup = |given: Result<(), Refusal>, version: &'static str| given.map(|()| version);
        let version = self.cgroups.version();
        let all = [
            ("paths", self.paths().map(|()| "Landlock")),
            ("network", self.closed_network().map(|()| "a network namespace")),
            ("memory", cgroup(self.memory(), version)),
            ("cpu", cgroup(self.cpu(), version)),
            ("pids", cgroup(self.pids(), version)),
            ("disk", self.disk().map(|()| "a file system in memory, in a mount namespace")),
            ("wall", Ok("the host's clock")),
        ];
        all.into_iter().map(|(what, how)| Enforces { what, how }).collect()
    }
}

fn said(tried: Option<String>) -> Result<(), String> {
    tried.map_or(Ok(()), Err)
}

fn group(what: &str, given: Result<(), String>) -> Result<(), Refusal> {
    given.map_err(|why| Refusal::new(what, why, DELEGATE))
}
