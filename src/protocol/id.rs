//! Ids that parties outside the host choose: any text, distinguished by type.
//!
//! They have no format of their own. The ids that the host assigns are in `run_id`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[doc = $doc:literal] $name:ident;)+) => {$(
        #[doc = $doc]
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(
            /// The text.
            pub String,
        );

        impl $name {
            /// Creates an id from any text.
            pub fn new(id: impl Into<String>) -> Self {
                Self(id.into())
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self::new(id)
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self(id)
            }
        }
    )+};
}

text_id! {
    /// Identifies an operator: a configured backend that executes tasks.
    OperatorId;
    /// Identifies a conversation that outlives one call.
    SessionId;
    /// Identifies one execution of a flow.
    WorkflowId;
    /// Identifies a scope of state.
    ScopeId;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_bare_json_string() {
        let id = OperatorId::from("main-ai");
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""main-ai""#);
        assert_eq!(serde_json::from_str::<OperatorId>(r#""main-ai""#).unwrap(), id);
        assert_eq!(id.to_string(), "main-ai");
        assert_eq!(SessionId::from(String::from("s")).as_str(), "s");
    }

    #[test]
    fn any_text_is_an_id() {
        for text in ["", "ü / \n", "a:b*"] {
            let json = serde_json::to_string(&WorkflowId::new(text)).unwrap();
            assert_eq!(serde_json::from_str::<WorkflowId>(&json).unwrap().0, text);
        }
    }
}
