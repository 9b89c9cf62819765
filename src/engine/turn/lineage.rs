//! The parties behind a run: whoever works on a run, or is behind those who do, answers none of its
//! questions.
//!
//! A subject is a path: `ada/session/ses_a` is a session that `ada` opened, `ses_a/ci` in that place
//! a token that the session made. The *party* of a subject is the first client or session of its
//! path below the admin token, who stands behind everybody after it: `ada` here. The admin token
//! itself stands behind everything and is no party, or nobody could answer anything.

use std::collections::BTreeSet;

use crate::{
    engine::{
        Caller, EngineError,
        run::resident::Run,
        turn::facts::{self, Turn},
    },
    journal::{self, Chain, Decision, Fact},
    protocol::{Code, SessionId},
    session::Hub,
    token::{Role, Verb, is_same_subject},
};

/// The subject of the admin token, and of the program that embeds the host.
const ROOTS: [&str; 2] = ["admin", "host"];

/// The prefix of a session's id in its path.
const SESSION: &str = "session";

/// Sessions of an older release that were opened by each other, which are followed at most.
const MOST_OPENERS: usize = 64;

/// The party of a subject: as much of the path as names it.
pub(crate) fn party(subject: &str) -> Option<&str> {
    let mut parts = subject.split('/');
    let first = parts.next().filter(|first| !first.is_empty())?;
    let second = parts.next().map_or(0, |second| second.len() + 1);
    if first == SESSION || (ROOTS.contains(&first) && second > 0) {
        return Some(&subject[..first.len() + second]);
    }
    (!ROOTS.contains(&first)).then_some(first)
}

/// The subject of a session: what stands behind its opener, and its id.
pub(crate) fn session_of(opener: &str, session: &SessionId) -> String {
    match party(opener) {
        Some(party) => format!("{party}/{SESSION}/{session}"),
        None => format!("{SESSION}/{session}"),
    }
}

/// The session whose own subject this is.
pub(crate) fn session_in(subject: &str) -> Option<&str> {
    let (before, id) = subject.rsplit_once('/')?;
    (before == SESSION || before.ends_with("/session")).then_some(id)
}

/// The party of a subject; of a session of an older release, whose subject does not say who opened
/// it, as far as the session is open.
fn party_of(sessions: &Hub, subject: &str) -> Option<String> {
    let mut party = party(subject)?.to_owned();
    for _ in 0..MOST_OPENERS {
        let Some(opener) = opener(sessions, &party) else { break };
        party = opener;
    }
    Some(party)
}

/// The party that opened a session, where that is known and not the admin token.
fn opener(sessions: &Hub, session: &str) -> Option<String> {
    let id = session_in(session)?;
    Some(party(&sessions.opener(&SessionId::from(id))?)?.to_owned())
}

/// Returns true if two subjects are of one party.
pub(crate) fn is_same(sessions: &Hub, a: &str, b: &str) -> bool {
    let party = |subject: &str| party_of(sessions, subject);
    let of_one = |(a, b): (String, String)| is_same_subject(&a, &b);
    is_same_subject(a, b) || party(a).zip(party(b)).is_some_and(of_one)
}

/// Refuses whoever takes part in a run, or stands behind those who do. A person who starts a run
/// with a token of the role admin, and without a session, answers its questions.
pub(crate) fn refuse_own(sessions: &Hub, run: &Run, caller: &Caller) -> Result<(), EngineError> {
    refuse(sessions, &run.chain, caller, true)
}

/// Refuses the same, and a person who started the run as well: nobody lets others speak in a run of
/// their own.
pub(crate) fn refuse_behind(sessions: &Hub, run: &Run, caller: &Caller) -> Result<(), EngineError> {
    refuse(sessions, &run.chain, caller, false)
}

/// Returns true if a caller could answer what a copy of a run asks people, which is a run of their own:
/// in person, with a token of the role admin, and without a part in the run.
pub(crate) fn may_answer_in_copy(sessions: &Hub, chain: &Chain, caller: &Caller) -> bool {
    is_admin_in_person(caller)
        && is_person(&caller.subject)
        && caller.grant.has(Verb::TaskAnswer)
        && refuse(sessions, chain, caller, true).is_ok()
}

fn is_admin_in_person(caller: &Caller) -> bool {
    caller.grant.role == Role::Admin && caller.session.is_none()
}

/// Returns true if a subject is of no session.
fn is_person(subject: &str) -> bool {
    !subject.split('/').any(|part| part == SESSION)
}

fn refuse(
    sessions: &Hub,
    chain: &Chain,
    caller: &Caller,
    permits_person: bool,
) -> Result<(), EngineError> {
    let Some(party) = party_of(sessions, &caller.subject) else { return Ok(()) };
    let starter = chain.started().map(|(started, _)| started.principal.as_str());
    let is_own = |other: &String| is_same_subject(other, &party);
    let starts = starter.and_then(|it| party_of(sessions, it)).as_ref().is_some_and(is_own);
    let in_person = permits_person && is_admin_in_person(caller) && starter.is_some_and(is_person);
    if (starts && !in_person) || parties(sessions, chain).iter().any(is_own) {
        let message =
            format!("answer the task: {party} takes part in this run and asks through it");
        return Err(EngineError::Conflict { code: Code::SelfApproval, message });
    }
    Ok(())
}

/// The parties of the sessions that worked on a run, have a seat in it, or take all of its tasks.
fn parties(sessions: &Hub, chain: &Chain) -> BTreeSet<String> {
    let joined = chain.joined().values().cloned();
    let own = of_run(chain).into_iter().map(|session| format!("{SESSION}/{session}"));
    let all: BTreeSet<String> = joined.chain(own).collect();
    all.iter().filter_map(|subject| party_of(sessions, subject)).collect()
}

/// The sessions that worked on a run, have a seat in it, or take all of its tasks.
fn of_run(chain: &Chain) -> BTreeSet<String> {
    let delegate = chain.started().and_then(|(started, _)| started.delegate.clone());
    let seated = chain.seats().values().map(|held| held.session.clone());
    delegate.into_iter().chain(seated).chain(chain.worked().cloned()).collect()
}

/// Every session that took part in a run, with its party: those of the run itself, and those that
/// its earlier histories and the run that called it were worked on by.
pub(crate) fn all_of(sessions: &Hub, run: &Run) -> Vec<(String, String)> {
    let mut all = run.chain.joined().clone();
    for session in of_run(&run.chain) {
        let own = || format!("{SESSION}/{session}");
        let party = || party_of(sessions, &own()).unwrap_or_else(own);
        all.entry(session.clone()).or_insert_with(party);
    }
    all.into_iter().collect()
}

/// Notes that a session takes part in a run, where somebody else stands behind it: the session
/// may be gone when that is asked.
pub(crate) fn note_joined(turn: &mut Turn<'_>, session: &str) {
    // Most workers of queues are no sessions: nobody stands behind a plain name.
    if is_plain(session) || turn.run.chain.joined().contains_key(session) {
        return;
    }
    let own = format!("{SESSION}/{session}");
    let party = party_of(&turn.shared.sessions, &own).filter(|party| *party != own);
    if let Some(party) = party {
        join(turn, session.to_owned(), party);
    }
}

/// Returns true if a worker's name is of no session, and has no path.
fn is_plain(worker: &str) -> bool {
    !worker.starts_with(journal::SESSION) && !worker.contains('/')
}

/// Notes the sessions that took part in a run that this one called.
pub(crate) fn join_all(turn: &mut Turn<'_>, joined: Vec<(String, String)>) {
    let own = of_run(&turn.run.chain);
    for (session, party) in joined {
        let known = own.contains(&session) || turn.run.chain.joined().contains_key(&session);
        if !known {
            join(turn, session, party);
        }
    }
}

/// Notes who stands behind a session that takes part in a run.
pub(crate) fn join(turn: &mut Turn<'_>, session: String, party: String) {
    facts::append(turn, Fact::Decided(Decision::Joined { session, party }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_party_of_a_subject_is_the_first_client_or_session_below_the_admin_token() {
        for (subject, of) in [
            ("admin", None),
            ("host", None),
            ("", None),
            ("ada", Some("ada")),
            ("ada/operator/bob", Some("ada")),
            ("ada/session/ses_a", Some("ada")),
            ("admin/operator", Some("admin/operator")),
            ("admin/operator/ci", Some("admin/operator")),
            ("session/ses_a", Some("session/ses_a")),
            ("session/ses_a/approver/operator", Some("session/ses_a")),
            ("session/ses_a/session/ses_b/ci", Some("session/ses_a")),
        ] {
            assert_eq!(party(subject), of, "{subject}");
        }
    }

    #[test]
    fn the_subject_of_a_session_says_who_stands_behind_it() {
        let id = SessionId::from("ses_b");
        for (opener, subject) in [
            ("admin", "session/ses_b"),
            ("ada", "ada/session/ses_b"),
            ("admin/operator/ci", "admin/operator/session/ses_b"),
            ("session/ses_a", "session/ses_a/session/ses_b"),
            ("session/ses_a/session/ses_x/ci", "session/ses_a/session/ses_b"),
        ] {
            assert_eq!(session_of(opener, &id), subject);
            assert_eq!(session_in(subject), Some("ses_b"));
            assert!(!is_plain(subject), "{subject}");
        }
        assert!(!is_plain(id.as_str()));
        for worker in ["", "builder-7", "admin", "session"] {
            assert!(is_plain(worker) && party(&format!("{SESSION}/{worker}")).is_some());
        }
        for other in ["ada", "session", "session/ses_a/operator", "ada/session/ses_a/ci"] {
            assert_eq!(session_in(other), None, "{other}");
        }
    }
}
