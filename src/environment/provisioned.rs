//! The environment of one attempt: its directory, its boundary, its credentials.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    Helper, Holds, Launch, Scrubber, Secret,
    bubblewrap::Bubblewrap,
    cgroup::{Broken, Cage},
    death_watch::DeathWatch,
    launch::Program,
    place::AttemptDir,
    plan::Plan,
};
use crate::protocol::{EnvError, ResourceLimits};

/// The interval and the maximum number of checks for killed processes in a teardown.
const LOOK: Duration = Duration::from_millis(5);
const LOOKS: usize = 400;

/// The environment of one attempt. Exists until it is torn down or dropped.
pub struct Provisioned {
    // Dropped first: it kills the processes that may still write files.
    cage: Cage,
    place: Option<AttemptDir>,
    plan: Option<Plan>,
    helper: Helper,
    around: Option<Bubblewrap>,
    watch: Arc<DeathWatch>,
    variables: Vec<(String, Secret)>,
    scrubber: Arc<Scrubber>,
    _holds: Option<Holds>,
    limits: ResourceLimits,
    wall: Option<Duration>,
    work: PathBuf,
}

impl Provisioned {
    #[expect(clippy::too_many_arguments, reason = "the only caller has just made each of them")]
    pub(super) fn new(
        place: AttemptDir,
        cage: Cage,
        plan: Option<Plan>,
        (helper, around, watch): (Helper, Option<Bubblewrap>, Arc<DeathWatch>),
        variables: Vec<(String, Secret)>,
        (scrubber, holds): (Arc<Scrubber>, Option<Holds>),
        limits: ResourceLimits,
        wall: Option<Duration>,
    ) -> Self {
        let work = place.work();
        Self {
            cage,
            place: Some(place),
            plan,
            helper,
            around,
            watch,
            variables,
            scrubber,
            _holds: holds,
            limits,
            wall,
            work,
        }
    }

    /// Returns the default working directory of the child.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Returns the maximum duration.
    pub fn wall(&self) -> Option<Duration> {
        self.wall
    }

    /// Returns the scrubber for the child's output.
    pub fn scrubber(&self) -> &Arc<Scrubber> {
        &self.scrubber
    }

    /// Returns the paths of its own directories as variables. Variables set by an agent take
    /// precedence.
    pub fn surroundings(&self, workdir: &Path) -> Vec<(String, OsString)> {
        let Some(place) = &self.place else { return Vec::new() };
        let mut variables = vec![
            ("TMPDIR".to_owned(), place.tmp().into_os_string()),
            ("MOONSWARM_WORKDIR".to_owned(), workdir.as_os_str().to_owned()),
            ("MOONSWARM_SECRETS".to_owned(), place.secrets().into_os_string()),
        ];
        if self.plan.as_ref().is_some_and(|plan| plan.confined) {
            variables.push(("HOME".to_owned(), place.work().into_os_string()));
        }
        variables
    }

    /// Returns a launch of the program within the boundary, with these variables and its
    /// credentials.
    ///
    /// # Errors
    /// Fails when the program is not found.
    pub fn launch(
        &self,
        name: &str,
        arguments: &[String],
        cwd: &Path,
        mut variables: Vec<(String, OsString)>,
    ) -> io::Result<Launch> {
        let secrets = self.variables.iter();
        variables.extend(secrets.map(|(name, secret)| (name.clone(), secret.expose().into())));
        let program = Program { name: name.to_owned(), arguments: arguments.to_owned(), variables };
        let Some(plan) = &self.plan else { return Ok(Launch::direct(program, cwd, &self.watch)) };
        let plan = Plan { cwd: cwd.to_owned(), ..plan.clone() };
        Launch::through(&self.helper, self.around.as_ref(), plan, program, &self.watch)
    }

    /// Returns the limit that the child exceeded, if any. Call it after the child has ended. A
    /// refused fork does not count if the child ended successfully.
    pub fn broken(&self, ended_well: bool) -> Option<EnvError> {
        let limit = |text: Option<String>| text.unwrap_or_default();
        Some(EnvError::ResourceExceeded(match self.cage.broken()? {
            Broken::Pids if ended_well => return None,
            Broken::Memory => format!(
                "memory: more than {} was needed, and a process was killed; raise \
                 `resources.memory`",
                limit(self.limits.memory.clone())
            ),
            Broken::Pids => format!(
                "pids: more than {} processes and threads were needed, and one was refused; raise \
                 `resources.pids`",
                limit(self.limits.pids.map(|pids| pids.to_string()))
            ),
        }))
    }

    /// Returns the error for exceeding the maximum duration.
    pub fn too_long(&self) -> EnvError {
        let wall = self.limits.wall.unwrap_or_default();
        EnvError::ResourceExceeded(format!(
            "wall: it took more than {wall}; raise `resources.wall`"
        ))
    }

    /// Kills the remaining processes of the child and removes everything. Dropping does the same,
    /// but waits less.
    pub async fn tear_down(mut self) {
        for _ in 0..LOOKS {
            if self.cage.remove() {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        if let Some(place) = self.place.take()
            && let Err(error) = place.remove().await
        {
            tracing::warn!(%error, "an attempt's directory is left until the next start");
        }
    }
}

impl std::fmt::Debug for Provisioned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provisioned").field("work", &self.work).finish_non_exhaustive()
    }
}
