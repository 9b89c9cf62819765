//! The environments of a host: validated with the blueprint, provisioned for each attempt.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde_json::Value;

use super::{
    AttemptSecrets, Config, Declaration, Helper, Launch, Machine, Provisioned, Refusal, Scrubber,
    Secret, bubblewrap,
    cgroup::{Cage, Cgroups},
    children_lock::ChildrenLock,
    death_watch::DeathWatch,
    launch::Program,
    launcher::Launcher,
    needs::Needs,
    place::{self, ATTEMPTS, AttemptDir},
    plan::Plan,
    sessions, source,
    veil::Cover,
};
use crate::{
    clock::Clock,
    protocol::{
        CredentialInjection, EnvError, Environment, EnvironmentSpec, SecretAccessEvent,
        SecretSource, Ticket,
    },
};

/// The maximum wait for the processes that end the children of a killed host.
const DYING: Duration = Duration::from_secs(10);

/// The environments of one data directory.
pub struct Environments {
    config: Config,
    data: PathBuf,
    root: PathBuf,
    id: String,
    helper: Helper,
    lock: Arc<ChildrenLock>,
    launcher: Arc<Launcher>,
    watch: Arc<DeathWatch>,
    machine: OnceLock<Machine>,
    veil: OnceLock<Result<PathBuf, String>>,
    held: Arc<AttemptSecrets>,
    code: BTreeMap<String, Arc<dyn Environment>>,
    clock: Clock,
}

/// The parameters of an environment.
pub struct Asked<'a> {
    /// A name that is unique among the current attempts of this host. Becomes part of a path.
    pub name: &'a str,
    /// The base of relative paths.
    pub workdir: &'a Path,
    /// Paths that the child must be able to read, regardless of its environment.
    pub read: &'a [&'a Path],
    /// Secrets that it receives in addition to its credentials. They are also scrubbed from its
    /// output.
    pub known: &'a [(String, Secret)],
    /// The attempt, if it may report over the worker API.
    pub ticket: Option<Ticket>,
    /// The run, for events.
    pub workflow: Option<String>,
    /// The agent, for events.
    pub operator: Option<String>,
    /// Receives an event for each requested secret.
    pub tell: &'a (dyn Fn(SecretAccessEvent) + Send + Sync),
}

impl Environments {
    /// Creates the environments of a data directory. Has no side effects yet.
    pub fn new(config: Config, data: &Path, clock: Clock) -> Self {
        let hash = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex();
        let lock = Arc::<ChildrenLock>::default();
        Self {
            config,
            data: data.to_owned(),
            root: data.join("work").join(ATTEMPTS),
            id: hash[..16].to_owned(),
            helper: Helper::own(),
            launcher: Arc::new(Launcher::new(Helper::own(), Arc::clone(&lock))),
            watch: Arc::new(DeathWatch::new(Arc::clone(&lock))),
            lock,
            machine: OnceLock::new(),
            veil: OnceLock::new(),
            held: Arc::default(),
            code: BTreeMap::new(),
            clock,
        }
    }

    /// Sets the environments that are implemented in code, by name.
    #[must_use]
    pub fn with_code(self, code: BTreeMap<String, Arc<dyn Environment>>) -> Self {
        Self { code, ..self }
    }

    /// Returns the environment in code that an agent's declaration names, if it does. What it is to
    /// give is in [`Environments::spec`], and it alone says whether it can.
    pub fn coded(&self, declared: &Value) -> Option<&Arc<dyn Environment>> {
        self.code.get(declared.as_str()?)
    }

    /// Replaces the helper program.
    #[must_use]
    pub fn with_helper(self, helper: Helper) -> Self {
        let launcher = Arc::new(Launcher::new(helper.clone(), Arc::clone(&self.lock)));
        Self { helper, launcher, machine: OnceLock::new(), veil: OnceLock::new(), ..self }
    }

    /// Returns whether the data directory is hidden from children. Probed at the first call.
    ///
    /// # Errors
    /// Returns the reason why it is not hidden. Children of the same user can then read its keys
    /// and tokens.
    pub fn hides(&self) -> Result<(), &str> {
        self.veil().map(drop)
    }

    /// Returns the directory to hide, with symbolic links resolved.
    fn veil(&self) -> Result<&Path, &str> {
        let tried = self.veil.get_or_init(|| {
            if self.config.show_data {
                return Err("the configuration says `hide_data = false`".to_owned());
            }
            let data = self.data.canonicalize();
            let data = data.map_err(|error| format!("{}: {error}", self.data.display()))?;
            self.helper.probe_veil(&data).map(|()| data)
        });
        tried.as_deref().map_err(String::as_str)
    }

    /// Returns a child without a boundary. The data directory is hidden from it, except for some of
    /// its directories.
    ///
    /// # Errors
    /// Fails when the program is not found.
    pub fn launch(
        &self,
        program: &str,
        arguments: &[String],
        variables: Vec<(String, OsString)>,
        cwd: &Path,
        keep: &[&Path],
    ) -> io::Result<Launch> {
        let program =
            Program { name: program.to_owned(), arguments: arguments.to_owned(), variables };
        if !self.helper.usable() {
            return Ok(Launch::direct(program, cwd, &self.watch));
        }
        let cover = self.cover(keep.iter().map(|path| (*path).to_owned()));
        let plan = Plan { cover, cwd: cwd.to_owned(), ..Plan::default() };
        Launch::by(&self.launcher, &self.helper, plan, program, &self.watch)
    }

    fn cover(&self, keep: impl IntoIterator<Item = PathBuf>) -> Option<Cover> {
        self.veil().ok().map(|data| Cover::new(data.to_owned(), keep))
    }

    /// Returns the abilities of this machine. Probed at the first call.
    pub fn machine(&self) -> &Machine {
        self.machine.get_or_init(|| Machine::probe(&self.helper, Cgroups::find(&self.id)))
    }

    /// Returns the parent of the directories of attempts.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the secrets that attempts received.
    pub fn held(&self) -> &Arc<AttemptSecrets> {
        &self.held
    }

    /// Returns the spec for an agent's declaration: the name of an environment, or an inline one.
    ///
    /// # Errors
    /// Returns everything that is invalid.
    pub fn spec(&self, declared: &Value) -> Result<EnvironmentSpec, Vec<Refusal>> {
        let Value::String(name) = declared else {
            return Declaration::read(declared)
                .map_err(|refusal| vec![refusal])?
                .spec(&self.config.secrets);
        };
        let Some(declaration) = self.config.environments.get(name) else {
            if self.code.contains_key(name) {
                return Ok(EnvironmentSpec::new());
            }
            let known: Vec<&str> = self
                .config
                .environments
                .keys()
                .chain(self.code.keys())
                .map(String::as_str)
                .collect();
            let reason = match known.is_empty() {
                true => format!("there is no environment {name:?}; the host has none by name"),
                false => format!("there is no environment {name:?}, but {}", known.join(", ")),
            };
            let shown: String = name.chars().take(64).collect();
            let helps = format!("add [environments.{shown}] to the host's moonswarm.toml");
            return Err(vec![Refusal::new("environment", reason, helps)]);
        };
        declaration.spec(&self.config.secrets)
    }

    /// Returns the parts of an agent's declaration that this host cannot provide; empty if it can
    /// provide all.
    pub fn judge(&self, declared: &Value) -> Vec<Refusal> {
        let spec = self.spec(declared);
        if self.coded(declared).is_some() {
            return spec.err().unwrap_or_default();
        }
        spec.and_then(|spec| self.needs(&spec)).err().unwrap_or_default()
    }

    fn needs(&self, spec: &EnvironmentSpec) -> Result<Needs, Vec<Refusal>> {
        Needs::of(spec, self.machine(), self.config.vault.is_some())
    }

    /// Removes what the attempts of an earlier host process left: directories, processes, groups.
    /// Blocks until the processes that end its children have ended. The owner of the data directory must
    /// call this before it starts any attempt.
    pub fn sweep(&self) {
        if let Err(error) = self.lock.take_over(&self.data.join("work"), DYING) {
            tracing::warn!(
                %error,
                "the processes that end the children of the host before did not end: an attempt that is \
                 repeated may run beside what is left of it"
            );
        }
        // Those of a launcher that was killed together with its host.
        sessions::sweep(&self.data.join("work"));
        if !self.root.is_dir() {
            return;
        }
        // Processes first: a dying process may still write files.
        Cgroups::find(&self.id).sweep();
        let swept = place::sweep(&self.root);
        if swept > 0 {
            tracing::info!(swept, "removed the directories of attempts that were cut off");
        }
    }

    /// Kills the children that are left, and lets the next host of the data directory begin. Blocks until
    /// they are gone.
    pub fn end(&self) {
        self.lock.give_up();
        self.launcher.end();
        self.watch.end();
    }

    /// Provisions everything that a spec asks for. Dropping or tearing it down removes everything
    /// again.
    ///
    /// # Errors
    /// Fails when this machine cannot provide a part of it, or a secret cannot be resolved.
    ///
    /// # Cancel safety
    /// Cancel safe: dropping the future removes what was created.
    pub async fn provision(
        &self,
        spec: &EnvironmentSpec,
        asked: Asked<'_>,
    ) -> Result<Provisioned, EnvError> {
        let needs = self.needs(spec).map_err(|refused| refusal(&refused))?;
        let failed = |what: &str, error: &dyn fmt::Display| {
            EnvError::ProvisionFailed(format!("{what}: {error}"))
        };
        let place = AttemptDir::make(&self.root, asked.name)
            .map_err(|error| failed("make the attempt's directory", &error))?;
        let (variables, scrubber) = self.inject(&needs, &place, &asked).await?;
        let scrubber = Arc::new(scrubber);
        let holds = (!scrubber.is_empty())
            .then_some(asked.ticket)
            .flatten()
            .map(|ticket| self.held.hold(ticket, Arc::clone(&scrubber)));
        let mut cage = Cage::default();
        let (mut plan, mut around) = (None, None);
        if needs.confined || self.helper.usable() {
            let mut drawn = self.plan(&needs, &place, &asked);
            if needs.confined {
                cage = self
                    .machine()
                    .cgroups
                    .cage(asked.name, &needs)
                    .map_err(|error| failed("make the control groups", &error))?;
            }
            drawn.groups = cage.doors();
            if drawn.closed || drawn.disk.is_some() {
                around.clone_from(&self.machine().bubblewrap);
            }
            if around.is_some() {
                let outside = bubblewrap::network();
                drawn.parted =
                    Some(outside.map_err(|error| failed("look at the network", &error))?);
            }
            plan = Some(drawn);
        }
        let limits = spec.resources.clone().unwrap_or_default();
        let helper = self.helper.clone();
        Ok(Provisioned::new(
            place,
            cage,
            plan,
            (helper, around, Arc::clone(&self.watch)),
            variables,
            (scrubber, holds),
            limits,
            needs.wall,
        ))
    }

    fn plan(&self, needs: &Needs, place: &AttemptDir, asked: &Asked<'_>) -> Plan {
        let absolute = |path: &String| asked.workdir.join(path);
        let mut read: Vec<PathBuf> = needs.paths.read.iter().map(absolute).collect();
        read.extend(asked.read.iter().map(|path| (*path).to_owned()));
        read.push(place.secrets());
        let mut write: Vec<PathBuf> = needs.paths.write.iter().map(absolute).collect();
        write.extend([place.work(), place.tmp()]);
        let seen = read.iter().chain(&write).cloned();
        let seen = seen.chain([asked.workdir.to_owned(), place.room()]);
        Plan {
            confined: needs.confined,
            cover: self.cover(seen),
            groups: Vec::new(),
            closed: needs.closed,
            room: place.room(),
            disk: needs.disk,
            parted: None,
            make: vec![place.work(), place.tmp()],
            cwd: place.work(),
            read,
            write,
        }
    }

    /// Resolves all credentials and injects them.
    async fn inject(
        &self,
        needs: &Needs,
        place: &AttemptDir,
        asked: &Asked<'_>,
    ) -> Result<(Vec<(String, Secret)>, Scrubber), EnvError> {
        let mut variables = Vec::new();
        let mut scrubber = Scrubber::default();
        for (name, secret) in asked.known {
            scrubber.add(name, secret);
        }
        for credential in &needs.credentials {
            let name = &credential.name;
            let got = source::resolve(&credential.source, self.config.vault.as_ref()).await;
            let mut event = source::event(name, &credential.source, &got, self.clock.now_ms());
            event.workflow_id.clone_from(&asked.workflow);
            event.operator_id.clone_from(&asked.operator);
            (asked.tell)(event);
            let found = got.map_err(|missing| {
                EnvError::CredentialFailed(format!("{name}: {}", missing.reason))
            })?;
            scrubber.add(name, &found.secret);
            match &credential.injection {
                CredentialInjection::EnvVar { var_name } => {
                    variables.push((var_name.clone(), found.secret));
                }
                CredentialInjection::File { path } => {
                    place.put_secret(path, &found.secret).map_err(|error| {
                        EnvError::CredentialFailed(format!("{name}: write its file: {error}"))
                    })?;
                }
                CredentialInjection::Sidecar => {
                    return Err(EnvError::CredentialFailed(format!("{name}: there is no sidecar")));
                }
            }
        }
        Ok((variables, scrubber))
    }

    /// Checks that a configured secret can be resolved, and returns its source.
    ///
    /// # Errors
    /// Returns the reason why not, without any part of the secret.
    pub async fn look_for(&self, name: &str) -> Result<String, String> {
        let source = self.config.secrets.get(name).ok_or("there is no such secret")?;
        let got = source::resolve(source, self.config.vault.as_ref()).await;
        let kind = match source {
            SecretSource::Custom { provider, .. } => provider.clone(),
            other => other.kind().to_owned(),
        };
        got.map(|_| kind).map_err(|missing| missing.reason)
    }

    /// Returns the current time, for access events.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }
}

/// Returns the error for a spec that cannot be provided.
fn refusal(refused: &[Refusal]) -> EnvError {
    let text: Vec<String> = refused.iter().map(ToString::to_string).collect();
    let text = text.join("; ");
    match refused.first().map(|refusal| refusal.what.as_str()) {
        Some(what) if what.starts_with("credentials") => EnvError::CredentialFailed(text),
        Some(what) if what.starts_with("resources") => EnvError::ProvisionFailed(text),
        _ => EnvError::IsolationViolation(text),
    }
}

impl fmt::Debug for Environments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environments").field("root", &self.root).finish_non_exhaustive()
    }
}
