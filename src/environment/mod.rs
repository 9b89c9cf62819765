//! What work finds around it: secrets by reference, and what it may reach.
//!
//! Owns [`Text`], a value that may be a reference to a secret, and [`Egress`], the rules for a
//! request that leaves the host, and [`http_client`], which every HTTP client begins with. Refuses to keep a secret: it is read when it is used and wiped
//! afterwards. Operators and `doctor` call it.

mod egress;
mod secret;

pub use egress::{Egress, EgressError, http_client, is_public};
pub use secret::{Secret, SecretError, Text};
