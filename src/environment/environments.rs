//! The environments of a host: judged when a blueprint is checked, provisioned for each attempt.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use serde_json::Value;

use super::{
    Config, Declaration, Held, Helper, Launch, Machine, Provisioned, Refusal, Scrubber, Secret,
    bubblewrap,
    cgroup::{Cage, Cgroups},
    launch::Program,
    needs::Needs,
    place::{self, Place},
    plan::Plan,
    source,
    veil::Cover,
};
use crate::{
    clock::Clock,
    protocol::{
        CredentialInjection, EnvError, EnvironmentSpec, SecretAccessEvent, SecretSource, Ticket,
    },
};

/// Provisions the environments of one data directory.
pub struct Environments {
    config: Config,
    data: PathBuf,
    root: PathBuf,
    id: String,
    helper: Helper,
    machine: OnceLock<Machine>,
    veil: OnceLock<Result<PathBuf, String>>,
    held: Arc<Held>,
    clock: Clock,
}

/// For whom an environment is provisioned.
pub struct Asked<'a> {
    /// A name that no other attempt of this host has at the same time; a part of a path.
    pub name: &'a str,
    /// What relative paths are relative to.
    pub workdir: &'a Path,
    /// What the child needs to read, whatever its environment says.
    pub read: &'a [&'a Path],
    /// Secrets that it is given beside its credentials, to be taken out of what it says.
    pub known: &'a [(String, Secret)],
    /// The attempt, if it may report through the worker API.
    pub ticket: Option<Ticket>,
    /// The run, for the events.
    pub workflow: Option<String>,
    /// The agent, for the events.
    pub operator: Option<String>,
    /// Hears of each secret that was asked for.
    pub tell: &'a (dyn Fn(SecretAccessEvent) + Send + Sync),
}

impl Environments {
    /// The environments of a data directory; nothing is made or tried yet.
    pub fn new(config: Config, data: &Path, clock: Clock) -> Self {
        let hash = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex();
        Self {
            config,
            data: data.to_owned(),
            root: data.join("work/.attempts"),
            id: hash[..16].to_owned(),
            helper: Helper::own(),
            machine: OnceLock::new(),
            veil: OnceLock::new(),
            held: Arc::default(),
            clock,
        }
    }

    /// The same with another program that confines.
    #[must_use]
    pub fn with_helper(self, helper: Helper) -> Self {
        Self { helper, machine: OnceLock::new(), veil: OnceLock::new(), ..self }
    }

    /// Whether the data directory is hidden from children; found out when it is first asked.
    ///
    /// # Errors
    /// Why it is not, and children of the same user can read its keys and tokens.
    pub fn hides(&self) -> Result<(), &str> {
        self.veil().map(drop)
    }

    /// The directory to hide, without links on the way to it.
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

    /// A child without a boundary, which is kept from the data directory but for some directories
    /// in it.
    ///
    /// # Errors
    /// When the program is not there.
    pub fn launch(
        &self,
        program: &str,
        arguments: &[String],
        variables: Vec<(String, OsString)>,
        cwd: &Path,
        keep: &[&Path],
    ) -> io::Result<Launch> {
        let program = Program { name: program, arguments, variables };
        if !self.helper.usable() {
            return Ok(Launch::direct(program, cwd));
        }
        let cover = self.cover(keep.iter().map(|path| (*path).to_owned()));
        let plan = Plan { cover, cwd: cwd.to_owned(), ..Plan::default() };
        Launch::through(&self.helper, None, plan, program)
    }

    fn cover(&self, keep: impl IntoIterator<Item = PathBuf>) -> Option<Cover> {
        self.veil().ok().map(|data| Cover::new(data.to_owned(), keep))
    }

    /// What this machine can enforce; found out when it is first asked.
    pub fn machine(&self) -> &Machine {
        self.machine.get_or_init(|| Machine::probe(&self.helper, Cgroups::find(&self.id)))
    }

    /// Where the directories of attempts are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What they go by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The secrets that attempts were given.
    pub fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// The spec of what an agent declares: an environment's name, or one written out.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn spec(&self, declared: &Value) -> Result<EnvironmentSpec, Vec<Refusal>> {
        let Value::String(name) = declared else {
            return Declaration::read(declared)
                .map_err(|refusal| vec![refusal])?
                .spec(&self.config.secrets);
        };
        let Some(declaration) = self.config.environments.get(name) else {
            let known: Vec<&str> = self.config.environments.keys().map(String::as_str).collect();
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

    /// What this host cannot give of what an agent declares; nothing if it can give all of it.
    pub fn judge(&self, declared: &Value) -> Vec<Refusal> {
        self.spec(declared).and_then(|spec| self.needs(&spec)).err().unwrap_or_default()
    }

    fn needs(&self, spec: &EnvironmentSpec) -> Result<Needs, Vec<Refusal>> {
        Needs::of(spec, self.machine(), self.config.vault.is_some())
    }

    /// Removes what the attempts of an earlier host left: directories, processes, groups. To be
    /// called by the owner of the data directory before it starts any attempt.
    pub fn sweep(&self) {
        if !self.root.is_dir() {
            return;
        }
        // Who still dies may still write.
        Cgroups::find(&self.id).sweep();
        let swept = place::sweep(&self.root);
        if swept > 0 {
            tracing::info!(swept, "removed the directories of attempts that were cut off");
        }
    }

    /// Makes everything that a spec asks for. Dropped or torn down, it is all gone again.
    ///
    /// # Errors
    /// When this machine cannot give a part of it, or a secret cannot be had.
    ///
    /// # Cancel safety
    /// What was made is removed when the future is dropped.
    pub async fn provision(
        &self,
        spec: &EnvironmentSpec,
        asked: Asked<'_>,
    ) -> Result<Provisioned, EnvError> {
        let needs = self.needs(spec).map_err(|refused| refusal(&refused))?;
        let failed = |what: &str, error: &dyn fmt::Display| {
            EnvError::ProvisionFailed(format!("{what}: {error}"))
        };
        let place = Place::make(&self.root, asked.name)
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
            (helper, around),
            variables,
            (scrubber, holds),
            limits,
            needs.wall,
        ))
    }

    fn plan(&self, needs: &Needs, place: &Place, asked: &Asked<'_>) -> Plan {
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

    /// Gets every credential and puts it where it goes.
    async fn inject(
        &self,
        needs: &Needs,
        place: &Place,
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

    /// Looks whether a secret of the configuration is there, and says where.
    ///
    /// # Errors
    /// Why it is not, in words without any part of it.
    pub async fn look_for(&self, name: &str) -> Result<String, String> {
        let source = self.config.secrets.get(name).ok_or("there is no such secret")?;
        let got = source::resolve(source, self.config.vault.as_ref()).await;
        let kind = match source {
            SecretSource::Custom { provider, .. } => provider.clone(),
            other => other.kind().to_owned(),
        };
        got.map(|_| kind).map_err(|missing| missing.reason)
    }

    /// What the time is, for whoever says that a secret was asked for.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }
}

/// The error of a spec that cannot be given.
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
