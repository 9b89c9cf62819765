//! The keys of a host that is a node of a cluster: in the database, sealed with the key of the cluster, so
//! that tokens and handles are good at every node.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    HostError,
    files::{DataFiles, HostKeys, RetiredKeys, random_bytes},
};
use crate::{
    engine::KeyFiles,
    store::{Member, Seat, StoreError},
    token::{HandleKey, KeyRing, SigningKey},
};

/// The name of the keys in the database.
const RING: &str = "ring";
/// The name of the admin token in the database.
const ADMIN: &str = "admin";

/// The keys, as they are sealed.
#[derive(Serialize, Deserialize)]
struct Ring {
    signing: String,
    handles: String,
    retired: RetiredKeys,
}

/// The keys that the nodes of a cluster share.
pub(super) struct ClusterKeys {
    member: Arc<Member>,
    files: DataFiles,
}

impl ClusterKeys {
    /// Returns those of a node that has the runs.
    pub(super) fn new(member: Arc<Member>, files: DataFiles) -> Self {
        Self { member, files }
    }

    fn put(&self, keys: &KeyRing, handles: &HandleKey) -> Result<(), StoreError> {
        let ring = Ring {
            signing: keys.current().to_pem().to_string(),
            handles: data_encoding::BASE64.encode(handles.current().as_slice()),
            retired: RetiredKeys::of(keys, handles),
        };
        let text = Zeroizing::new(serde_json::to_vec(&ring).expect("plain data"));
        self.member.put_secrets(&[(RING, &text)])
    }
}

impl HostKeys for ClusterKeys {
    fn open(&self, incarnation: u64) -> Result<(KeyRing, HandleKey), HostError> {
        let wrong = |reason: String| {
            HostError::Store(StoreError::Damaged { what: "the keys of the cluster".into(), reason })
        };
        if let Some(text) = self.member.seat().secret(RING)? {
            let ring: Ring =
                serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
            let signing = SigningKey::from_pem(ring.signing.as_bytes());
            let signing = signing.map_err(|error| wrong(error.to_string()))?;
            let secret = data_encoding::BASE64.decode(ring.handles.as_bytes()).ok();
            let secret = secret.and_then(|secret| <[u8; 32]>::try_from(secret).ok());
            let secret = secret.ok_or_else(|| wrong("a handle secret has not 32 bytes".into()))?;
            return ring
                .retired
                .behind(signing, HandleKey::new(secret, incarnation))
                .map_err(wrong);
        }
        // The first node of a cluster may have been a host of its own, whose tokens stay good.
        let (keys, handles) = match self.files.has_keys() {
            true => HostKeys::open(&self.files, incarnation)?,
            false => (
                KeyRing::new(SigningKey::from_seed(&random_bytes())),
                HandleKey::new(random_bytes(), incarnation),
            ),
        };
        self.put(&keys, &handles)?;
        Ok((keys, handles))
    }

    fn admin_token(&self) -> Result<Option<String>, HostError> {
        match admin_token(self.member.seat())? {
            Some(token) => Ok(Some(token)),
            None if self.files.has_keys() => {
                let token = HostKeys::admin_token(&self.files)?;
                if let Some(token) = &token {
                    self.member.put_secrets(&[(ADMIN, token.as_bytes())])?;
                }
                Ok(token)
            }
            None => Ok(None),
        }
    }
}

impl KeyFiles for ClusterKeys {
    fn seed(&self) -> [u8; 32] {
        random_bytes()
    }

    fn keep(&self, keys: &KeyRing, handles: &HandleKey) -> Result<(), String> {
        self.put(keys, handles).map_err(|error| error.to_string())
    }

    fn keep_admin(&self, token: &str) -> Result<(), String> {
        self.member.put_secrets(&[(ADMIN, token.as_bytes())]).map_err(|error| error.to_string())?;
        self.files.put_admin_token(token).map_err(|error| error.to_string())
    }
}

/// Returns the admin token of a cluster, if there is one yet.
pub(super) fn admin_token(seat: &Seat) -> Result<Option<String>, StoreError> {
    let text = seat.secret(ADMIN)?;
    Ok(text.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok()))
}
