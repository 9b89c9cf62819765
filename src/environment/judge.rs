//! Converts a spec to needs, or to the list of parts that this machine cannot provide.

use std::time::Duration;

use serde::Deserialize as _;

use super::{
    Machine, Refusal,
    declaration::{PATHS, Paths},
    needs::Needs,
    provider,
};
use crate::protocol::{
    CredentialInjection, CredentialRef, EnvironmentSpec, IsolationBoundary, NetworkAction,
    SecretSource,
};

/// The maximum number of credentials of an environment.
const MOST_CREDENTIALS: usize = 32;
/// The maximum number of paths of an environment.
const MOST_PATHS: usize = 256;
/// The maximum number of cores; the kernel's counters hold more.
const MOST_CORES: u64 = 1_000_000;
/// The maximum number of processes that the kernel takes.
const MOST_PIDS: u32 = 4_194_304;
/// The minimum memory in bytes with which a program can start.
const LEAST_MEMORY: u64 = 1 << 20;

impl Needs {
    /// Returns the needs of a spec.
    ///
    /// # Errors
    /// Returns everything that the machine cannot provide.
    pub(super) fn of(
        spec: &EnvironmentSpec,
        machine: &Machine,
        has_vault: bool,
    ) -> Result<Self, Vec<Refusal>> {
        let mut refused = Vec::new();
        let mut needs = Self::default();
        for boundary in &spec.isolation {
            if let Err(refusal) = needs.draw(boundary) {
                refused.push(refusal);
            }
        }
        if needs.confined {
            refused.extend(machine.paths().err());
        }
        if !needs.confined && needs.paths != Paths::default() {
            refused.push(Refusal::new(
                "paths",
                "without a boundary a child may what the host may",
                "say `isolation = \"process\"`",
            ));
        }
        refused.extend(needs.reach(spec, machine).err());
        needs.limit(spec, machine, &mut refused);
        if spec.credentials.len() > MOST_CREDENTIALS {
            let reason = format!("there are more than {MOST_CREDENTIALS}");
            refused.push(Refusal::new("credentials", reason, "name fewer"));
        }
        for credential in &spec.credentials {
            refused.extend(refuse_credential(credential, has_vault));
        }
        needs.credentials.clone_from(&spec.credentials);
        if refused.is_empty() { Ok(needs) } else { Err(refused) }
    }

    fn draw(&mut self, boundary: &IsolationBoundary) -> Result<(), Refusal> {
        let refuse = |reason: &str, helps: &str| Err(Refusal::new("isolation", reason, helps));
        let process = "`process` is the boundary that this host draws";
        match boundary {
            IsolationBoundary::Process => self.confined = true,
            IsolationBoundary::Custom { boundary_type, config } if boundary_type == PATHS => {
                self.paths = Paths::deserialize(config).map_err(|error| {
                    Refusal::new(PATHS, error.to_string(), "give lists `read` and `write`")
                })?;
                let all = self.paths.read.iter().chain(&self.paths.write);
                if all.clone().count() > MOST_PATHS {
                    let reason = format!("there are more than {MOST_PATHS}");
                    return Err(Refusal::new(PATHS, reason, "name directories above them"));
                }
                for path in all {
                    if path.is_empty() || path.contains('\0') {
                        return Err(Refusal::new(
                            PATHS,
                            "one is empty",
                            "name a file or directory",
                        ));
                    }
                }
            }
            IsolationBoundary::Container { .. } => {
                return refuse("this host starts no containers", process);
            }
            IsolationBoundary::Gvisor => return refuse("this host has no gVisor", process),
            IsolationBoundary::MicroVm => {
                return refuse("this host starts no virtual machines", process);
            }
            IsolationBoundary::Wasm { .. } => {
                return refuse("a child process is no WebAssembly", process);
            }
            IsolationBoundary::NetworkPolicy { .. } => {
                return refuse(
                    "the network is closed or open as a whole",
                    "say `network = \"deny\"`",
                );
            }
            IsolationBoundary::Custom { boundary_type, .. } => {
                return refuse(&format!("there is no boundary {boundary_type:?}"), process);
            }
        }
        Ok(())
    }

    fn reach(&mut self, spec: &EnvironmentSpec, machine: &Machine) -> Result<(), Refusal> {
        let Some(policy) = &spec.network else { return Ok(()) };
        if !policy.rules.is_empty() {
            return Err(Refusal::new(
                "network.rules",
                "the network is closed or open as a whole, a destination is not filtered",
                "close it, and let another agent, outside, do what needs the network",
            ));
        }
        if policy.default == NetworkAction::Allow {
            return Ok(());
        }
        if !self.confined {
            return Err(Refusal::new(
                "network",
                "without a boundary a child reaches what the host reaches",
                "say `isolation = \"process\"`",
            ));
        }
        machine.closed_network()?;
        self.closed = true;
        Ok(())
    }

    fn limit(&mut self, spec: &EnvironmentSpec, machine: &Machine, refused: &mut Vec<Refusal>) {
        let Some(limits) = &spec.resources else { return };
        self.wall = limits.wall.map(Duration::from);
        if self.wall == Some(Duration::ZERO) {
            let helps = "leave it out for no limit";
            refused.push(Refusal::new("resources.wall", "it leaves no time at all", helps));
        }
        let bytes = |key: &str, text: &Option<String>, least: u64, refused: &mut Vec<Refusal>| {
            let text = text.as_ref()?;
            let bytes = bytes(text).filter(|bytes| *bytes >= least);
            if bytes.is_none() {
                let reason = format!("{text:?} is no size of at least {least} bytes");
                refused.push(Refusal::new(format!("resources.{key}"), reason, "say \"512Mi\""));
            }
            bytes
        };
        self.memory = bytes("memory", &limits.memory, LEAST_MEMORY, refused);
        self.disk = bytes("disk", &limits.disk, 4096, refused);
        self.pids = limits.pids;
        if let Some(text) = &limits.cpu {
            self.cpu = cores(text).filter(|cpu| (10..=MOST_CORES * 1_000).contains(cpu));
            if self.cpu.is_none() {
                let reason = format!("{text:?} is no number of cores, from 0.01 to {MOST_CORES}");
                let helps = "say \"0.5\" or \"500m\"";
                refused.push(Refusal::new("resources.cpu", reason, helps));
            }
        }
        let unusable = match limits.pids {
            Some(0) => Some("nothing could run".to_owned()),
            Some(pids) if pids > MOST_PIDS => {
                Some(format!("no system has more than {MOST_PIDS} processes"))
            }
            _ => None,
        };
        if let Some(reason) = unusable {
            refused.push(Refusal::new("resources.pids", reason, "leave it out for no limit"));
        }
        if limits.gpu.is_some() {
            refused.push(Refusal::new(
                "resources.gpu",
                "this host does not hand out graphics processors",
                "let a pull worker with the label do it (operator `queue`)",
            ));
        }
        let set = [
            ("resources.cpu", self.cpu.is_some(), machine.cpu()),
            ("resources.memory", self.memory.is_some(), machine.memory()),
            ("resources.pids", self.pids.is_some(), machine.pids()),
            ("resources.disk", self.disk.is_some(), machine.disk()),
        ];
        for (key, _, given) in set.into_iter().filter(|(_, asked, _)| *asked) {
            if self.confined {
                refused.extend(given.err());
            } else {
                let reason = "without a boundary a child may what the host may";
                refused.push(Refusal::new(key, reason, "say `isolation = \"process\"`"));
            }
        }
        if self.disk.is_some() && !self.paths.write.is_empty() {
            refused.push(Refusal::new(
                "resources.disk",
                "it bounds the attempt's own directory, and `paths.write` lies outside of it",
                "give only one of both",
            ));
        }
    }
}

/// Returns the reason why a credential cannot be provided, if there is one.
fn refuse_credential(credential: &CredentialRef, has_vault: bool) -> Option<Refusal> {
    let refuse = |reason: &str, helps: &str| {
        Some(Refusal::new(format!("credentials.{}", credential.name), reason, helps))
    };
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = &credential.name;
    if name.is_empty() || name.len() > 64 || !name.chars().all(word) {
        return refuse("it has no proper name", "a name has at most 64 letters, digits, - _ .");
    }
    match &credential.injection {
        CredentialInjection::EnvVar { var_name } => {
            if var_name.is_empty() || var_name.contains(['=', '\0']) {
                return refuse("it goes into no proper variable", "name a variable");
            }
            if var_name.starts_with("MOONSWARM_") {
                return refuse("the host sets that variable itself", "name another variable");
            }
        }
        CredentialInjection::File { path } => {
            if path.is_empty() || path.contains(['/', '\0']) || path.starts_with('.') {
                return refuse(
                    "a file of a secret has a plain name",
                    "the child finds it in the directory $MOONSWARM_SECRETS",
                );
            }
        }
        CredentialInjection::Sidecar => {
            return refuse("this host has no sidecar", "say `env` or `file`");
        }
    }
    match &credential.source {
        SecretSource::Vault { .. } if has_vault => None,
        SecretSource::Vault { .. } => {
            refuse("the host knows no vault", "add [vault] to the host's moonswarm.toml")
        }
        SecretSource::Custom { provider, .. }
            if matches!(provider.as_str(), provider::ENV | provider::FILE | provider::COMMAND) =>
        {
            None
        }
        SecretSource::Custom { provider, .. } => refuse(
            &format!("there is no provider {provider:?}"),
            "the providers are env, file and command",
        ),
        other => refuse(
            &format!("this host does not speak with the source {}", other.kind()),
            "let a `command` of [secrets] fetch it",
        ),
    }
}

/// Parses `512Mi`, `2G`, `1000`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "k" | "K" | "kB" => 1_000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "T" | "TB" => 1_000_000_000_000,
        "Ki" | "KiB" => 1 << 10,
        "Mi" | "MiB" => 1 << 20,
        "Gi" | "GiB" => 1 << 30,
        "Ti" | "TiB" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// Parses `0.5` or `500m` to thousandths of a core.
fn cores(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Some(milli) = text.strip_suffix('m') {
        return milli.parse().ok();
    }
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |it: &str| !it.is_empty() && it.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(rest) || rest.len() > 9 {
        return None;
    }
    let rest: String = format!("{rest}000").chars().take(3).collect();
    whole.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(rest.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::{DurationMs, NetworkPolicy, NetworkRule, ResourceLimits};

    fn refused(spec: &EnvironmentSpec, machine: &Machine) -> Vec<String> {
        let refused = Needs::of(spec, machine, false).unwrap_err();
        refused.into_iter().map(|refusal| refusal.what).collect()
    }

    fn process() -> EnvironmentSpec {
        EnvironmentSpec::new().with_isolation(vec![IsolationBoundary::Process])
    }

    #[test]
    fn sizes_and_cores_are_read() {
        let sizes = ["512", "1Ki", "64Mi", "2G", "3 GiB"];
        let read: Vec<_> = sizes.into_iter().filter_map(bytes).collect();
        assert_eq!(read, [512, 1024, 64 << 20, 2_000_000_000, 3 << 30]);
        assert!(["", "Mi", "1Q", "-1", "99999999999999Ti"].into_iter().all(|t| bytes(t).is_none()));
        let read: Vec<_> = ["2", "0.5", "500m", "1.25"].into_iter().filter_map(cores).collect();
        assert_eq!(read, [2_000, 500, 500, 1_250]);
        assert!(["", ".", "x", "1e3", "-1"].into_iter().all(|text| cores(text).is_none()));
    }

    #[test]
    fn what_a_machine_cannot_give_is_refused_part_by_part() {
        let limits = ResourceLimits {
            cpu: Some("1".into()),
            memory: Some("64Mi".into()),
            pids: Some(4),
            disk: Some("1Mi".into()),
            gpu: Some("1".into()),
            ..ResourceLimits::default()
        };
        let spec = process()
            .with_resources(limits)
            .with_network(NetworkPolicy::new(NetworkAction::Deny, Vec::new()));
        let nothing = Machine::nothing("of stone");
        let expected = [
            "isolation",
            "network",
            "resources.gpu",
            "resources.cpu",
            "resources.memory",
            "resources.pids",
            "resources.disk",
        ];
        assert_eq!(refused(&spec, &nothing), expected);
        assert_eq!(refused(&spec, &Machine::everything()), ["resources.gpu"]);
    }

    #[test]
    fn a_limit_that_no_kernel_takes_is_refused() {
        let of = |cpu: &str, pids| {
            let limits =
                ResourceLimits { cpu: Some(cpu.into()), pids: Some(pids), ..Default::default() };
            Needs::of(&process().with_resources(limits), &Machine::everything(), false)
        };
        assert!(of("1000000", 4_194_304).is_ok());
        for (cpu, pids, what) in [
            ("1000001", 1, "resources.cpu"),
            ("999999999999999999m", 1, "resources.cpu"),
            ("1", 4_194_305, "resources.pids"),
            ("1", 0, "resources.pids"),
        ] {
            let refused = of(cpu, pids).unwrap_err();
            assert_eq!(refused.len(), 1, "{cpu} {pids}");
            assert_eq!(refused[0].what, what);
        }
    }

    #[test]
    fn without_a_boundary_nothing_is_enforced_but_time() {
        let limits = ResourceLimits { memory: Some("64Mi".into()), ..ResourceLimits::default() };
        let local = EnvironmentSpec::new()
            .with_resources(limits)
            .with_network(NetworkPolicy::new(NetworkAction::Deny, Vec::new()));
        assert_eq!(refused(&local, &Machine::everything()), ["network", "resources.memory"]);
        let wall = ResourceLimits { wall: Some(DurationMs::from_secs(1)), ..Default::default() };
        let timed = EnvironmentSpec::new().with_resources(wall);
        let needs = Needs::of(&timed, &Machine::nothing("of stone"), false).unwrap();
        assert_eq!(needs.wall, Some(Duration::from_secs(1)));
    }

    #[test]
    fn every_other_boundary_is_refused() {
        let others = [
            IsolationBoundary::Container { image: None },
            IsolationBoundary::Gvisor,
            IsolationBoundary::MicroVm,
            IsolationBoundary::Wasm { runtime: None },
            IsolationBoundary::NetworkPolicy { rules: Vec::new() },
            IsolationBoundary::Custom { boundary_type: "moat".into(), config: json!({}) },
        ];
        for boundary in others {
            let spec = EnvironmentSpec::new().with_isolation(vec![boundary]);
            assert_eq!(refused(&spec, &Machine::everything()), ["isolation"]);
        }
        let rule = NetworkRule::new("example.com", NetworkAction::Allow);
        let spec = process().with_network(NetworkPolicy::new(NetworkAction::Deny, vec![rule]));
        assert_eq!(refused(&spec, &Machine::everything()), ["network.rules"]);
    }

    #[test]
    fn a_source_or_a_place_that_this_host_does_not_have_is_refused() {
        let env =
            || SecretSource::Custom { provider: "env".into(), config: json!({ "variable": "A" }) };
        let var = |name: &str| CredentialInjection::EnvVar { var_name: name.into() };
        let file = |path: &str| CredentialInjection::File { path: path.into() };
        let vault = SecretSource::Vault { mount: "kv".into(), path: "ci".into() };
        let one = |source, injection| {
            EnvironmentSpec::new()
                .with_credentials(vec![CredentialRef::new("it", source, injection)])
        };
        let machine = Machine::nothing("of stone");
        for spec in [
            one(env(), CredentialInjection::Sidecar),
            one(env(), var("MOONSWARM_HANDLE")),
            one(env(), var("A=B")),
            one(env(), file("../x")),
            one(env(), file("/etc/x")),
            one(vault.clone(), var("A")),
            one(SecretSource::Hardware { slot: "9a".into() }, var("A")),
            one(SecretSource::Custom { provider: "x".into(), config: json!({}) }, var("A")),
        ] {
            assert_eq!(refused(&spec, &machine), ["credentials.it"], "{spec:?}");
        }
        assert!(Needs::of(&one(vault, var("A")), &machine, true).is_ok());
        assert!(Needs::of(&one(env(), file("token")), &machine, false).is_ok());
    }
}
