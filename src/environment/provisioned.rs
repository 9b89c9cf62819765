//! What was made for one attempt: its directory, its boundary, its credentials.

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
    launch::Program,
    place::Place,
    plan::Plan,
};
use crate::protocol::{EnvError, ResourceLimits};

/// How often and how long a teardown looks whether killed processes are gone.
const LOOK: Duration = Duration::from_millis(5);
const LOOKS: usize = 400;

/// What was made for one attempt. It holds until it is torn down or dropped.
pub struct Provisioned {
    place: Option<Place>,
    cage: Cage,
    plan: Option<Plan>,
    helper: Helper,
    around: Option<Bubblewrap>,
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
        place: Place,
        cage: Cage,
        plan: Option<Plan>,
        (helper, around): (Helper, Option<Bubblewrap>),
        variables: Vec<(String, Secret)>,
        (scrubber, holds): (Arc<Scrubber>, Option<Holds>),
        limits: ResourceLimits,
        wall: Option<Duration>,
    ) -> Self {
        let work = place.work();
        Self {
            place: Some(place),
            cage,
            plan,
            helper,
            around,
            variables,
            scrubber,
            _holds: holds,
            limits,
            wall,
            work,
        }
    }

    /// Where the child begins, unless somebody says otherwise.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The longest that it may take.
    pub fn wall(&self) -> Option<Duration> {
        self.wall
    }

    /// What takes its secrets out of what it says.
    pub fn scrubber(&self) -> &Arc<Scrubber> {
        &self.scrubber
    }

    /// Where its own files are, as variables; those that an agent sets go before them.
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

    /// The program within the boundary, with these variables and its credentials.
    ///
    /// # Errors
    /// When the program is not there.
    pub fn launch(
        &self,
        name: &str,
        arguments: &[String],
        cwd: &Path,
        mut variables: Vec<(String, OsString)>,
    ) -> io::Result<Launch> {
        let secrets = self.variables.iter();
        variables.extend(secrets.map(|(name, secret)| (name.clone(), secret.expose().into())));
        let program = Program { name, arguments, variables };
        let Some(plan) = &self.plan else { return Ok(Launch::direct(program, cwd)) };
        let plan = Plan { cwd: cwd.to_owned(), ..plan.clone() };
        Launch::through(&self.helper, self.around.as_ref(), plan, program)
    }

    /// Which limit the child broke, once it has ended; nothing if none. One that ended well could
    /// do without the process that it was refused.
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

    /// The error of a child that took too long.
    pub fn too_long(&self) -> EnvError {
        let wall = self.limits.wall.unwrap_or_default();
        EnvError::ResourceExceeded(format!(
            "wall: it took more than {wall}; raise `resources.wall`"
        ))
    }

    /// Ends everything that is left of the child and removes what was made. The same happens,
    /// less patiently, when it is dropped.
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

impl Drop for Provisioned {
    fn drop(&mut self) {
        // What still dies is found at the next start.
        self.cage.remove();
    }
}

impl std::fmt::Debug for Provisioned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provisioned").field("work", &self.work).finish_non_exhaustive()
    }
}
