//! A person whom somebody else has identified.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The maximum number of groups that are read of a header or a token.
pub(super) const MOST_GROUPS: usize = 256;

/// Returns the name under which a person is known. Case does not count: `Bob` is nobody else than `bob`.
pub(super) fn folded(name: &str) -> String {
    let name = name.trim();
    let folded = name.to_lowercase();
    // The sign of Kelvin, for one, has a plain letter as its lower case. Such a name stays as it
    // is: it must not become the name of somebody else.
    if folded.is_ascii() && !name.is_ascii() { name.to_owned() } else { folded }
}

/// A person whom a proxy or a provider has identified.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Person {
    /// The name, folded.
    pub name: String,
    /// The groups.
    pub groups: Vec<String>,
}

impl Person {
    /// Returns the person of a name; `None` if the name is blank.
    pub(super) fn new(name: &str, groups: Vec<String>) -> Option<Self> {
        let name = folded(name);
        (!name.is_empty()).then_some(Self { name, groups })
    }
}

impl fmt::Debug for Person {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Person({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_of_a_name_makes_nobody_else_of_a_person() {
        for name in ["bob", "Bob", " BOB\t"] {
            assert_eq!(Person::new(name, Vec::new()).unwrap().name, "bob");
        }
        assert_eq!(folded("Ärzte"), "ärzte");
        assert_ne!(folded("\u{212a}im"), "kim", "the sign of Kelvin is no letter of a name");
        assert!(Person::new("  ", Vec::new()).is_none());
    }
}
