//! The small files of a data directory: keys, the admin token, the address of the running host.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::HostError;
use crate::{
    engine::{self, KeyFiles},
    store::{self, StoreError},
    token::{HandleKey, KeyRing, SigningKey},
};

/// The file of the signing key.
const SIGNING: &str = "signing.key";
/// The file of the secret of handles.
const HANDLES: &str = "handle.key";
/// The file of retired keys, which only verify.
const RETIRED: &str = "retired.keys";
/// The file of the owner's token.
const ADMIN: &str = "admin.token";
/// The files that nobody but the owner may read; a start refuses others.
pub(super) const SECRETS: [&str; 4] = [ADMIN, SIGNING, HANDLES, RETIRED];

/// The place where a host has its keys and its owner's token.
pub(super) trait HostKeys: KeyFiles {
    /// Returns the keys of tokens and of handles; creates them at the first start.
    fn open(&self, incarnation: u64) -> Result<(KeyRing, HandleKey), HostError>;

    /// Returns the admin token, if there is one.
    fn admin_token(&self) -> Result<Option<String>, HostError>;
}

/// The retired keys, each with the end of its grace period in Unix seconds.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct RetiredKeys {
    signing: Vec<(String, u64)>,
    handles: Vec<(String, u64)>,
}

impl RetiredKeys {
    /// Returns those of a ring.
    pub(super) fn of(keys: &KeyRing, handles: &HandleKey) -> Self {
        let signing = keys.retired().map(|(key, until_s)| (key.to_pem().to_string(), until_s));
        let secret = |secret: &[u8; 32]| data_encoding::BASE64.encode(secret);
        Self {
            signing: signing.collect(),
            handles: handles.retired().iter().map(|(it, until_s)| (secret(it), *until_s)).collect(),
        }
    }

    /// Adds them to the current keys.
    pub(super) fn behind(
        self,
        signing: SigningKey,
        handles: HandleKey,
    ) -> Result<(KeyRing, HandleKey), String> {
        let (mut keys, mut handles) = (KeyRing::new(signing), handles);
        for (pem, until_s) in self.signing {
            let key = SigningKey::from_pem(pem.as_bytes()).map_err(|error| error.to_string())?;
            keys = keys.with_retired(key, until_s);
        }
        for (text, until_s) in self.handles {
            let secret = data_encoding::BASE64.decode(text.as_bytes()).ok();
            let secret = secret.and_then(|secret| <[u8; 32]>::try_from(secret).ok());
            let secret = secret.ok_or("a handle secret has not 32 bytes")?;
            handles = handles.with_retired(Zeroizing::new(secret), until_s);
        }
        Ok((keys, handles))
    }
}

/// The content of `server.json`, by which commands find the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Server {
    url: String,
    pid: u32,
    version: String,
    incarnation: String,
    /// The SHA-256 of its certificate, if it speaks TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) certificate: Option<String>,
}

impl Server {
    /// Returns the entry of this process.
    pub(super) fn new(url: &str, incarnation: u64, certificate: Option<String>) -> Self {
        Self {
            url: url.to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: incarnation.to_string(),
            certificate,
        }
    }
}

/// The files of one data directory.
#[derive(Clone)]
pub(super) struct DataFiles {
    dir: PathBuf,
    /// True once the address of the host was removed for good.
    is_withdrawn: Arc<Mutex<bool>>,
}

impl DataFiles {
    /// Opens the files of `dir`, which must exist.
    pub(super) fn open(dir: &Path) -> Result<Self, HostError> {
        let it = Self { dir: dir.to_owned(), is_withdrawn: Arc::default() };
        for name in ["bundles", "work"] {
            let path = it.dir.join(name);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|error| fault("create", &path, error))?;
            close(&path);
        }
        it.clear_copies();
        store::clear_trials(dir);
        Ok(it)
    }

    /// Removes the partial copies of backups of a host that died.
    fn clear_copies(&self) {
        let Ok(entries) = fs::read_dir(self.dir.join("work")) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(".backup-") {
                // A copy that cannot be removed takes space but does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Notes since when a database has the directories of runs: those that are older may belong to
    /// another one, and are left alone when this one does not know their runs.
    pub(super) fn claim_work(&self, incarnation: u64, now_ms: u64) {
        let work = self.dir.join("work");
        if let Err(error) = engine::claim_work(&work, &incarnation.to_string(), now_ms) {
            tracing::warn!(%error, "the directories of deleted runs stay: `work` cannot be written");
        }
    }

    /// Returns true if the directory has keys of its own.
    pub(super) fn has_keys(&self) -> bool {
        self.dir.join(SIGNING).exists()
    }

    fn keys(&self, incarnation: u64) -> Result<(KeyRing, HandleKey), HostError> {
        let path = self.dir.join(RETIRED);
        let wrong = |error: String| fault("read", &path, error);
        let retired: RetiredKeys = match self.read_secret(&path)? {
            Some(text) => {
                serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?
            }
            None => RetiredKeys::default(),
        };
        let handles = HandleKey::new(self.handle_secret()?, incarnation);
        retired.behind(self.signing_key()?, handles).map_err(wrong)
    }

    fn signing_key(&self) -> Result<SigningKey, HostError> {
        let path = self.dir.join(SIGNING);
        if let Some(pem) = self.read_secret(&path)? {
            return SigningKey::from_pem(&pem).map_err(|error| fault("read", &path, error));
        }
        let key = SigningKey::from_seed(&random_bytes());
        self.write_secret(&path, key.to_pem().as_bytes())?;
        Ok(key)
    }

    fn handle_secret(&self) -> Result<[u8; 32], HostError> {
        let path = self.dir.join(HANDLES);
        if let Some(bytes) = self.read_secret(&path)? {
            return bytes
                .as_slice()
                .try_into()
                .map_err(|_| fault("read", &path, "it does not have 32 bytes"));
        }
        let secret = random_bytes();
        self.write_secret(&path, &secret)?;
        Ok(secret)
    }

    /// Writes the admin token.
    pub(super) fn put_admin_token(&self, token: &str) -> Result<(), HostError> {
        self.write_secret(&self.dir.join(ADMIN), token.as_bytes())
    }

    /// Publishes the address of the host, unless it was removed.
    pub(super) fn put_server(&self, server: &Server) -> Result<(), HostError> {
        let server = serde_json::to_vec(server).expect("plain data");
        // Held until the file is there: a stop then removes it.
        let is_withdrawn = self.is_withdrawn.lock();
        if *is_withdrawn {
            return Ok(());
        }
        self.write_secret(&self.dir.join("server.json"), &server)
    }

    /// Removes the address of the host for good, unless another host has replaced it.
    pub(super) fn remove_server(&self, url: &str) {
        let mut is_withdrawn = self.is_withdrawn.lock();
        *is_withdrawn = true;
        let path = self.dir.join("server.json");
        let said = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_ours = |it: &Server| it.url == url && it.pid == std::process::id();
        if said.as_ref().is_some_and(is_ours) {
            // A file that is already gone is fine.
            let _ = fs::remove_file(path);
        }
    }

    fn read_secret(&self, path: &Path) -> Result<Option<Vec<u8>>, HostError> {
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault("read", path, error)),
        };
        if meta.mode() & 0o077 != 0 {
            let reason = format!(
                "others can read it (mode {:o}); run `chmod 600 {}`",
                meta.mode() & 0o777,
                path.display()
            );
            return Err(fault("trust", path, reason));
        }
        fs::read(path).map(Some).map_err(|error| fault("read", path, error))
    }

    /// Writes a file that only its owner can read, atomically.
    fn write_secret(&self, path: &Path, bytes: &[u8]) -> Result<(), HostError> {
        let draft = path.with_extension("new");
        let write = || {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            crate::fault::point("host.secret_drafted");
            fs::rename(&draft, path)?;
            // If a crash could undo the new key, the tokens signed with it would become invalid.
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error: std::io::Error| fault("write", path, error))
    }
}

impl HostKeys for DataFiles {
    fn open(&self, incarnation: u64) -> Result<(KeyRing, HandleKey), HostError> {
        self.keys(incarnation)
    }

    fn admin_token(&self) -> Result<Option<String>, HostError> {
        let text = self.read_secret(&self.dir.join(ADMIN))?;
        Ok(text.and_then(|bytes| String::from_utf8(bytes).ok()).map(|t| t.trim().to_owned()))
    }
}

impl KeyFiles for DataFiles {
    fn seed(&self) -> [u8; 32] {
        random_bytes()
    }

    fn keep(&self, keys: &KeyRing, handles: &HandleKey) -> Result<(), String> {
        let retired = RetiredKeys::of(keys, handles);
        let retired = Zeroizing::new(serde_json::to_vec(&retired).expect("plain data"));
        let (pem, secret) = (keys.current().to_pem(), handles.current());
        // From here on the retired keys verify, even if the following writes fail.
        let all: [(&str, &[u8]); 3] =
            [(RETIRED, &retired), (SIGNING, pem.as_bytes()), (HANDLES, secret.as_slice())];
        for (name, bytes) in all {
            self.write_secret(&self.dir.join(name), bytes).map_err(|error| error.to_string())?;
            crate::fault::point("host.key_kept");
        }
        Ok(())
    }

    fn keep_admin(&self, token: &str) -> Result<(), String> {
        self.put_admin_token(token).map_err(|error| error.to_string())
    }
}

/// Returns the refusal of a data directory that another process has, if one has it.
pub(super) fn owned(dir: &Path) -> Option<StoreError> {
    let path = dir.join("lock");
    let Err(fs::TryLockError::WouldBlock) = fs::File::open(&path).ok()?.try_lock_shared() else {
        return None;
    };
    let pid = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u32>().ok());
    let pid = pid.filter(|pid| *pid != 0).map_or_else(|| "unknown".to_owned(), |it| it.to_string());
    Some(StoreError::Owned { path: dir.display().to_string(), pid })
}

/// Takes the access of other users to a directory, which an earlier release or somebody else made.
fn close(path: &Path) {
    let closed = fs::metadata(path).and_then(|meta| match meta.mode() & 0o077 {
        0 => Ok(()),
        _ => fs::set_permissions(path, fs::Permissions::from_mode(0o700)),
    });
    if let Err(error) = closed {
        tracing::warn!(path = %path.display(), %error, "other users may read this directory");
    }
}

/// Returns the error of an admin token that could not be stored.
pub(super) fn unkept(dir: &Path, reason: String) -> HostError {
    fault("write", &dir.join(ADMIN), reason)
}

fn fault(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> HostError {
    HostError::File { what, path: path.display().to_string(), reason: reason.to_string() }
}

/// Returns 32 bytes from the system's random number generator.
pub(super) fn random_bytes() -> [u8; 32] {
    // A version-4 UUID has 122 random bits; four of them, hashed, give 256.
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        hasher.update(uuid::Uuid::new_v4().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_was_removed_is_not_published_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = DataFiles::open(dir.path()).unwrap();
        let (url, path) = ("http://127.0.0.1:7700", dir.path().join("server.json"));
        let server = Server::new(url, 1, None);
        files.put_server(&server).unwrap();
        assert!(path.exists());
        // A stop removes it while a new certificate is on its way to the same file.
        let renewing = files.clone();
        files.remove_server(url);
        renewing.put_server(&server).unwrap();
        assert!(!path.exists());
    }
}
