//! The table of roles and verbs, and the check that every route, frame, tool and dispatch makes.

use crate::protocol::Code;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    Need, Role, Scopes, Verb,
    Verb::{
        ArtifactRead, ArtifactWrite, AuditRead, BlueprintCheck, BlueprintRead, BlueprintTest,
        BlueprintWrite, Dispatch, HostBackup, HostErase, HostGc, HostInspect, HostRead, KeyRotate,
        OperatorRead, RunCancel, RunDelete, RunExport, RunFork, RunImport, RunInspect, RunPause,
        RunQuery, RunRead, RunReplay, RunResume, RunSignal, RunSource, RunStart, RunWorkdir,
        SeatAcquire, SessionClose, SessionOpen, SessionRead, StateRead, StateWrite, TaskAdvise,
        TaskAnswer, TaskEscalate, TaskExpire, TaskList, TaskRead, TokenList, TokenMint,
        TokenRevoke, TriggerPause, WorkerArtifact, WorkerHeartbeat, WorkerLease, WorkerProgress,
        WorkerPrompt, WorkerResult, WorkerState, WorkerSubmit, WorkerToken,
    },
};

/// The relation of a role to a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// The role has it.
    Has,
    /// The role has it only in a token that names the verb explicitly.
    Named,
    /// The role never has it.
    Never,
}

const Y: Right = Right::Has;
const O: Right = Right::Named;
const N: Right = Right::Never;

/// One row per verb, in the order of [`Verb::ALL`]; one column per role, in the order of
/// [`Role::ALL`].
#[rustfmt::skip]
const TABLE: [(Verb, [Right; Role::ALL.len()]); Verb::ALL.len()] = [
    //                 admin oper. worker queue appr. senior observer
    (HostRead,        [Y,    Y,    N,     N,    N,    N,     Y]),
    (HostInspect,     [Y,    N,    N,     N,    N,    N,     N]),
    (HostBackup,      [Y,    N,    N,     N,    N,    N,     N]),
    (AuditRead,       [Y,    N,    N,     N,    N,    N,     N]),
    (HostGc,          [Y,    N,    N,     N,    N,    N,     N]),
    (HostErase,       [Y,    N,    N,     N,    N,    N,     N]),
    (RunStart,        [Y,    Y,    N,     N,    N,    N,     N]),
    (RunSource,       [Y,    O,    N,     N,    N,    N,     N]),
    (RunWorkdir,      [Y,    O,    N,     N,    N,    N,     N]),
    (RunRead,         [Y,    Y,    N,     N,    Y,    Y,     Y]),
    (RunCancel,       [Y,    Y,    N,     N,    N,    N,     N]),
    (RunPause,        [Y,    Y,    N,     N,    N,    N,     N]),
    (RunResume,       [Y,    Y,    N,     N,    N,    N,     N]),
    (RunFork,         [Y,    Y,    N,     N,    N,    N,     N]),
    (RunReplay,       [Y,    Y,    N,     N,    N,    N,     N]),
    (RunInspect,      [Y,    O,    N,     N,    N,    N,     N]),
    (RunExport,       [Y,    Y,    N,     N,    N,    N,     N]),
    (RunImport,       [Y,    N,    N,     N,    N,    N,     N]),
    (RunSignal,       [Y,    Y,    N,     N,    N,    N,     N]),
    (RunQuery,        [Y,    Y,    N,     N,    Y,    Y,     Y]),
    (RunDelete,       [Y,    N,    N,     N,    N,    N,     N]),
    (BlueprintWrite,  [Y,    N,    N,     N,    N,    N,     N]),
    (BlueprintRead,   [Y,    Y,    N,     N,    N,    N,     Y]),
    (BlueprintCheck,  [Y,    Y,    N,     N,    N,    N,     N]),
    (BlueprintTest,   [Y,    Y,    N,     N,    N,    N,     N]),
    (TriggerPause,    [Y,    Y,    N,     N,    N,    N,     N]),
    (TaskList,        [Y,    Y,    N,     N,    Y,    Y,     Y]),
    (TaskRead,        [Y,    Y,    N,     N,    Y,    Y,     Y]),
    (TaskAnswer,      [Y,    O,    N,     N,    Y,    N,     N]),
    (TaskExpire,      [Y,    O,    N,     N,    N,    N,     N]),
    (TaskEscalate,    [Y,    Y,    Y,     N,    N,    N,     N]),
    (TaskAdvise,      [Y,    N,    N,     N,    N,    Y,     N]),
    (ArtifactRead,    [Y,    Y,    Y,     N,    Y,    Y,     Y]),
    (ArtifactWrite,   [Y,    Y,    N,     N,    N,    N,     N]),
    (StateRead,       [Y,    Y,    N,     N,    N,    N,     Y]),
    (StateWrite,      [Y,    Y,    N,     N,    N,    N,     N]),
    (OperatorRead,    [Y,    Y,    N,     N,    N,    N,     Y]),
    (SessionOpen,     [Y,    Y,    N,     N,    N,    N,     N]),
    (SessionRead,     [Y,    Y,    N,     N,    N,    N,     N]),
    (SessionClose,    [Y,    Y,    N,     N,    N,    N,     N]),
    (SeatAcquire,     [Y,    Y,    N,     N,    N,    N,     N]),
    (Dispatch,        [Y,    Y,    N,     N,    N,    N,     N]),
    (WorkerLease,     [Y,    N,    N,     Y,    N,    N,     N]),
    (WorkerPrompt,    [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerResult,    [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerSubmit,    [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerArtifact,  [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerProgress,  [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerHeartbeat, [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerToken,     [Y,    Y,    Y,     N,    N,    N,     N]),
    (WorkerState,     [Y,    Y,    Y,     N,    N,    N,     N]),
    (TokenMint,       [Y,    Y,    N,     N,    N,    N,     N]),
    (TokenList,       [Y,    N,    N,     N,    N,    N,     N]),
    (TokenRevoke,     [Y,    N,    N,     N,    N,    N,     N]),
    (KeyRotate,       [Y,    N,    N,     N,    N,    N,     N]),
];

/// Returns true if a role has a verb by default, regardless of scopes.
pub const fn permits(role: Role, verb: Verb) -> bool {
    matches!(right(role, verb), Right::Has)
}

/// Returns true if a role has a verb only in a token that names it explicitly.
pub const fn is_on_purpose(role: Role, verb: Verb) -> bool {
    matches!(right(role, verb), Right::Named)
}

const fn right(role: Role, verb: Verb) -> Right {
    TABLE[verb as usize].1[role as usize]
}

/// The rights of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// If set, the only verbs of the role that the grant has. Absent means all default verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbs: Option<BTreeSet<Verb>>,
    /// The scopes that the grant reaches.
    pub scopes: Scopes,
}

/// The reason why the gate refused an act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The role does not have the verb, or the token was narrowed to other verbs.
    #[error("this token ({role}) may not {verb}")]
    Verb {
        /// The token's role.
        role: Role,
        /// The requested verb.
        verb: Verb,
    },
    /// The scopes of the token do not reach the target.
    #[error("this token may {verb}, but its scopes do not include {need}")]
    Scope {
        /// The requested verb.
        verb: Verb,
        /// The scope that is missing.
        need: String,
    },
}

impl Refusal {
    /// Returns a stable code.
    pub const fn code(&self) -> Code {
        match self {
            Self::Verb { .. } => Code::ForbiddenVerb,
            Self::Scope { .. } => Code::ForbiddenScope,
        }
    }
}

impl Grant {
    /// Creates a grant of a role's default verbs, within scopes.
    pub fn new(role: Role, scopes: Scopes) -> Self {
        Self { role, verbs: None, scopes }
    }

    /// Narrows the grant to some verbs.
    #[must_use]
    pub fn only(mut self, verbs: impl IntoIterator<Item = Verb>) -> Self {
        self.verbs = Some(verbs.into_iter().collect());
        self
    }

    /// Returns true if the grant has a verb, regardless of scopes.
    pub fn has(&self, verb: Verb) -> bool {
        match (right(self.role, verb), &self.verbs) {
            (Right::Has, None) => true,
            (Right::Has | Right::Named, Some(only)) => only.contains(&verb),
            (Right::Named, None) | (Right::Never, _) => false,
        }
    }

    /// Adds verbs. Returns `None` if the role can never have one of them.
    pub fn and(mut self, more: &[Verb]) -> Option<Self> {
        if more.is_empty() {
            return Some(self);
        }
        let own = Verb::ALL.iter().copied().filter(|verb| self.has(*verb));
        self.verbs = Some(own.chain(more.iter().copied()).collect());
        more.iter().all(|verb| self.has(*verb)).then_some(self)
    }

    /// Removes the verbs that a role has only when a token names them.
    #[must_use]
    pub fn by_default(mut self) -> Self {
        if let Some(verbs) = &mut self.verbs {
            verbs.retain(|verb| !is_on_purpose(self.role, *verb));
        }
        self
    }

    /// Returns true if the grant allows everything that `other` allows.
    pub fn covers(&self, other: &Self) -> bool {
        self.role.holds(other.role)
            && Verb::ALL.iter().all(|verb| !other.has(*verb) || self.has(*verb))
            && self.scopes.contain(&other.scopes)
    }

    /// Returns the grant of an admin, over all scopes.
    pub fn everything() -> Self {
        Self::new(Role::Admin, Scopes::all())
    }

    /// Checks that the grant has the verb and reaches every need.
    ///
    /// # Errors
    /// Returns the missing verb, or the first need that no scope covers.
    pub fn check(&self, verb: Verb, needs: &[Need<'_>]) -> Result<(), Refusal> {
        if !self.has(verb) {
            return Err(Refusal::Verb { role: self.role, verb });
        }
        match needs.iter().find(|need| !self.scopes.cover(need)) {
            None => Ok(()),
            Some(need) => Err(Refusal::Scope { verb, need: need.to_string() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_rows_and_columns_are_in_order() {
        for (row, verb) in TABLE.iter().zip(Verb::ALL) {
            assert_eq!(row.0, *verb);
        }
        for (column, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role as usize, column);
        }
    }

    #[test]
    fn an_admin_may_do_everything_and_a_queue_only_lease() {
        assert!(Verb::ALL.iter().all(|verb| permits(Role::Admin, *verb)));
        let queue: Vec<_> =
            Verb::ALL.iter().copied().filter(|verb| permits(Role::Queue, *verb)).collect();
        assert_eq!(queue, [Verb::WorkerLease]);
    }

    #[test]
    fn an_operator_brings_code_and_answers_people_only_where_its_token_says_so() {
        let given = [Verb::RunSource, Verb::RunWorkdir, Verb::TaskAnswer, Verb::TaskExpire];
        let plain = Grant::new(Role::Operator, Scopes::all());
        for verb in given {
            assert!(!plain.has(verb) && !permits(Role::Operator, verb), "{verb}");
            assert!(plain.clone().only([verb]).has(verb), "{verb}");
        }
        let more = plain.clone().and(&[Verb::RunSource]).unwrap();
        assert!(more.has(Verb::RunSource) && more.has(Verb::RunStart) && more.has(Verb::RunRead));
        assert!(!more.has(Verb::TaskAnswer));
        assert!(!more.by_default().has(Verb::RunSource));
        assert_eq!(plain.clone().and(&[Verb::HostGc]), None);
        let observer = Grant::new(Role::Observer, Scopes::all());
        assert_eq!(observer.and(&[Verb::RunSource]), None);
    }

    #[test]
    fn an_observer_changes_nothing() {
        for verb in Verb::ALL.iter().filter(|verb| permits(Role::Observer, **verb)) {
            let word = verb.as_str();
            let reads = [".read", ".list", ".query"].iter().any(|end| word.ends_with(end));
            assert!(reads, "{word}");
        }
    }

    #[test]
    fn the_verb_is_refused_before_the_scope() {
        let grant = Grant::new(Role::Observer, Scopes::default());
        let refusal = grant.check(Verb::RunStart, &[Need::Blueprint("x")]).unwrap_err();
        assert_eq!(refusal.code(), "forbidden_verb");
        let refusal = grant.check(Verb::BlueprintRead, &[Need::Blueprint("x")]).unwrap_err();
        assert_eq!(refusal.code(), "forbidden_scope");
        assert!(refusal.to_string().ends_with("do not include blueprint:x"));
    }

    #[test]
    fn every_need_must_be_reached() {
        let scopes = ["queue:a", "operator:*"].map(|text| text.parse().unwrap());
        let grant = Grant::new(Role::Admin, scopes.into_iter().collect());
        assert_eq!(grant.check(Verb::Dispatch, &[Need::Operator("x"), Need::Queue("a")]), Ok(()));
        assert!(grant.check(Verb::Dispatch, &[Need::Operator("x"), Need::Queue("b")]).is_err());
        assert_eq!(grant.check(Verb::HostRead, &[]), Ok(()));
    }

    #[test]
    fn a_narrowing_takes_verbs_away_and_never_adds_one() {
        let grant =
            Grant::new(Role::Worker, Scopes::all()).only([Verb::WorkerPrompt, Verb::RunStart]);
        assert!(grant.has(Verb::WorkerPrompt));
        assert!(!grant.has(Verb::WorkerResult));
        assert!(!grant.has(Verb::RunStart));
    }
}
