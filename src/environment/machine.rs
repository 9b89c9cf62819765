//! The isolation that this machine can enforce, determined by probes.

use super::{
    Refusal,
    bubblewrap::Bubblewrap,
    cgroup::Cgroups,
    helper::Helper,
    paths,
    plan::{Probed, said},
};

/// The abilities of a machine, with reasons for those that are missing.
#[derive(Debug, Clone)]
pub struct Machine {
    paths: Result<(), String>,
    network: Result<(), String>,
    disk: Result<(), String>,
    /// The program that creates the namespaces, if not this program itself.
    pub(super) bubblewrap: Option<Bubblewrap>,
    pub(super) cgroups: Cgroups,
}

/// One ability of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enforces {
    /// The ability: `paths`, `memory`.
    pub what: &'static str,
    /// The mechanism, or the reason why it is missing.
    pub how: Result<&'static str, Refusal>,
}

const NAMESPACES: &str = "let users make namespaces: `sysctl user.max_user_namespaces=10000` and, \
                          where it exists, `kernel.apparmor_restrict_unprivileged_userns=0`; or \
                          install bubblewrap, and have `bwrap` on the host's PATH";
const DELEGATE: &str = "start the host with `systemd-run --user -p Delegate=yes -p \
                        DelegateSubgroup=host`, or in a service with these keys";

impl Machine {
    /// Probes all abilities once.
    pub(super) fn probe(helper: &Helper, cgroups: Cgroups) -> Self {
        let probed = helper
            .probe()
            .unwrap_or_else(|reason| Probed { network: Some(reason.clone()), disk: Some(reason) });
        let (probed, bubblewrap) = match helper.bubblewrap() {
            Some(it) if probed.network.is_some() || probed.disk.is_some() => {
                around(probed, it, &it.probe(&helper.path()))
            }
            _ => (probed, None),
        };
        let Probed { network, disk } = probed;
        let (network, disk) = (said(network), said(disk));
        Self { paths: paths::supported(), network, disk, bubblewrap, cgroups }
    }

    /// Returns a machine that enforces nothing.
    #[cfg(test)]
    pub(super) fn nothing(why: &str) -> Self {
        let no = || Err(why.to_owned());
        let cgroups = Cgroups::none(why);
        Self { paths: no(), network: no(), disk: no(), bubblewrap: None, cgroups }
    }

    /// Returns a machine that enforces everything.
    #[cfg(test)]
    pub(super) fn everything() -> Self {
        let cgroups = Cgroups::every();
        Self { paths: Ok(()), network: Ok(()), disk: Ok(()), bubblewrap: None, cgroups }
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

    /// Returns all abilities that an environment may need, for people.
    pub fn enforces(&self) -> Vec<Enforces> {
        let cgroup = |given: Result<(), Refusal>, version: &'static str| given.map(|()| version);
        let version = self.cgroups.version();
        let by = |own, bubblewrap| if self.bubblewrap.is_some() { bubblewrap } else { own };
        let network = by("a network namespace", "a network namespace that bubblewrap makes");
        let disk = by(
            "a file system in memory, in a mount namespace",
            "a file system in memory, in a mount namespace that bubblewrap makes",
        );
        let all = [
            ("paths", self.paths().map(|()| "Landlock")),
            ("network", self.closed_network().map(|()| network)),
            ("memory", cgroup(self.memory(), version)),
            ("cpu", cgroup(self.cpu(), version)),
            ("pids", cgroup(self.pids(), version)),
            ("disk", self.disk().map(|()| disk)),
            ("wall", Ok("the host's clock")),
        ];
        all.into_iter().map(|(what, how)| Enforces { what, how }).collect()
    }
}

/// Chooses bubblewrap if it adds an ability and loses none. For an ability that is missing either
/// way, combines both reasons.
fn around(own: Probed, by: &Bubblewrap, its: &Probed) -> (Probed, Option<Bubblewrap>) {
    let loses = |own: &Option<String>, its: &Option<String>| own.is_none() && its.is_some();
    let gains = |own: &Option<String>, its: &Option<String>| own.is_some() && its.is_none();
    let better = gains(&own.network, &its.network) || gains(&own.disk, &its.disk);
    if better && !loses(&own.network, &its.network) && !loses(&own.disk, &its.disk) {
        let both = |own: &Option<String>, its: &Option<String>| {
            its.as_ref().map(|its| format!("{}; {its}", own.as_deref().unwrap_or_default()))
        };
        let network = both(&own.network, &its.network);
        return (Probed { network, disk: both(&own.disk, &its.disk) }, Some(by.clone()));
    }
    let why = |own: Option<String>, its: &Option<String>| {
        own.map(|own| its.as_ref().map_or(own.clone(), |its| format!("{own}; {its}")))
    };
    (Probed { network: why(own.network, &its.network), disk: why(own.disk, &its.disk) }, None)
}

fn group(what: &str, given: Result<(), String>) -> Result<(), Refusal> {
    given.map_err(|why| Refusal::new(what, why, DELEGATE))
}
