//! The blueprints of the watched directory: taken over on the host's own behalf, archived when their
//! file is gone, and what keeps a file from being one.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    blueprint::Bundle,
    engine::shared::{host_log::HostFact, programs::BlueprintProblem},
    engine::{Caller, EngineError, verbs::engine::BlueprintVerbs},
    fault,
    lua::Program,
    store::Write,
    token::{Grant, Need, ScopeKind, Verb},
};

/// The maximum number of remembered files with a problem.
const MOST_PROBLEMS: usize = 1_000;

impl BlueprintVerbs<'_> {
    /// Compiles a blueprint of the watched directory.
    ///
    /// # Errors
    /// Fails when it has errors.
    pub(crate) async fn compiled_file(self, bundle: Bundle) -> Result<Arc<Program>, EngineError> {
        Ok(self.compiled(bundle).await?.0)
    }

    /// Compiles a blueprint and stores it under its own name, on the host's own behalf.
    ///
    /// # Errors
    /// Fails when the blueprint has errors or cannot be stored.
    pub async fn adopt_blueprint(self, bundle: Bundle) -> Result<(), EngineError> {
        let program = self.compiled_file(bundle).await?;
        self.adopt_program(&program).await
    }

    /// Stores a blueprint of the watched directory under its own name.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub(crate) async fn adopt_program(self, program: &Arc<Program>) -> Result<(), EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let publisher = (Grant::everything(), None);
        self.publish(program, publisher, Vec::new(), Vec::new(), now_ms).await
    }

    /// Lets a name stand for nothing any more, if it still stands for this version. Its runs go on,
    /// and its history stays.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub(crate) async fn archive_blueprint(self, name: &str, hash: &str) -> Result<(), EngineError> {
        let write = Write::UnnameBlueprint { name: name.to_owned(), hash: hash.to_owned() };
        let now_ms = self.engine.shared().clock.now_ms();
        let data = serde_json::json!({ "hash": hash, "by": null });
        let fact = HostFact::new("blueprint.archived", now_ms, data).of_blueprint(name);
        fault::point("engine.blueprint_name");
        let (shared, name) = (Arc::clone(&self.engine.inner.shared), name.to_owned());
        self.engine
            .write_logged(Vec::new(), vec![write], vec![fact], move |_| {
                shared.programs.moved(&name);
                shared.watches.moved();
            })
            .await
    }

    /// Returns the version of each name, by name.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) async fn named_versions(self) -> Result<BTreeMap<String, String>, EngineError> {
        let names = self.engine.read(|store| store.blueprint_names()).await?;
        Ok(names.into_iter().map(|(name, hash, _)| (name, hash)).collect())
    }

    /// Returns the value that the host stores under a key.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub(crate) async fn meta(self, key: &str) -> Result<Option<String>, EngineError> {
        let key = key.to_owned();
        self.engine.read(move |store| store.meta(&key)).await
    }

    /// Replaces what keeps files of the watched directory from being blueprints.
    pub(crate) fn set_blueprint_problems(self, mut problems: Vec<BlueprintProblem>) {
        problems.truncate(MOST_PROBLEMS);
        *self.engine.shared().programs.problems() = problems;
    }

    /// Returns the problems of files in the watched directory, by file.
    ///
    /// # Errors
    /// Fails when the caller may not list blueprints.
    pub fn blueprint_problems(self, caller: &Caller) -> Result<Vec<BlueprintProblem>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Every(ScopeKind::Blueprint)])?;
        Ok(self.engine.shared().programs.problems().clone())
    }

    /// The error for a name that stands for nothing: the findings of its file, for a caller who may do
    /// this with the name.
    pub(crate) fn why_unnamed(
        self,
        caller: &Caller,
        verb: Verb,
        name: &str,
        error: EngineError,
    ) -> EngineError {
        let is_unknown = matches!(error, EngineError::NotFound { what: "blueprint", .. });
        if !is_unknown || caller.grant.check(verb, &[Need::Blueprint(name)]).is_err() {
            return error;
        }
        let problems = self.engine.shared().programs.problems();
        match problems.iter().find(|it| it.name == name && !it.findings.is_empty()) {
            Some(problem) => EngineError::Findings(problem.findings.clone()),
            None => error,
        }
    }
}
