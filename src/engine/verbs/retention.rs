//! Retention: deletes ended runs.
//!
//! Oldest first, a few at a time, each step a small commit among the others: a concurrent commit
//! waits for one step at most. A run that something open still needs (its caller or its child, or
//! an undelivered signal) stays until that has ended. Blueprints are never deleted.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, EngineError, settings::Retention, verbs::engine::UpkeepVerbs},
    fault,
    protocol::RunId,
    store::{ChargeRow, Check, Retired, Store, StoreError, Trace, Write},
    token::Verb,
};

/// The number of runs that are deleted in one commit.
const STEP: usize = 32;

/// The number of runs that one pass in the background deletes before it pauses.
const LOOK: u64 = 512;

/// The number of runs that one request deletes.
const REQUEST: u64 = 5_000;

/// The number of runs that a response lists.
const NAMED: usize = 100;

/// Expired values of state that are removed in one commit.
const EXPIRED: usize = 2_048;

/// Rows of long histories, and pages of the file, that are reclaimed in one commit.
const TIDY: Write = Write::Tidy { rows: 2_048, pages: 256 };

/// The number of such commits of one request: a request must be answered in time, whatever is to be
/// reclaimed.
const ROUNDS: usize = 64;

/// The time for which a run that has just ended stays for its waiters, in milliseconds.
pub(crate) const GRACE_MS: u64 = 10_000;

/// The interval at which every run is checked again, not only younger ones, in milliseconds.
const ANEW_MS: u64 = 3_600_000;

/// Free space that a database keeps for growth: at least this, or a tenth of what it uses.
const ROOM: u64 = 8 << 20;

/// The reason for the removal of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The run ended long ago.
    Age,
    /// There are too many.
    Count,
    /// The database uses too much room.
    Size,
}

/// A run that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gone {
    /// The run.
    #[schema(value_type = String)]
    pub run: RunId,
    /// The reason.
    pub why: Why,
    /// About how many bytes it takes.
    pub bytes: u64,
}

/// The result of a collection, or of a dry run of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GcView {
    /// True if nothing was changed.
    pub dry_run: bool,
    /// The number of runs that are removed.
    pub runs: u64,
    /// About how many bytes they take.
    pub bytes: u64,
    /// The number of runs removed for their age.
    pub age: u64,
    /// The number of runs removed because there are too many.
    pub count: u64,
    /// The number of runs removed because the database is too large.
    pub size: u64,
    /// The first of them.
    pub items: Vec<Gone>,
    /// True if there is more to do: repeat the request.
    pub more: bool,
    /// Bytes that the database uses.
    pub used_bytes: u64,
    /// Bytes of its file that are free.
    pub free_bytes: u64,
}

/// The state of the background sweep between two passes.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// No run up to this number is deleted before the next full pass.
    from: u64,
    anew_ms: u64,
    /// The number of ended runs when they were counted, and the largest run number then.
    counted: Option<(u64, u64)>,
}

/// One pass over the runs, oldest first.
struct Pass {
    policy: Retention,
    /// Runs that ended before this are too old, in Unix milliseconds.
    cutoff: u64,
    /// Runs that ended after this stay, whatever the policy.
    settled: u64,
    dry: bool,
    /// The number of further runs that may be deleted.
    most: u64,
    after: u64,
    /// The first run that stays.
    kept: Option<u64>,
    /// The number of ended runs that are left, and the bytes in use.
    ended: u64,
    used: u64,
    over: bool,
    more: bool,
}

impl Pass {
    /// Returns the runs of the next page to delete.
    fn choose(&mut self, store: &dyn Store) -> Result<Vec<Gone>, StoreError> {
        let page = store.retired(self.after, STEP)?;
        self.over = page.is_empty();
        let mut gone = Vec::new();
        for run in page {
            let why = self.why(&run);
            match why.filter(|_| run.ended_ms <= self.settled) {
                Some(_) if self.most == 0 => {
                    (self.more, self.over) = (true, true);
                    break;
                }
                Some(why) => {
                    let bytes = store.run_bytes(run.num)?;
                    self.most -= 1;
                    self.ended = self.ended.saturating_sub(1);
                    self.used = self.used.saturating_sub(bytes);
                    gone.push(Gone { run: RunId::new(run.num, run.created_ms), why, bytes });
                }
                None => {
                    self.kept.get_or_insert(run.num);
                    if why.is_none() && run.created_ms >= self.cutoff {
                        // Those after it are younger.
                        self.over = true;
                        break;
                    }
                }
            }
            self.after = run.num;
        }
        Ok(gone)
    }

    /// Returns the reason for which a run is deleted, if there is one.
    fn why(&self, run: &Retired) -> Option<Why> {
        let Retention { runs, bytes, .. } = self.policy;
        if run.ended_ms < self.cutoff {
            Some(Why::Age)
        } else if runs > 0 && self.ended > runs {
            Some(Why::Count)
        } else if bytes > 0 && self.used > bytes {
            Some(Why::Size)
        } else {
            None
        }
    }
}

impl UpkeepVerbs<'_> {
    /// Deletes runs according to the policy and returns free space; with `dry`, only reports them.
    ///
    /// One call does a bounded part of the work; `more` says whether another call is needed.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read or written.
    pub async fn gc(self, caller: &Caller, dry: bool) -> Result<GcView, EngineError> {
        caller.grant.check(Verb::HostGc, &[])?;
        let ended = self.engine.read(|store| store.ended_runs()).await?;
        let most = if dry { u64::MAX } else { REQUEST };
        let (pass, mut view) = self.pass(0, most, 0, ended, dry).await?;
        view.more = pass.more;
        if !dry && !view.more {
            // The size is only known when the debris is cleared.
            let debris = self.engine.read(|store| store.upkeep().space()).await?.debris;
            self.sweep_directories().await?;
            match self.sweep_bundles().await {
                // A later collection removes them.
                Ok(_) | Err(EngineError::Busy { .. }) => {}
                Err(error) => return Err(error),
            }
            view.more = self.tidy(0).await? || (debris && pass.policy.bytes > 0);
        }
        let space = self.engine.read(|store| store.upkeep().space()).await?;
        (view.used_bytes, view.free_bytes) = (space.used, space.free);
        Ok(view)
    }

    /// Does one pass in the background: deletes a few runs, reclaims some space, and returns true
    /// if there is more to do at once.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written.
    pub async fn sweep(self, sweeper: &mut Sweeper) -> Result<bool, EngineError> {
        let policy = self.engine.shared().settings.retention;
        let now_ms = self.engine.shared().clock.now_ms();
        if now_ms >= sweeper.anew_ms {
            (sweeper.from, sweeper.anew_ms) = (0, now_ms + ANEW_MS);
        }
        let space = self.engine.read(|store| store.upkeep().space()).await?;
        // Counting reads every run: it is only done when there may be too many.
        let last_run = self.engine.shared().store.last_run();
        let at_most = sweeper.counted.map(|(ended, last)| ended + (last_run - last));
        let ended = match at_most {
            _ if policy.runs == 0 => 0,
            Some(at_most) if at_most <= policy.runs => at_most,
            Some(_) | None => {
                let ended = self.engine.read(|store| store.ended_runs()).await?;
                sweeper.counted = Some((ended, last_run));
                ended
            }
        };
        let (pass, view) = self.pass(sweeper.from, LOOK, GRACE_MS, ended, false).await?;
        if let Some((ended, _)) = &mut sweeper.counted {
            *ended = ended.saturating_sub(view.runs);
        }
        sweeper.from = pass.kept.map_or(pass.after, |first| first - 1);
        let room = ROOM.max(space.used / 10);
        Ok(self.tidy_step(room).await? || pass.more)
    }

    async fn pass(
        self,
        after: u64,
        most: u64,
        grace_ms: u64,
        ended: u64,
        dry: bool,
    ) -> Result<(Pass, GcView), EngineError> {
        let policy = self.engine.shared().settings.retention;
        let now_ms = self.engine.shared().clock.now_ms();
        let mut pass = Pass {
            policy,
            cutoff: if policy.age_ms == 0 { 0 } else { now_ms.saturating_sub(policy.age_ms) },
            settled: now_ms.saturating_sub(grace_ms),
            dry,
            most,
            after,
            kept: None,
            ended,
            used: self.used(policy).await?,
            over: false,
            more: false,
        };
        let mut view = GcView { dry_run: dry, ..GcView::default() };
        while !pass.over {
            let gone;
            // Below the limit, a new measurement decides nothing, and it may read every run.
            let is_over = pass.used > policy.bytes;
            (pass, gone) = self
                .engine
                .read(move |store| {
                    let gone = pass.choose(store)?;
                    Ok((pass, gone))
                })
                .await?;
            let is_less = is_over && !pass.dry && !gone.is_empty();
            self.let_go(&mut view, gone, dry).await?;
            if is_less {
                pass.used = self.used(policy).await?;
            }
        }
        Ok((pass, view))
    }

    /// Returns the bytes that are compared with the limit of a policy; 0 if it has none.
    async fn used(self, policy: Retention) -> Result<u64, EngineError> {
        match policy.bytes {
            0 => Ok(0),
            limit => self.engine.read(move |store| store.upkeep().retained_bytes(limit)).await,
        }
    }

    /// Deletes runs in one commit, with their files; only counts them if `dry`.
    async fn let_go(
        self,
        view: &mut GcView,
        gone: Vec<Gone>,
        dry: bool,
    ) -> Result<(), EngineError> {
        if gone.is_empty() {
            return Ok(());
        }
        if !dry {
            self.delete_runs(Vec::new(), gone.iter().map(|it| it.run).collect()).await?;
        }
        for it in gone {
            view.runs += 1;
            view.bytes += it.bytes;
            match it.why {
                Why::Age => view.age += 1,
                Why::Count => view.count += 1,
                Why::Size => view.size += 1,
            }
            if view.items.len() < NAMED {
                view.items.push(it);
            }
        }
        Ok(())
    }

    /// Clears what deletions left, and reclaims space until `room` is left, as far as one request
    /// does; returns true if there is more.
    async fn tidy(self, room: u64) -> Result<bool, EngineError> {
        for _ in 0..ROUNDS {
            if !self.tidy_step(room).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does one step; returns true if there is more to clear or to reclaim.
    async fn tidy_step(self, room: u64) -> Result<bool, EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let expired = self.engine.read(move |store| store.has_expired_state(now_ms)).await?;
        if expired {
            self.engine
                .write(Vec::new(), vec![Write::ExpireState { now_ms, rows: EXPIRED }])
                .await?;
        }
        let before = self.engine.read(|store| store.upkeep().space()).await?;
        if !before.debris && before.free <= room {
            return Ok(expired);
        }
        self.engine.write(Vec::new(), vec![TIDY]).await?;
        let after = self.engine.read(|store| store.upkeep().space()).await?;
        // A file of an older format reclaims nothing.
        Ok(expired || after.debris || (after.free > room && after.free < before.free))
    }

    /// Deletes runs in one commit, with their files; their storage no longer counts against quotas.
    pub(crate) async fn delete_runs(
        self,
        checks: Vec<Check>,
        runs: Vec<RunId>,
    ) -> Result<(), EngineError> {
        let writes = runs.iter().map(|run| Write::DeleteRun { run: run.num() }).collect();
        self.remove_runs(checks, &runs, writes).await?;
        // What is left of their files goes with a later sweep.
        self.forget_files(runs.into_iter().collect()).await;
        Ok(())
    }

    /// Erases runs in one commit: as [`Self::delete_runs`], and what names them elsewhere, and then
    /// other rows. No run is started of them meanwhile. Returns the runs of whose files something is
    /// left.
    pub(crate) async fn erase_runs(
        self,
        runs: Vec<RunId>,
        rows: &[&Trace],
    ) -> Result<BTreeSet<RunId>, EngineError> {
        let traces = runs.iter().map(|run| Trace::Run(run.num()));
        let traces = traces.chain(rows.iter().map(|row| (*row).clone()));
        let writes = traces.map(|trace| Write::Erase(Box::new(trace))).collect();
        let alone = self.alone().await;
        let removed = self.remove_runs(Vec::new(), &runs, writes).await;
        // Also if it failed: nobody knows then which of them are stored.
        let programs = &self.engine.shared().programs;
        programs.note_erasure();
        for row in rows {
            if let Trace::Blueprint { name, .. } = row {
                programs.forget(name);
            }
        }
        drop(alone);
        removed?;
        Ok(self.forget_files(runs.into_iter().collect()).await)
    }

    async fn remove_runs(
        self,
        checks: Vec<Check>,
        runs: &[RunId],
        writes: Vec<Write>,
    ) -> Result<(), EngineError> {
        let nums: Vec<u64> = runs.iter().map(|run| run.num()).collect();
        let charges: Vec<ChargeRow> = match self.engine.shared().accounts.are_kept() {
            false => Vec::new(),
            true => {
                self.engine
                    .read(move |store| {
                        nums.iter().filter_map(|run| store.charge(*run).transpose()).collect()
                    })
                    .await?
            }
        };
        self.engine.write(checks, writes).await?;
        for run in runs {
            self.engine.shared().state.drop_run(*run);
        }
        self.engine.shared().accounts.freed(&charges);
        fault::point("engine.runs_deleted");
        Ok(())
    }
}
