//! What a failover of the database may lose.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The commits that a failover of the database may lose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// None: every commit is on a synchronous standby, or there is no standby to fail over to.
    #[default]
    Synchronous,
    /// The last ones: they may be on no standby yet.
    Asynchronous,
}

impl Durability {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Synchronous => "synchronous",
            Self::Asynchronous => "asynchronous",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "synchronous" => Ok(Self::Synchronous),
            "asynchronous" => Ok(Self::Asynchronous),
            other => Err(format!("{other:?} is neither \"synchronous\" nor \"asynchronous\"")),
        }
    }
}
