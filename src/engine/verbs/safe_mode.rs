//! Takes up runs with care, after a host that died repeatedly.
//!
//! Runs are taken up a page at a time. A page is marked before any of its runs is loaded, and the
//! mark stays until all of them are idle: until each waits for something, or a time limit is over.
//! A host that dies finds the mark at its next start:
//!
//! | found | then |
//! |---|---|
//! | a page of several runs | both halves are suspects |
//! | a single run | it is a suspect; at its third such death it is quarantined |
//! | nothing | the host died after the marks were removed: they last longer from now on |
//!
//! Suspects are taken up last, after the host has lived without them for a while: someone who kills
//! the host from outside, again and again, does not get as far as incriminating one of them. A host
//! that ended in an orderly way, including with an error, has not died.

use std::{collections::HashSet, sync::atomic::Ordering, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::{
    engine::{
        EngineError,
        run::reply::{Answer, Asked},
        settings::STORAGE_RETRY_MS,
        shared::message::{ControlAsk, Internal, Msg, RunMsg},
        verbs::engine::SafeModeVerbs,
    },
    store::{Expiring, StoreError, Write},
};

/// The key of the mark.
const MARK: &str = "taking_up";
/// The number of expired records that are deleted in one commit.
const EXPIRED: usize = 2_048;

/// The number of runs under one mark.
const PAGE: usize = 64;

/// The maximum number of runs that are taken up with care; due runs beyond these are taken up in
/// the ordinary way.
const CAREFUL: usize = 100_000;

/// The number of consecutive deaths at a run's own mark before it is quarantined.
const DEATHS: u32 = 3;

/// The time for which a page may be busy before the next is marked.
const PATIENCE: Duration = Duration::from_secs(1);

/// The maximum number of times that this time is doubled.
const DOUBLINGS: u32 = 4;

/// The time for which the host must live before it takes up suspects.
const QUIET: Duration = Duration::from_secs(2);

/// The interval at which the host checks whether a page is idle.
const LOOK: Duration = Duration::from_millis(10);

/// The progress of taking up runs, as stored.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Mark {
    /// The runs that are being taken up.
    page: Vec<u64>,
    /// Runs at whose mark the host died.
    suspects: Vec<Suspect>,
    /// The number of deaths while nothing was marked.
    unblamed: u32,
}

/// A group of runs of which one may be what kills the host.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    runs: Vec<u64>,
    /// The number of deaths at the mark of this single run.
    deaths: u32,
}

impl Mark {
    /// Parses a mark; earlier releases wrote the number of one run.
    fn read(text: &str) -> Self {
        match text.parse() {
            Ok(run) => Self { page: vec![run], ..Self::default() },
            Err(_) => serde_json::from_str(text).unwrap_or_default(),
        }
    }

    /// Updates the mark at the next start; returns the run to quarantine.
    fn judge(&mut self, died: bool) -> Option<u64> {
        let page = std::mem::take(&mut self.page);
        let known = self.suspects.iter().position(|suspect| suspect.runs == page);
        match (died, page.as_slice()) {
            (false, _) => None,
            (true, []) => {
                self.unblamed = (self.unblamed + 1).min(DOUBLINGS);
                None
            }
            (true, [run]) => {
                let before = known.map_or(0, |at| self.suspects.remove(at).deaths);
                if before + 1 >= DEATHS {
                    return Some(*run);
                }
                self.suspects.push(Suspect { runs: page, deaths: before + 1 });
                None
            }
            (true, runs) => {
                known.map(|at| self.suspects.remove(at));
                let (one, other) = runs.split_at(runs.len() / 2);
                for half in [one, other] {
                    self.suspects.push(Suspect { runs: half.to_vec(), deaths: 0 });
                }
                None
            }
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE * (1 << self.unblamed.min(DOUBLINGS))
    }
}

impl SafeModeVerbs<'_> {
    /// Takes up every run that is due, a page at a time, and then lets the shards do so by
    /// themselves; `died` means that the previous host did not end in an orderly way. Returns the
    /// run that was quarantined, if there is one.
    ///
    /// While the disk is full it waits. Requests are served in the meantime; a run that they need
    /// is loaded without a mark.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written.
    pub async fn take_up_with_care(self, died: bool) -> Result<Option<u64>, EngineError> {
        let found = self.engine.read(|store| store.meta(MARK)).await?.unwrap_or_default();
        let mut mark = Mark::read(&found);
        let condemned = mark.judge(died);
        self.mark(&mark).await?;
        if let Some(run) = condemned {
            self.quarantine(run).await?;
        }
        let suspects: HashSet<u64> =
            mark.suspects.iter().flat_map(|suspect| suspect.runs.iter().copied()).collect();
        let due = self.due_runs().await?;
        let progress = &self.engine.shared().taking_up;
        progress.of.store(due.len(), Ordering::Relaxed);
        let others: Vec<u64> = due.iter().copied().filter(|run| !suspects.contains(run)).collect();
        for page in others.chunks(PAGE) {
            self.take_up_page(&mut mark, page.to_vec()).await?;
        }
        if !mark.suspects.is_empty() {
            mark.page.clear();
            self.mark(&mark).await?;
            self.rest(QUIET).await?;
        }
        let due: HashSet<u64> = due.into_iter().collect();
        while let Some(suspect) = mark.suspects.first().cloned() {
            if suspect.runs.iter().any(|run| due.contains(run)) {
                self.take_up_page(&mut mark, suspect.runs).await?;
            }
            mark.suspects.remove(0);
        }
        mark.page.clear();
        self.mark(&mark).await?;
        Ok(condemned)
    }

    /// Lets the shards take up due runs by themselves.
    ///
    /// # Errors
    /// Fails when the store cannot be read.
    pub async fn take_up_the_rest(self) -> Result<(), EngineError> {
        for shard in &self.engine.shared().shards {
            // A shard that is gone has logged that.
            shard.send(Msg::Recover);
        }
        let rows = self.engine.read(|store| store.outbox()).await?;
        crate::engine::inbox::signals::carry(self.engine.shared(), rows);
        Ok(())
    }

    /// Sets whether runs are being taken up.
    pub fn set_taking_up(self, goes_on: bool) {
        self.engine.shared().taking_up.set(goes_on.then_some("taking runs up"));
    }

    /// Returns the progress of taking up runs, while it lasts.
    pub fn taking_up(self) -> Option<String> {
        self.engine.shared().taking_up.told()
    }

    /// Clears the suspects: the host has settled, or ends in an orderly way.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn forget_suspects(self) -> Result<(), EngineError> {
        match self.engine.read(|store| store.meta(MARK)).await? {
            Some(mark) if !mark.is_empty() => self.put_meta(MARK, "").await,
            Some(_) | None => Ok(()),
        }
    }

    async fn due_runs(self) -> Result<Vec<u64>, EngineError> {
        let (shards, now_ms) =
            (self.engine.shared().shards.len() as u64, self.engine.shared().clock.now_ms());
        let mut runs = Vec::new();
        for shard in 0..shards {
            let parts = self.engine.shared().parts_of(shard);
            let due = self.engine.read(move |store| store.due(&parts, now_ms, CAREFUL)).await?;
            runs.extend(due.into_iter().map(|(run, _)| run));
        }
        Ok(runs)
    }

    /// Marks some runs, takes them up, and waits until they are idle.
    async fn take_up_page(self, mark: &mut Mark, page: Vec<u64>) -> Result<(), EngineError> {
        mark.page = page.clone();
        self.mark(mark).await?;
        let answers: Vec<_> = page.iter().map(|run| (*run, self.told_to_take_up(*run))).collect();
        for (run, mut answer) in answers {
            loop {
                match answer.await {
                    // It was taken up, or it ended in the meantime.
                    Ok(Ok(_) | Err(EngineError::NotFound { .. })) | Err(_) => break,
                    Ok(Err(EngineError::Store(error))) if waits(&error) => {
                        self.rest(Duration::from_millis(STORAGE_RETRY_MS)).await?;
                        answer = self.told_to_take_up(run);
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(run, %error, "could not take a run up");
                        break;
                    }
                }
            }
        }
        self.until_at_rest(&page, mark.patience()).await?;
        self.engine.shared().taking_up.taken.fetch_add(page.len(), Ordering::Relaxed);
        Ok(())
    }

    fn told_to_take_up(self, run: u64) -> oneshot::Receiver<Result<Answer, EngineError>> {
        let (reply, done) = oneshot::channel();
        let ask = ControlAsk::TakeUp;
        self.engine.shared().tell(run, RunMsg::Control(Asked { ask, reply }));
        done
    }

    /// Waits until none of some runs is busy in this process, or the time is over.
    async fn until_at_rest(self, page: &[u64], patience: Duration) -> Result<(), EngineError> {
        let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let until = self.engine.shared().clock.steady_ms() + patience;
        let mut busy = page.to_vec();
        loop {
            let mut still = Vec::new();
            for run in busy {
                let (reply, rests) = oneshot::channel();
                self.engine.shared().tell(run, Internal::IsAtRest(reply));
                // A shard that is gone is not busy.
                if !rests.await.unwrap_or(true) {
                    still.push(run);
                }
            }
            busy = still;
            if busy.is_empty() || self.engine.shared().clock.steady_ms() >= until {
                return Ok(());
            }
            self.rest(LOOK).await?;
        }
    }

    /// Waits, unless the host stops in the meantime.
    async fn rest(self, time: Duration) -> Result<(), EngineError> {
        tokio::select! {
            () = self.engine.shared().tasks.stopping().cancelled() => Err(EngineError::Stopping),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    async fn quarantine(self, run: u64) -> Result<(), EngineError> {
        loop {
            let reason = format!("the host died {DEATHS} times while it took this run up");
            match self.engine.ask(run, ControlAsk::Quarantine { reason }).await {
                Ok(()) | Err(EngineError::NotFound { .. }) => return Ok(()),
                Err(EngineError::Store(error)) if waits(&error) => {}
                Err(error) => return Err(error),
            }
            self.rest(Duration::from_millis(STORAGE_RETRY_MS)).await?;
        }
    }

    /// Writes the mark, as soon as there is space for it.
    async fn mark(self, mark: &Mark) -> Result<(), EngineError> {
        let text = if *mark == Mark::default() {
            String::new()
        } else {
            serde_json::to_string(mark).expect("plain data")
        };
        loop {
            match self.put_meta(MARK, &text).await {
                Err(EngineError::Store(error)) if waits(&error) => {}
                result => return result,
            }
            self.rest(Duration::from_millis(STORAGE_RETRY_MS)).await?;
        }
    }

    /// Stores a value about the host.
    ///
    /// # Errors
    /// Fails when it cannot be stored.
    pub async fn put_meta(self, key: &str, value: &str) -> Result<(), EngineError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.engine.write(Vec::new(), vec![Write::PutMeta { key, value }]).await
    }

    /// Deletes the stored answers of idempotency keys that have expired.
    ///
    /// # Errors
    /// Fails when the store cannot be written.
    pub async fn expire_answers(self) -> Result<(), EngineError> {
        let now_ms = self.engine.shared().clock.now_ms();
        let before_ms = now_ms.saturating_sub(crate::engine::settings::IDEMPOTENCY_MS);
        self.expire(Expiring::Answers, before_ms).await
    }

    /// Deletes expired data of layers.
    ///
    /// # Errors
    /// Fails when the store cannot be written.
    pub async fn expire_kept(self) -> Result<(), EngineError> {
        let before_ms = self.engine.shared().clock.now_ms();
        self.expire(Expiring::Kept, before_ms).await
    }

    /// Deletes records from before a time, a part in each commit: after a pause of the host, or in a busy
    /// hour, there are more than others should wait for.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written.
    pub(crate) async fn expire(self, what: Expiring, before_ms: u64) -> Result<(), EngineError> {
        while self.engine.read(move |store| store.upkeep().has_expired(what, before_ms)).await? {
            self.engine.write(Vec::new(), vec![what.removal(before_ms, EXPIRED)]).await?;
        }
        Ok(())
    }
}

/// Returns true if a write may succeed later, in the same process.
fn waits(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Full
            | StoreError::Locked
            | StoreError::Away { .. }
            | StoreError::Busy
            | StoreError::Moved { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts and dies at the mark of the page with `culprit`, until that is quarantined; returns
    /// the number of deaths.
    fn deaths_until_quarantined(runs: usize, culprit: u64) -> usize {
        let mut mark = Mark { page: (0..runs as u64).collect(), ..Mark::default() };
        for death in 1..100 {
            match mark.judge(true) {
                Some(run) => {
                    assert_eq!(run, culprit);
                    return death;
                }
                None => {
                    // Suspects before the culprit are taken up and cleared.
                    let at =
                        mark.suspects.iter().position(|it| it.runs.contains(&culprit)).unwrap();
                    mark.suspects.drain(..at);
                    mark.page = mark.suspects[0].runs.clone();
                }
            }
        }
        panic!("never found");
    }

    #[test]
    fn a_culprit_among_a_page_is_found_by_halves_and_dies_three_times_alone() {
        assert_eq!(deaths_until_quarantined(1, 0), 3);
        assert_eq!(deaths_until_quarantined(64, 63), 9);
        assert_eq!(deaths_until_quarantined(64, 0), 9);
    }

    #[test]
    fn a_start_that_ended_in_order_blames_nobody() {
        let mut mark = Mark::read("7");
        for _ in 0..10 {
            assert_eq!(mark.judge(false), None);
            mark.page = vec![7];
        }
        assert!(mark.suspects.is_empty());
    }

    #[test]
    fn deaths_that_no_mark_saw_make_the_marks_last_longer() {
        let mut mark = Mark::default();
        for _ in 0..9 {
            mark.judge(true);
        }
        assert_eq!(mark.patience(), Duration::from_secs(16));
        assert_eq!(Mark::read(&serde_json::to_string(&mark).unwrap()), mark);
    }

    #[test]
    fn a_run_that_came_up_between_two_deaths_is_as_innocent_as_before() {
        let mut mark = Mark { page: vec![3], ..Mark::default() };
        mark.judge(true);
        assert_eq!(mark.suspects[0].deaths, 1);
        mark.suspects.clear();
        mark.page = vec![3];
        mark.judge(true);
        assert_eq!(mark.suspects[0].deaths, 1);
    }
}
