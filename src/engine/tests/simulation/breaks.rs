//! The checker is checked: each deliberate break is noticed, by the promise that it breaks.

use super::play::{Played, play, play_lending};
use crate::fault::{self, Break};

/// Seeds within which a break must show.
const SEEDS: u64 = 150;
/// The same of worlds that lend.
const LENDING_SEEDS: u64 = 400;

/// The break is found under one of the promises named.
fn is_noticed(what: Break, promises: &[&str]) {
    is_noticed_by((play, SEEDS), what, promises);
}

/// As [`is_noticed`], in a world that lends.
fn is_noticed_where_runs_are_lent(what: Break, promises: &[&str]) {
    is_noticed_by((play_lending, LENDING_SEEDS), what, promises);
}

fn is_noticed_by((play, seeds): (fn(u64) -> Played, u64), what: Break, promises: &[&str]) {
    fault::set(Some(what));
    let found = (0..seeds).find_map(|seed| {
        let findings = play(seed).findings;
        let named = |finding: &&String| promises.iter().any(|it| finding.starts_with(it));
        findings.iter().find(named).map(|finding| format!("seed {seed}: {finding}"))
    });
    fault::set(None);
    let found = found.unwrap_or_else(|| panic!("{what:?} went unnoticed through {seeds} seeds"));
    println!("{what:?} is noticed at {found}");
}

#[test]
fn a_skipped_epoch_check_is_noticed() {
    is_noticed(Break::SkipEpochCheck, &["a zombie is fenced"]);
}

#[test]
fn a_dropped_dedup_is_noticed() {
    is_noticed(Break::DropDedup, &["nothing is accepted twice", "effects come with"]);
}

#[test]
fn an_answer_before_its_commit_is_noticed() {
    is_noticed(Break::AckBeforeCommit, &["nothing acknowledged is lost"]);
}

#[test]
fn a_timer_lost_at_boot_is_noticed() {
    is_noticed(Break::LoseTimerAtBoot, &["timers fire", "every run ends"]);
}

#[test]
fn effects_before_their_result_are_noticed() {
    is_noticed(Break::ApplyEffectsAtDispatch, &["effects come with the accepted result"]);
}

#[test]
fn a_lent_run_that_is_woken_at_the_host_is_noticed() {
    is_noticed_where_runs_are_lent(Break::WakeLentRuns, &["a run is driven by one node"]);
}

#[test]
fn a_batch_of_a_run_that_is_home_is_noticed() {
    let promises = ["a batch of a run that was given back", "a change is made once"];
    is_noticed_where_runs_are_lent(Break::CommitUnlentBatches, &promises);
}

#[test]
fn a_run_that_is_taken_back_before_its_batches_are_settled_is_noticed() {
    is_noticed_where_runs_are_lent(Break::TakeBackEarly, &["a run is driven by one node"]);
}
