//! Roles: the kinds of parties that hold tokens.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The kind of party that holds a token. The gate defines the verbs of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The owner of the host.
    Admin,
    /// Starts runs and executes tasks: a main agent, a program.
    Operator,
    /// Works on one task.
    Worker,
    /// Leases tasks of a queue.
    Queue,
    /// Answers tasks that wait for a person.
    Approver,
    /// Answers the questions of attempts in progress.
    Senior,
    /// Only reads.
    Observer,
}

/// A text that is not a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown role {0:?}: the roles are admin, operator, worker, queue, approver, senior and observer"
)]
pub struct UnknownRole(
    /// The text, cut to 64 characters.
    pub String,
);

impl Role {
    /// All roles, in the order of the gate's columns.
    pub const ALL: [Self; 7] = [
        Self::Admin,
        Self::Operator,
        Self::Worker,
        Self::Queue,
        Self::Approver,
        Self::Senior,
        Self::Observer,
    ];

    /// Returns the word that claims, the API and the CLI use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Worker => "worker",
            Self::Queue => "queue",
            Self::Approver => "approver",
            Self::Senior => "senior",
            Self::Observer => "observer",
        }
    }

    /// Returns true if this role includes `other`: an admin includes all, the others only
    /// themselves.
    pub fn holds(self, other: Self) -> bool {
        self == Self::Admin || self == other
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownRole(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roles_word_is_its_wire_form() {
        for role in Role::ALL {
            assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("Admin".parse::<Role>().is_err());
    }

    #[test]
    fn nobody_but_an_admin_holds_another_role() {
        assert!(Role::ALL.into_iter().all(|role| Role::Admin.holds(role)));
        assert!(Role::Operator.holds(Role::Operator));
        assert!(!Role::Operator.holds(Role::Observer));
    }
}
