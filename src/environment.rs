//! The environments of work: boundaries, credentials and limits.
//!
//! Owns [`Environments`], which provision what an agent's `environment` asks for and tear it down
//! again; [`Local`] and [`Process`], which implement the protocol's environment trait; [`Machine`],
//! the abilities of this machine; [`Text`], a value that may refer to a secret; [`Scrubber`], which
//! removes secrets from the output of children; and [`Egress`], the rules for outgoing requests,
//! with [`http_client`], the base of every HTTP client, [`read_body`], which reads a response up to a
//! limit, and [`retry_after`], the pause that one asks for. Refuses what this machine cannot provide.
//! [`remove_tree`] and [`search_tree`] are for the directories that children wrote.
//! Never keeps a secret: it is read when used and wiped afterwards. Operators, the engine and
//! `doctor` call it.
//!
//! Boundaries and limits are made of what only Linux has. This room is the only one that cannot be
//! built without it; others read `/proc` and go on where it is not there.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "the host is built for Linux only: its boundaries and limits of child processes use namespaces, \
     Landlock and control groups. docs/install.md lists what would be missing on another system. \
     Without the feature `host`, the protocol and the response loop need no particular system."
);

mod answer;
mod births;
mod bubblewrap;
mod cgroup;
mod children_lock;
mod config;
mod confine;
mod death_watch;
mod declaration;
mod egress;
mod environments;
mod found;
mod gate;
mod helper;
mod init;
mod judge;
mod launch;
mod launcher;
mod local;
mod machine;
mod needs;
mod order;
mod paths;
mod place;
mod plan;
mod process;
mod provider;
mod provisioned;
mod refusal;
mod scrub;
mod secret;
mod sessions;
mod source;
mod tree;
mod vault;
mod veil;

pub use answer::{BodyError, BodyLimit, innermost, read_body, retry_after, with_causes};
pub use config::{Config, KeptSecret, Vault};
pub use confine::confined;
pub use declaration::Declaration;
pub use egress::{Egress, EgressError, http_client, is_public};
pub use environments::{Asked, Environments};
pub use helper::{Helper, own_file};
pub use init::init;
pub(crate) use launch::keep_tail;
pub use launch::{Group, Input, Launch, Launched, NotStarted};
pub(crate) use launcher::apart;
pub use local::Local;
pub use machine::{Enforces, Machine};
pub(crate) use place::{ATTEMPTS, ROOM};
pub use process::Process;
pub use provisioned::Provisioned;
pub use refusal::Refusal;
pub use scrub::{AttemptSecrets, Holds, Scrubber};
pub use secret::{Secret, SecretError, Text};
pub use source::INHERITED;
pub use tree::{TreeSearch, remove_tree, search_tree};
