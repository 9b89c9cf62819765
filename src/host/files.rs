//! The small files of a data directory: keys, the admin token, where the owner listens.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::HostError;
use crate::token::{KeyRing, SigningKey};

/// The files of one data directory.
pub(super) struct DataFiles {
    dir: PathBuf,
}

impl DataFiles {
    /// The files of `dir`, which exists.
    pub(super) fn open(dir: &Path) -> Result<Self, HostError> {
        let it = Self { dir: dir.to_owned() };
        for name in ["bundles", "work"] {
            let path = it.dir.join(name);
            fs::create_dir_all(&path).map_err(|error| fault("create", &path, error))?;
        }
        it.clear_copies();
        Ok(it)
    }

    /// Removes the copies that a backup was making when its host died.
    fn clear_copies(&self) {
        let Ok(entries) = fs::read_dir(self.dir.join("work")) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(".backup-") {
                // What cannot be removed takes room and does no harm.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The key that signs tokens; made at the first start.
    pub(super) fn signing_keys(&self) -> Result<KeyRing, HostError> {
        let path = self.dir.join("signing.key");
        let key = match self.read_secret(&path)? {
            Some(pem) => SigningKey::from_pem(&pem).map_err(|error| fault("read", &path, error))?,
            None => {
                let key = SigningKey::from_seed(&random_bytes());
                self.write_secret(&path, key.to_pem().as_bytes())?;
                key
            }
        };
        Ok(KeyRing::new(key))
    }

    /// The secret that handles are made with; made at the first start.
    pub(super) fn handle_secret(&self) -> Result<[u8; 32], HostError> {
        let path = self.dir.join("handle.key");
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

    /// The admin token, if there is one.
    pub(super) fn admin_token(&self) -> Result<Option<String>, HostError> {
        let text = self.read_secret(&self.dir.join("admin.token"))?;
        Ok(text.and_then(|bytes| String::from_utf8(bytes).ok()).map(|t| t.trim().to_owned()))
    }

    /// Writes the admin token.
    pub(super) fn put_admin_token(&self, token: &str) -> Result<(), HostError> {
        self.write_secret(&self.dir.join("admin.token"), token.as_bytes())
    }

    /// Says where the owner listens.
    pub(super) fn put_server(&self, url: &str, incarnation: u64) -> Result<(), HostError> {
        let server = serde_json::json!({
            "url": url,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "incarnation": incarnation.to_string(),
        });
        self.write_secret(&self.dir.join("server.json"), server.to_string().as_bytes())
    }

    /// Says that nobody listens any more, unless another host says where it does.
    pub(super) fn remove_server(&self, url: &str) {
        #[derive(serde::Deserialize)]
        struct Server {
            url: String,
            pid: u32,
        }
        let path = self.dir.join("server.json");
        let said = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_ours = |it: &Server| it.url == url && it.pid == std::process::id();
        if said.as_ref().is_some_and(is_ours) {
            // A file that is gone already says the same.
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

    /// Writes a file that only its owner can read, whole or not at all.
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
            fs::rename(&draft, path)
        };
        write().map_err(|error: std::io::Error| fault("write", path, error))
    }
}

fn fault(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> HostError {
    HostError::File { what, path: path.display().to_string(), reason: reason.to_string() }
}

/// 32 bytes from the system's generator.
fn random_bytes() -> [u8; 32] {
    // A version-4 UUID has 122 random bits; four of them hashed give the whole 256.
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        hasher.update(uuid::Uuid::new_v4().as_bytes());
    }
    *hasher.finalize().as_bytes()
}
