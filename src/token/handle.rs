//! The handle: a task token short enough for a language model to copy.
//!
//! A handle contains the run, the step, the attempt, the run's epoch and the run's nonce, and a
//! keyed hash over them and the data directory's incarnation. The key is enough to verify it: no
//! lookup of the run is needed. Handles are computed on demand and never stored.
//!
//! | form | text after `wh_`, in base32 | needed to verify |
//! |---|---|---|
//! | 1 | run, step, attempt, proof | the key and the run's epoch |
//! | 2 | run, step, attempt, epoch, nonce, proof | the key |
//!
//! Numbers are LEB128, the nonce has 8 bytes and the proof 16. The form follows from the length.
//! Handles of form 1 come from releases without nonces and are only read.

use std::{fmt, sync::Arc};

use data_encoding::BASE32_NOPAD;
use parking_lot::RwLock;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The prefix of every handle.
const PREFIX: &str = "wh_";
/// The length of the proof in bytes.
const MAC_LEN: usize = 16;
/// The length of the nonce in bytes.
const NONCE_LEN: usize = 8;
/// The longest encoded number in bytes: a `u64` at seven bits per byte.
const VARINT_LEN: usize = 10;
/// The length of the longest handle in bytes.
const MOST_BYTES: usize = 4 * VARINT_LEN + NONCE_LEN + MAC_LEN;

/// A secret key for handle proofs.
pub type HandleSecret = Zeroizing<[u8; 32]>;

/// The secrets for handle proofs: the current one makes and verifies proofs, retired ones only
/// verify until their grace period ends. Clones share the secrets.
#[derive(Clone)]
pub struct HandleKey {
    secrets: Arc<RwLock<Secrets>>,
    incarnation: u64,
}

#[derive(Clone)]
struct Secrets {
    current: HandleSecret,
    /// Each with the end of its grace period in Unix seconds.
    retired: Vec<(HandleSecret, u64)>,
}

/// The attempt that a handle identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId {
    /// The run's number.
    pub run: u64,
    /// The step's number within its run.
    pub step: u32,
    /// The attempt's number.
    pub attempt: u32,
    /// The run's epoch when the attempt was opened.
    pub epoch: u32,
    /// The run's nonce; 0 for a run that was created before nonces existed.
    pub nonce: u64,
}

/// Identifies one attempt of a task, with a proof that this host issued it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    run: u64,
    step: u32,
    attempt: u32,
    /// The epoch and the nonce; `None` in form 1.
    stamp: Option<(u32, u64)>,
    mac: [u8; MAC_LEN],
}

/// The reason why a handle is refused. Each maps to a 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// The text is not a handle: a character is missing, added or changed.
    #[error("malformed handle: expected `wh_` and about 50 letters and digits, copied exactly")]
    Malformed,
    /// The proof does not match: the handle was changed, belongs to another host, to an earlier
    /// epoch or to a history that was rolled back, or its key is retired.
    #[error("the handle was not issued for this attempt, or its key is retired")]
    Forged,
}

impl HandleError {
    /// Returns a stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed => "handle_malformed",
            Self::Forged => "handle_forged",
        }
    }
}

impl HandleKey {
    /// Creates the key of one incarnation of a data directory. Handles of other incarnations fail
    /// to verify.
    pub fn new(secret: [u8; 32], incarnation: u64) -> Self {
        let secrets = Secrets { current: Zeroizing::new(secret), retired: Vec::new() };
        Self { secrets: Arc::new(RwLock::new(secrets)), incarnation }
    }

    /// Adds a retired secret, which verifies until `until_s` (Unix seconds) and makes no handles.
    #[must_use]
    pub fn with_retired(self, secret: HandleSecret, until_s: u64) -> Self {
        let mut secrets = self.secrets.write();
        secrets.retired.push((secret, until_s));
        drop(secrets);
        self
    }

    /// Returns a separate key with `next` as the current secret. The previous secret verifies for
    /// another `grace_s` seconds. If `grace_s` is 0, no earlier secret verifies any more.
    #[must_use]
    pub fn rotated(&self, next: [u8; 32], now_s: u64, grace_s: u64) -> Self {
        let mut secrets = self.read(Secrets::clone);
        let before = std::mem::replace(&mut secrets.current, Zeroizing::new(next));
        secrets.retired.push((before, now_s.saturating_add(grace_s)));
        secrets.retired.retain(|(_, until_s)| grace_s > 0 && *until_s > now_s);
        Self { secrets: Arc::new(RwLock::new(secrets)), incarnation: self.incarnation }
    }

    /// Replaces the secrets by those of `other`, in all clones of this key.
    pub fn become_like(&self, other: &Self) {
        let secrets = other.read(Secrets::clone);
        *self.secrets.write() = secrets;
    }

    /// Returns the secret that makes handles.
    pub fn current(&self) -> HandleSecret {
        self.read(|secrets| secrets.current.clone())
    }

    /// Returns the secrets that only verify, each with the end of its grace period in Unix seconds.
    pub fn retired(&self) -> Vec<(HandleSecret, u64)> {
        self.read(|secrets| secrets.retired.clone())
    }

    fn read<T>(&self, look: impl FnOnce(&Secrets) -> T) -> T {
        look(&self.secrets.read())
    }

    /// Returns true if a secret that is valid at `now_s` produces `mac` for the message.
    fn proves(&self, message: &[u8], mac: &[u8; MAC_LEN], now_s: u64) -> bool {
        self.read(|secrets| {
            let graced = secrets.retired.iter().filter(|(_, until_s)| *until_s > now_s);
            std::iter::once(&secrets.current)
                .chain(graced.map(|(secret, _)| secret))
                .any(|secret| bool::from(mac[..].ct_eq(&keyed(secret, message)[..])))
        })
    }

    /// Returns the message that the proof of form 2 covers.
    fn message(&self, of: &AttemptId) -> [u8; 36] {
        let mut message = [0; 36];
        message[..28].copy_from_slice(&self.first_message((of.run, of.step, of.attempt), of.epoch));
        message[28..].copy_from_slice(&of.nonce.to_le_bytes());
        message
    }

    /// Returns the message that the proof of form 1 covers.
    fn first_message(&self, (run, step, attempt): (u64, u32, u32), epoch: u32) -> [u8; 28] {
        let mut message = [0; 28];
        message[..8].copy_from_slice(&self.incarnation.to_le_bytes());
        message[8..16].copy_from_slice(&run.to_le_bytes());
        message[16..20].copy_from_slice(&step.to_le_bytes());
        message[20..24].copy_from_slice(&attempt.to_le_bytes());
        message[24..].copy_from_slice(&epoch.to_le_bytes());
        message
    }
}

fn keyed(secret: &[u8; 32], message: &[u8]) -> [u8; MAC_LEN] {
    *blake3::keyed_hash(secret, message).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl fmt::Debug for HandleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandleKey").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Handle {
    /// Creates the handle of an attempt.
    pub fn mint(key: &HandleKey, of: &AttemptId) -> Self {
        let AttemptId { run, step, attempt, epoch, nonce } = *of;
        let mac = key.read(|secrets| keyed(&secrets.current, &key.message(of)));
        Self { run, step, attempt, stamp: Some((epoch, nonce)), mac }
    }

    /// Parses the text of a handle. Its content must not be trusted before [`Handle::verify`].
    ///
    /// # Errors
    /// Fails when the text is not exactly of the form that [`Handle::expose`] writes.
    pub fn parse(text: &str) -> Result<Self, HandleError> {
        Self::decode(text).ok_or(HandleError::Malformed)
    }

    /// Verifies the handle and returns its attempt. A handle of form 1 has no epoch: `first_epoch`
    /// returns the epoch of its run, if the run was created before nonces existed.
    ///
    /// # Errors
    /// Fails when this host did not issue the handle, or the grace period of its secret has ended
    /// at `now_s`.
    pub fn verify(
        &self,
        key: &HandleKey,
        now_s: u64,
        first_epoch: impl FnOnce(u64) -> Option<u32>,
    ) -> Result<AttemptId, HandleError> {
        let Self { run, step, attempt, stamp, mac } = *self;
        let (epoch, nonce) = match stamp {
            Some(stamp) => stamp,
            None => (first_epoch(run).ok_or(HandleError::Forged)?, 0),
        };
        let of = AttemptId { run, step, attempt, epoch, nonce };
        let first = || key.first_message((run, step, attempt), epoch);
        let proven = match stamp {
            Some(_) => key.proves(&key.message(&of), &mac, now_s),
            None => key.proves(&first(), &mac, now_s),
        };
        if proven { Ok(of) } else { Err(HandleError::Forged) }
    }

    /// Returns the text to hand out. Whoever has it may work on the task.
    pub fn expose(&self) -> String {
        let mut bytes = Vec::with_capacity(MOST_BYTES);
        write_varint(&mut bytes, self.run);
        write_varint(&mut bytes, self.step.into());
        write_varint(&mut bytes, self.attempt.into());
        if let Some((epoch, nonce)) = self.stamp {
            write_varint(&mut bytes, epoch.into());
            bytes.extend_from_slice(&nonce.to_le_bytes());
        }
        bytes.extend_from_slice(&self.mac);
        let mut text = String::with_capacity(PREFIX.len() + BASE32_NOPAD.encode_len(bytes.len()));
        text.push_str(PREFIX);
        BASE32_NOPAD.encode_append(&bytes, &mut text);
        text.make_ascii_lowercase();
        text
    }

    /// Returns the run's number.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the step's number within its run.
    pub fn step(&self) -> u32 {
        self.step
    }

    /// Returns the attempt's number.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    fn decode(text: &str) -> Option<Self> {
        let body = text.strip_prefix(PREFIX)?;
        let longest = BASE32_NOPAD.encode_len(MOST_BYTES);
        // Only lower case is valid: a handle has exactly one spelling.
        if body.len() > longest || body.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let bytes = BASE32_NOPAD.decode(body.to_ascii_uppercase().as_bytes()).ok()?;
        let mut rest = bytes.as_slice();
        let run = read_varint(&mut rest)?;
        let step = read_varint(&mut rest)?.try_into().ok()?;
        let attempt = read_varint(&mut rest)?.try_into().ok()?;
        let mut stamp = None;
        if rest.len() != MAC_LEN {
            let epoch = read_varint(&mut rest)?.try_into().ok()?;
            let (nonce, mac) = rest.split_first_chunk::<NONCE_LEN>()?;
            stamp = Some((epoch, u64::from_le_bytes(*nonce)));
            rest = mac;
        }
        Some(Self { run, step, attempt, stamp, mac: rest.try_into().ok()? })
    }
}

/// Omits the proof: a log line must not allow its reader to work on the task.
impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("run", &self.run)
            .field("step", &self.step)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

fn write_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Accepts only the shortest encoding, so that a number has one spelling.
fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for place in 0..VARINT_LEN {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * place);
        if shifted >> (7 * place) != bits {
            return None;
        }
        value |= shifted;
        if byte & 0x80 == 0 {
            return (bits != 0 || place == 0).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
