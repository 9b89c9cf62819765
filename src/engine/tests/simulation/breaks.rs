//! The checker is checked: each deliberate break is noticed, by the promise that it breaks.

use super::play::play;
use crate::fault::{self, Break};

/// Seeds within which a break must show.
const SEEDS: u64 = 150;

/// The break is found under one of the promises named.
fn is_noticed(what: Break, promises: &[&str]) {
    fault::set(Some(what));
    let found = (0..SEEDS).find_map(|seed| {
        let findings = play(seed).findings;
        let named = |finding: &&String| promises.iter().any(|it| finding.starts_with(it));
        findings.iter().find(named).map(|finding| format!("seed {seed}: {finding}"))
    });
    fault::set(None);
    let found = found.unwrap_or_else(|| panic!("{what:?} went unnoticed through {SEEDS} seeds"));
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
