//! Starts a run once more, with the input and the tags of an earlier one.

use serde_json::json;

use crate::{
    engine::{
        Caller, Engine, EngineError, IdempotencyKey, Made, Program, StartRun,
        verbs::begin::{Basis, Permit},
    },
    journal::Fact,
    protocol::{Json, RunId},
    store::StoreError,
    token::Verb,
};

/// The version that a run is started with once more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RerunVersion {
    /// That of the earlier run.
    #[default]
    Same,
    /// The one that the blueprint's name refers to now.
    Newest,
}

impl Engine {
    /// Starts a run with the input and the tags of another one. Its working directory is kept if
    /// the caller may choose one; seats are not, because their sessions may be gone.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such run, or as [`Engine::start`].
    pub async fn rerun(
        &self,
        caller: &Caller,
        run: RunId,
        version: RerunVersion,
        key: Option<IdempotencyKey>,
    ) -> Result<Made, EngineError> {
        caller.may(Verb::RunRead, run)?;
        let basis = Basis::of(self, Some(run));
        let header = self.header(run).await?;
        let first = self.read(move |store| store.window(run.num(), 0, 1)).await?;
        let Some(Fact::RunStarted(started)) = first.into_iter().next().map(|first| first.fact)
        else {
            let reason = "its first entry is missing".to_owned();
            return Err(StoreError::Damaged { what: format!("run {run}"), reason }.into());
        };
        let program = match version {
            RerunVersion::Same => format!("{}@{}", header.blueprint, header.hash),
            RerunVersion::Newest => header.blueprint,
        };
        let chooses = caller.grant.has(Verb::RunWorkdir);
        let start = StartRun {
            program: Program::Named(program),
            input: started.input,
            trigger: Json::from(&json!({ "kind": "rerun", "run": run })),
            workdir: started.workdir.filter(|_| chooses),
            delegate: None,
            seats: Default::default(),
            tags: header.tags,
        };
        let begun = self.begin_of(basis, caller, start, key, None, Permit::Ask).await?;
        self.seen(caller, begun.run).await
    }
}
