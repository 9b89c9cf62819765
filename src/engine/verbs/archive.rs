//! Archived blueprints: nothing starts under their name until they are restored. Their runs go on, and
//! their history stays.
//!
//! | the name | `archive` | `restore` | `delete` |
//! |---|---|---|---|
//! | stands for a version | archived | nothing changes | refused |
//! | archived, or its file was removed | archived | stands for that version again | deleted, if no run has it |
//! | unknown | not found | not found | not found |

use std::sync::Arc;

use crate::{
    engine::{
        BlueprintView, Caller, EngineError, rfc3339,
        shared::{
            archive::{Archive, Archived, KEY},
            faces,
            host_log::HostFact,
        },
        verbs::{
            engine::BlueprintVerbs,
            trigger_records::{self, TRIES},
            watches,
        },
    },
    fault,
    protocol::{Code, RunId},
    store::{Check, RunFilter, StoreError, Write},
    token::{Need, ScopeKind, Verb},
};

/// The maximum number of archived blueprints.
const MOST: usize = 10_000;

impl BlueprintVerbs<'_> {
    /// Archives a blueprint: nothing starts under its name, its schedules and watches stop.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such blueprint.
    pub async fn archive(self, caller: &Caller, name: &str) -> Result<BlueprintView, EngineError> {
        caller.grant.check(Verb::BlueprintWrite, &[Need::Blueprint(name)])?;
        for _ in 0..TRIES {
            if self.engine.shared().programs.archived(name).is_some() {
                break;
            }
            let hash = self.last_version(name).await?;
            let at_ms = self.engine.shared().clock.now_ms();
            let mark = Archived { hash: hash.clone(), at_ms, by: caller.subject.clone() };
            let unname = Write::UnnameBlueprint { name: name.to_owned(), hash: hash.clone() };
            let fact = self.fact("blueprint.archived", caller, name, Some(&hash));
            if self.change_archive(caller, fact, Some(mark), vec![unname]).await? {
                break;
            }
        }
        self.blueprint_seen(name).await
    }

    /// Lets the name of a blueprint stand again for the version that it stood for. Its schedules
    /// begin anew: times that passed meanwhile were not missed.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such blueprint.
    pub async fn restore(self, caller: &Caller, name: &str) -> Result<BlueprintView, EngineError> {
        caller.grant.check(Verb::BlueprintWrite, &[Need::Blueprint(name)])?;
        for _ in 0..TRIES {
            if self.stands_for(name).await?.is_some()
                && self.engine.shared().programs.archived(name).is_none()
            {
                break;
            }
            let hash = match self.engine.shared().programs.archived(name) {
                Some(mark) => mark.hash,
                None => self.last_version(name).await?,
            };
            let at_ms = self.engine.shared().clock.now_ms();
            let mut writes = self.forgotten(name).await?;
            let fact = self.fact("blueprint.restored", caller, name, Some(&hash));
            writes.push(Write::NameBlueprint { name: name.to_owned(), hash, at_ms });
            if self.change_archive(caller, fact, None, writes).await? {
                break;
            }
        }
        self.blueprint_seen(name).await
    }

    /// Deletes the versions of a blueprint that nothing starts any more and no run has.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, there is no such blueprint, it is not archived, or
    /// a run has it.
    pub async fn delete(self, caller: &Caller, name: &str) -> Result<(), EngineError> {
        caller.grant.check(Verb::BlueprintWrite, &[Need::Blueprint(name)])?;
        let (engine, caller, name) = (self.engine.clone(), caller.clone(), name.to_owned());
        // The caller may be gone in the meantime; the store and the memory must agree.
        let deleting = async move { engine.blueprints().delete_alone(&caller, &name).await };
        self.engine.shared().tasks.spawn(deleting).await.map_err(|_| EngineError::Stopping)?
    }

    async fn delete_alone(self, caller: &Caller, name: &str) -> Result<(), EngineError> {
        // No start is between its look at what is stored and its commit.
        let what = format!("delete blueprint {name}");
        let alone = self.engine.upkeep().alone_in_time(&what).await?;
        for _ in 0..TRIES {
            if self.stands_for(name).await?.is_some() {
                return Err(in_use(format!(
                    "delete blueprint {name}: runs can be started of it; archive it first"
                )));
            }
            self.last_version(name).await?;
            let filter =
                RunFilter { blueprint: Some(name.to_owned()), limit: 1, ..RunFilter::default() };
            if let [run, ..] = &*self.engine.read(move |store| store.headers(&filter)).await? {
                return Err(in_use(format!(
                    "delete blueprint {name}: run {} has it, and there may be more; its history \
                     needs the source",
                    RunId::new(run.num, run.created_ms)
                )));
            }
            let mut writes = self.forgotten(name).await?;
            writes.push(Write::DeleteBlueprint { name: name.to_owned() });
            writes.push(Write::PutMeta { key: faces::key_of(name), value: "{}".to_owned() });
            fault::point("engine.blueprint_delete");
            let fact = self.fact("blueprint.deleted", caller, name, None);
            let changed = self.change_archive(caller, fact, None, writes).await;
            if !matches!(changed, Ok(false)) {
                // Also if it failed: nobody knows then whether it is stored.
                self.engine.shared().programs.forget(name);
            }
            if changed? {
                // A host that stops leaves its files to the next one.
                let _ = self.engine.upkeep().remove_bundles(alone).await;
                return Ok(());
            }
        }
        Err(changing(name))
    }

    /// Returns the archived blueprints.
    ///
    /// # Errors
    /// Fails when the caller lacks permission.
    pub async fn archived(self, caller: &Caller) -> Result<Vec<BlueprintView>, EngineError> {
        caller.grant.check(Verb::BlueprintRead, &[Need::Every(ScopeKind::Blueprint)])?;
        let names = self.engine.shared().programs.archive().names.clone();
        let mut views = Vec::with_capacity(names.len());
        for (name, mark) in names {
            views.push(self.view_archived(name, &mark).await);
        }
        Ok(views)
    }

    /// Refuses to name a version of an archived blueprint.
    pub(crate) fn refuse_archived(self, name: &str) -> Result<(), EngineError> {
        self.engine.shared().programs.refuse_archived(name)
    }

    fn fact(self, kind: &str, caller: &Caller, name: &str, hash: Option<&str>) -> HostFact {
        let data = serde_json::json!({ "hash": hash, "by": caller.subject });
        HostFact::new(kind, self.engine.shared().clock.now_ms(), data).of_blueprint(name)
    }

    /// Replaces what is stored of the blueprint of an event; returns false if another change came in between.
    async fn change_archive(
        self,
        caller: &Caller,
        fact: HostFact,
        mark: Option<Archived>,
        mut writes: Vec<Write>,
    ) -> Result<bool, EngineError> {
        let name = fact.blueprint.clone().unwrap_or_default();
        let (before, mut names) = {
            let archive = self.engine.shared().programs.archive();
            (archive.text.clone(), archive.names.clone())
        };
        match mark {
            Some(mark) if names.len() < MOST => drop(names.insert(name.clone(), mark)),
            Some(_) => {
                return Err(EngineError::Conflict {
                    code: Code::Conflict,
                    message: format!("archive blueprint {name}: {MOST} are archived; delete some"),
                });
            }
            None => drop(names.remove(&name)),
        }
        let text = serde_json::to_string(&names).expect("marks by name are plain data");
        let mut checks = vec![Check::MetaIs { key: KEY.to_owned(), value: before }];
        if !caller.jti.is_empty() {
            checks.push(Check::TokenLive(caller.jti.clone()));
        }
        writes.push(Write::PutMeta { key: KEY.to_owned(), value: text.clone() });
        fault::point("engine.blueprint_archive");
        let shared = Arc::clone(&self.engine.inner.shared);
        let written = self.engine.write_logged(checks, writes, vec![fact], move |durable| {
            if durable {
                *shared.programs.archive() = Archive { text: Some(text), names };
            }
            shared.programs.moved(&name);
            shared.watches.moved();
        });
        match written.await {
            Ok(()) => Ok(true),
            Err(EngineError::Store(StoreError::Changed { .. })) => {
                let stored = self.engine.read(|store| store.meta(KEY)).await?;
                *self.engine.shared().programs.archive() = Archive::read(stored);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the writes that let the schedules and watches of a name begin anew.
    async fn forgotten(self, name: &str) -> Result<Vec<Write>, EngineError> {
        let mut writes = Vec::new();
        let keys =
            [format!("schedules:{name}"), watches::key_of(name), trigger_records::key_of(name)];
        for key in keys {
            if self.meta(&key).await?.is_some() {
                writes.push(Write::PutMeta { key, value: "{}".to_owned() });
            }
        }
        Ok(writes)
    }

    pub(crate) async fn stands_for(self, name: &str) -> Result<Option<String>, EngineError> {
        let name = name.to_owned();
        self.engine.read(move |store| store.blueprint_named(&name)).await
    }

    /// Returns the version that a name stands for, or stood for last.
    async fn last_version(self, name: &str) -> Result<String, EngineError> {
        if let Some(hash) = self.stands_for(name).await? {
            return Ok(hash);
        }
        let wanted = name.to_owned();
        let last = self.engine.read(move |store| store.last_published(&wanted)).await?;
        last.ok_or_else(|| EngineError::NotFound { what: "blueprint", id: name.to_owned() })
    }

    /// Returns the view of a blueprint for a caller who may change it, whether or not it may read it.
    async fn blueprint_seen(self, name: &str) -> Result<BlueprintView, EngineError> {
        if let Some(mark) = self.engine.shared().programs.archived(name) {
            return Ok(self.view_archived(name.to_owned(), &mark).await);
        }
        match self.stands_for(name).await? {
            Some(hash) => {
                let at_ms = self.engine.shared().clock.now_ms();
                Ok(self.view_stored(name.to_owned(), hash, at_ms).await)
            }
            None => Err(changing(name)),
        }
    }

    async fn view_archived(self, name: String, mark: &Archived) -> BlueprintView {
        let mut view = self.view_stored(name, mark.hash.clone(), mark.at_ms).await;
        for trigger in &mut view.on {
            // Nothing is due.
            trigger.next_at = None;
        }
        BlueprintView { archived_at: Some(rfc3339(mark.at_ms)), ..view }
    }
}

fn in_use(message: String) -> EngineError {
    EngineError::Conflict { code: Code::InUse, message }
}

fn changing(name: &str) -> EngineError {
    let message = format!("blueprint {name} changes all the time; try again");
    EngineError::Conflict { code: Code::Conflict, message }
}
