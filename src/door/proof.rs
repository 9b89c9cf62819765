//! The proof of a proxy that the words about a person are its own.
//!
//! An address proves little: every program on a machine has those of that machine. A proxy therefore
//! sends a secret that only it and the host know.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use subtle::ConstantTimeEq as _;

use super::{Code, problem::Problem};
use crate::environment::{Secret, SecretError, Text};

/// The header with the secret of a proxy. It is removed from every request.
pub(super) const PROOF: HeaderName = HeaderName::from_static("moonswarm-proxy-secret");
/// The minimum size of the secret, in bytes.
const LEAST: usize = 16;
/// The maximum size of the secret, in bytes.
const MOST: usize = 1_024;

/// The reason why no proxy may name people.
#[derive(Debug, thiserror::Error)]
pub enum PeopleError {
    /// An address in `proxies` is one that every program on this machine has.
    #[error(
        "believe the header `{header}` from {net}: every program on this machine could send it, and be \
         anybody; set `people.secret`, and let the proxy send it as `Moonswarm-Proxy-Secret`"
    )]
    Unproven {
        /// The header with the name of a person.
        header: HeaderName,
        /// The addresses in `proxies`.
        net: IpNet,
    },
    /// The secret cannot be read.
    #[error("use `people.secret`: failed to {0}")]
    Unread(SecretError),
    /// The secret is too short to be one, or cannot be sent in a header.
    #[error(
        "use `people.secret`: it has to be {LEAST} to {MOST} letters, digits and signs of ASCII, without \
         spaces; `openssl rand -hex 32` makes one"
    )]
    Unfit,
}

/// The proof that a proxy gives for the person whom it names.
#[derive(Debug, Default)]
pub(super) enum Proof {
    /// Its address is enough, unless it is one of this machine.
    #[default]
    Needless,
    /// A secret.
    Secret(Secret),
    /// A secret that could not be read: nobody gives it.
    Unknown,
}

impl Proof {
    /// Reads the secret. Blocks while a file is read.
    ///
    /// # Errors
    /// Fails when the secret cannot be read, or is none.
    pub(super) fn read(secret: &Text) -> Result<Self, PeopleError> {
        let secret = secret.resolve().map_err(PeopleError::Unread)?;
        let text = secret.expose();
        let fits = (LEAST..=MOST).contains(&text.len());
        match fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self::Secret(secret)),
            false => Err(PeopleError::Unfit),
        }
    }

    /// Returns true if a request of a proxy has the proof. A header that comes twice is none. From
    /// an address of this machine (`own`), only the secret proves anything.
    pub(super) fn is_given(&self, headers: &HeaderMap, own: bool) -> bool {
        let secret = match self {
            Self::Needless => return !own,
            Self::Unknown => return false,
            Self::Secret(secret) => secret.expose(),
        };
        let mut sent = headers.get_all(PROOF).iter();
        match (sent.next(), sent.next()) {
            (Some(sent), None) => sent.as_bytes().ct_eq(secret.as_bytes()).into(),
            _ => false,
        }
    }
}

/// Returns the refusal of a request that names a person without the proof.
pub(super) fn unproven() -> Problem {
    let detail = "this request names a person in a header, and its `Moonswarm-Proxy-Secret` is missing or \
                  wrong: only a proxy that sends the secret of `people.secret` names people";
    Problem::new(Code::Forbidden, detail)
}

/// Returns true if a network has addresses that every program on this machine can send from.
pub(super) fn is_of_this_machine(net: &IpNet) -> bool {
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let own =
        [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(mapped)];
    net.network().to_canonical().is_loopback() || own.iter().any(|address| net.contains(address))
}
