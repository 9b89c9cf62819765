//! Checks that a history is legal: each promise, against the requests, the answers and the stored entries.
//!
//! The judge knows commits and answers only. It folds the journal by itself, and computes outputs
//! from the blueprint's own tree; nothing of the engine decides what is right here.

mod flow;

use std::collections::BTreeMap;

use super::{
    blueprint::Flow,
    history::{Ask, Event, Of, Told, What},
    record::{Record, records},
};
use crate::{
    journal::{Decision, Outcome},
    store::{Commit, Write},
};

const DAY_MS: u64 = 24 * 3_600_000;

/// The input of a checker.
pub struct Case<'a> {
    pub flow: &'a Flow,
    pub events: &'a [Event],
    pub commits: &'a [Commit],
    /// The ids of the tokens, by their place.
    pub tokens: &'a [String],
    /// The keys that runs added to in the state that they share, with the sums.
    pub shared: &'a [(String, String)],
    /// True if the host lends runs.
    pub lends: bool,
}

struct Judge<'a> {
    case: &'a Case<'a>,
    runs: BTreeMap<u64, Record>,
    /// Each ask by its number, with the place of its event.
    asks: BTreeMap<u32, (usize, &'a Ask)>,
    found: Vec<String>,
}

/// Every promise that a history breaks.
pub fn check(case: &Case<'_>) -> Vec<String> {
    let mut found = Vec::new();
    let runs =
        records(case.commits, &mut |what| found.push(format!("nothing is accepted twice: {what}")));
    let asked = case.events.iter().enumerate().filter_map(|(place, event)| match &event.what {
        What::Asked(number, ask) => Some((*number, (place, ask))),
        _ => None,
    });
    let mut judge = Judge { case, runs, asks: asked.collect(), found };
    judge.answers();
    judge.once();
    judge.cancels();
    judge.revocations();
    judge.effects();
    judge.timers();
    judge.replays();
    judge.outputs();
    judge.shares();
    judge.signals();
    judge.places();
    judge.found
}

impl Judge<'_> {
    fn say(&mut self, promise: &str, what: impl std::fmt::Display) {
        self.found.push(format!("{promise}: {what}"));
    }

    /// Each answer against what was durable when it was given.
    fn answers(&mut self) {
        for event in self.case.events {
            let position = event.position;
            match &event.what {
                What::Told(number, told) => {
                    let ask = self.asks[number].1;
                    if !self.is_kept(ask, told, position) {
                        let what =
                            format!("{number} {ask:?} was told {told:?} at commit {position}");
                        self.say("nothing acknowledged is lost", what);
                    }
                    if let (Ask::Report { of, body, .. }, Told::Accepted(true)) = (ask, told) {
                        self.fenced(*of, *body, number);
                    }
                }
                What::Refused(number, code) => {
                    let ask = self.asks[number].1;
                    if let Ask::Report { body, .. } = ask
                        && [
                            "already_accepted",
                            "fenced",
                            "run_closed",
                            "invalid_result",
                            "idempotency_mismatch",
                        ]
                        .contains(&code.as_str())
                        && !self.is_evidence(*body, position)
                    {
                        let what =
                            format!("{number} {ask:?} was refused with {code} and is not kept");
                        self.say("what is refused is kept as evidence", what);
                    }
                }
                _ => {}
            }
        }
    }

    fn writes(&self, until: u64) -> impl Iterator<Item = (u64, &Write)> {
        let commits = self.case.commits.iter().take_while(move |commit| commit.position <= until);
        commits.flat_map(|commit| commit.writes.iter().map(move |write| (commit.position, write)))
    }

    fn is_evidence(&self, body: u32, until: u64) -> bool {
        let text = format!("body {body}.");
        self.writes(until)
            .any(|(_, write)| matches!(write, Write::PutEvidence(row) if row.body == text))
    }

    /// Returns true if an answer rests on what was durable by then.
    fn is_kept(&self, ask: &Ask, told: &Told, until: u64) -> bool {
        let decided = |run: &u64, is: &dyn Fn(&Decision) -> bool| {
            self.runs[run].decisions.iter().any(|(at, _, decision)| *at <= until && is(decision))
        };
        match (ask, told) {
            (Ask::Start { body, .. }, Told::Started { run, .. }) => {
                self.runs.get(run).and_then(|record| record.started.first()).is_some_and(
                    |(at, started)| *at <= until && started.input.to_value()["s"] == *body,
                )
            }
            (Ask::Cancel { run, body, .. }, _) => {
                let by = format!("body {body}.");
                decided(run, &|it| matches!(it, Decision::Cancel { reason, .. } if *reason == by))
            }
            (Ask::Pause { run, .. }, _) => decided(run, &|it| matches!(it, Decision::Pause { .. })),
            // A run that does not rest is resumed by doing nothing.
            (Ask::Resume { .. }, _) => true,
            (Ask::Wait { run }, _) => {
                self.runs[run].ended.as_ref().is_some_and(|(at, _, _)| *at <= until)
            }
            (Ask::Signal { run, body, .. }, _) => {
                let payload = format!("{{\"signal\":{body}}}");
                self.runs[run]
                    .signals
                    .iter()
                    .any(|it| it.position <= until && it.payload == payload)
            }
            (Ask::Answer { run, step, body, .. }, _) => {
                self.runs[run].accepted(*step, *body).iter().any(|(at, _)| *at <= until)
            }
            (Ask::Revoke { token }, _) => self.revoked_at(*token).is_some_and(|at| at <= until),
            (Ask::Lease { worker, .. } | Ask::Next { worker, .. }, Told::Leased(leased)) => {
                let name = format!("worker-{worker}");
                leased.iter().all(|(run, step, attempt)| {
                    let delivered = self.attempt(*run, *step, *attempt);
                    delivered.is_some_and(|attempt| {
                        attempt.delivered.iter().any(|(at, by)| *at <= until && *by == name)
                    })
                })
            }
            (Ask::Prompt(of), _) => self
                .attempt(of.run, of.step, of.attempt)
                .is_some_and(|attempt| attempt.delivered.iter().any(|(at, _)| *at <= until)),
            (Ask::Beat(_), _) => true,
            (Ask::Report { of, body, .. }, Told::Accepted(_)) => {
                self.runs[&of.run].accepted(of.step, *body).iter().any(|(at, _)| *at <= until)
            }
            (Ask::State { body, .. }, _) => {
                let value = format!("{{\"state\":{body}}}");
                self.writes(until)
                    .any(|(_, it)| matches!(it, Write::PutState { value: v, .. } if *v == value))
            }
            (Ask::File { body, .. }, _) => {
                let name = format!("file-{body}");
                self.writes(until)
                    .any(|(_, it)| matches!(it, Write::PutArtifact(row) if row.name == name))
            }
            (Ask::Start { .. } | Ask::Lease { .. } | Ask::Next { .. } | Ask::Report { .. }, _) => {
                false
            }
        }
    }

    fn attempt(&self, run: u64, step: u32, attempt: u32) -> Option<&super::record::Attempt> {
        self.runs.get(&run)?.steps.get(&step)?.attempts.get(&attempt)
    }

    fn revoked_at(&self, token: usize) -> Option<u64> {
        let wanted = &self.case.tokens[token];
        self.writes(u64::MAX)
            .find(|(_, write)| matches!(write, Write::RevokeToken { jti, .. } if jti == wanted))
            .map(|(at, _)| at)
    }

    /// An accepted report ended the attempt that it was of, and no other.
    fn fenced(&mut self, of: Of, body: u32, number: &u32) {
        let accepted = self.runs[&of.run].accepted(of.step, body);
        if let Some((_, attempt)) = accepted.iter().find(|(_, attempt)| *attempt != of.attempt) {
            let what = format!(
                "{number}: run {} step {}: a report of attempt {} ended attempt {attempt}",
                of.run, of.step, of.attempt
            );
            self.say("a zombie is fenced", what);
        }
    }

    /// Nothing counts twice: reports, keyed starts and signals, ends.
    fn once(&mut self) {
        let mut accepted: BTreeMap<(u64, u32, u32), Vec<u32>> = BTreeMap::new();
        for event in self.case.events {
            if let What::Told(number, Told::Accepted(true)) = &event.what
                && let Ask::Report { of, .. } = self.asks[number].1
            {
                accepted.entry((of.run, of.step, of.attempt)).or_default().push(*number);
            }
        }
        for (of, numbers) in accepted {
            if numbers.len() > 1 {
                self.say("nothing is accepted twice", format!("{of:?} by the asks {numbers:?}"));
            }
        }
        let mut starts: BTreeMap<u64, u32> = BTreeMap::new();
        let mut signals: BTreeMap<String, u32> = BTreeMap::new();
        for record in self.runs.values() {
            if let Some((_, started)) = record.started.first()
                && let Some(body) = started.input.to_value()["s"].as_u64()
            {
                *starts.entry(body).or_default() += 1;
            }
            for signal in record.signals.iter().filter(|signal| signal.sender.is_none()) {
                *signals.entry(signal.payload.clone()).or_default() += 1;
            }
        }
        let asks: Vec<(usize, Ask)> =
            self.asks.values().map(|(place, ask)| (*place, (*ask).clone())).collect();
        for (place, ask) in &asks {
            let (place, ask) = (*place, ask.clone());
            if asks.iter().any(|(earlier, other)| *earlier < place && *other == ask) {
                continue;
            }
            let (times, body) = match &ask {
                Ask::Start { body, .. } => (starts.get(&u64::from(*body)), body),
                Ask::Signal { body, .. } => (signals.get(&format!("{{\"signal\":{body}}}")), body),
                _ => continue,
            };
            let times = times.copied().unwrap_or_default();
            if times > 1 && !self.is_forgotten(place) {
                self.say(
                    "nothing is accepted twice",
                    format!("{ask:?}: {times} times (body {body})"),
                );
            }
        }
    }

    /// Returns true if a key that was first used at a place may have been forgotten later: answers
    /// are kept for a day.
    fn is_forgotten(&self, place: usize) -> bool {
        let (mut low, mut high) = (u64::MAX, 0);
        for event in &self.case.events[place..] {
            low = low.min(event.at_ms);
            high = high.max(event.at_ms);
        }
        let before = self.case.events[..place].iter().map(|event| event.at_ms).max();
        high.max(before.unwrap_or(0)) - low >= DAY_MS
    }

    /// Nothing that was dispatched before a cancel is accepted after it; compensations run.
    fn cancels(&mut self) {
        let mut found = Vec::new();
        for (run, record) in &self.runs {
            let Some(cancel) = record.canceled() else { continue };
            for (number, step) in &record.steps {
                let Some(end) = &step.ended else { continue };
                let opened = step.attempts.get(&end.attempt).map_or(0, |attempt| attempt.opened);
                if end.seq > cancel
                    && opened < cancel
                    && !matches!(end.outcome, Outcome::Canceled(_))
                {
                    found.push(format!(
                        "run {run} step {number}: opened by entry {opened}, canceled by {cancel}, accepted by {}",
                        end.seq
                    ));
                }
            }
            let mine = record.started.first().is_some_and(|(_, it)| it.blueprint == "main");
            // The flow of a run that is to be lent begins after the commit of its start: one that is
            // canceled before that has deferred nothing.
            let begins = !self.case.lends || !record.steps.is_empty();
            let compensates =
                record.decisions.iter().any(|(_, _, it)| matches!(it, Decision::Compensate { .. }));
            if mine && begins && self.case.flow.defers && !compensates {
                found.push(format!("run {run} was canceled and its compensation never began"));
            }
        }
        for what in found {
            self.say("nothing dispatched before a cancel is accepted after it", what);
        }
    }

    /// Nothing is accepted with a token after its revocation is durable.
    fn revocations(&mut self) {
        let mut found = Vec::new();
        for (number, (_, ask)) in &self.asks {
            let (token, at) = match ask {
                Ask::Start { body, token, .. } => (Some(*token), self.started_at(*body)),
                Ask::Cancel { run, body, token } => {
                    let by = format!("body {body}.");
                    let at = self.runs[run].decisions.iter().find(
                        |(_, _, it)| matches!(it, Decision::Cancel { reason, .. } if *reason == by),
                    );
                    (Some(*token), at.map(|(at, _, _)| *at))
                }
                Ask::Signal { run, body, token, .. } => {
                    let payload = format!("{{\"signal\":{body}}}");
                    let found = self.runs[run].signals.iter().find(|it| it.payload == payload);
                    (Some(*token), found.map(|it| it.position))
                }
                Ask::Answer { run, step, body, token, .. } => {
                    let at = self.runs[run].accepted(*step, *body);
                    (Some(*token), at.first().map(|(at, _)| *at))
                }
                Ask::State { of, body } => {
                    let value = format!("{{\"state\":{body}}}");
                    let mut writes = self.writes(u64::MAX);
                    let at = writes.find(
                        |(_, it)| matches!(it, Write::PutState { value: v, .. } if *v == value),
                    );
                    (of.token, at.map(|(at, _)| at))
                }
                _ => continue,
            };
            let revoked = token.and_then(|token| self.revoked_at(token));
            if let (Some(revoked), Some(at)) = (revoked, at)
                && at > revoked
                && self.used_once(ask)
            {
                found.push(format!(
                    "{number} {ask:?}: revoked by commit {revoked}, accepted by {at}"
                ));
            }
        }
        for what in found {
            self.say("nothing is accepted with a revoked token", what);
        }
    }

    fn used_once(&self, ask: &Ask) -> bool {
        self.asks.values().filter(|(_, other)| *other == ask).count() == 1
    }

    fn started_at(&self, body: u32) -> Option<u64> {
        self.runs.values().find_map(|record| {
            let (at, started) = record.started.first()?;
            (started.input.to_value()["s"] == body).then_some(*at)
        })
    }
}
