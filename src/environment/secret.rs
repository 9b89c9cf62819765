//! Configuration values that may be secrets: stored as references, read when used.

use std::{fmt, io, io::Read as _, path::PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::json;
use zeroize::Zeroizing;

use super::provider;
use crate::protocol::{SecretAccessEvent, SecretAccessOutcome, SecretSource};

/// The maximum size of a secret in bytes.
const MAX_LEN: u64 = 64 * 1024;

/// A configured text: a literal, or a reference to a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// A literal, which is not a secret.
    Plain(String),
    /// `{ env = "NAME" }`: a variable of the host's environment.
    Env {
        /// The variable's name.
        name: String,
        /// The text before the secret: `"Bearer "`.
        prefix: String,
    },
    /// `{ file = "PATH" }`: a file, without its final line break.
    File {
        /// The file.
        path: PathBuf,
        /// The text before the secret.
        prefix: String,
    },
}

/// A text that is wiped when dropped and never shown.
pub struct Secret {
    text: Zeroizing<String>,
    /// The offset of the secret itself, after the prefix.
    begins: usize,
}

/// The reason why a referenced text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The variable is not set.
    #[error("read the environment variable {name}: it is not set for the host")]
    Unset {
        /// Its name.
        name: String,
    },
    /// The variable or file is not text.
    #[error("read {place}: it is not UTF-8")]
    NotText {
        /// The variable or file.
        place: String,
    },
    /// The file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is too long to be a secret.
    #[error("read {}: it has more than {MAX_LEN} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

impl Text {
    /// Returns the source, if the text is a secret.
    pub fn source(&self) -> Option<SecretSource> {
        let (provider, config) = match self {
            Self::Plain(_) => return None,
            Self::Env { name, .. } => (provider::ENV, json!({ "variable": name })),
            Self::File { path, .. } => (provider::FILE, json!({ "path": path.to_string_lossy() })),
        };
        Some(SecretSource::Custom { provider: provider.to_owned(), config })
    }

    /// Returns the event for a request of the secret; `None` for a literal. `failed` is the reason
    /// of a failure.
    pub fn accessed(
        &self,
        name: &str,
        failed: Option<String>,
        now_ms: u64,
    ) -> Option<SecretAccessEvent> {
        let outcome = match failed {
            None => SecretAccessOutcome::Resolved,
            Some(_) => SecretAccessOutcome::Failed,
        };
        let mut event = SecretAccessEvent::new(name, self.source()?, outcome, now_ms);
        event.reason = failed;
        Some(event)
    }

    /// Reads the current value.
    ///
    /// # Errors
    /// Fails when the reference cannot be read or is not text.
    pub fn resolve(&self) -> Result<Secret, SecretError> {
        let (prefix, text) = match self {
            Self::Plain(text) => return Ok(Secret::of(Zeroizing::new(text.clone()))),
            Self::Env { name, prefix } => (prefix, variable(name)?),
            Self::File { path, prefix } => (prefix, file(path)?),
        };
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        // Allocated at full size, because growing would leave a copy in memory.
        let mut whole = Zeroizing::new(String::with_capacity(prefix.len() + text.len()));
        whole.push_str(prefix);
        whole.push_str(text);
        Ok(Secret { text: whole, begins: prefix.len() })
    }
}

fn variable(name: &str) -> Result<Zeroizing<String>, SecretError> {
    match std::env::var(name) {
        Ok(text) => Ok(Zeroizing::new(text)),
        Err(std::env::VarError::NotPresent) => Err(SecretError::Unset { name: name.to_owned() }),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(SecretError::NotText { place: format!("the environment variable {name}") })
        }
    }
}

fn file(path: &PathBuf) -> Result<Zeroizing<String>, SecretError> {
    let failed = |source| SecretError::Read { path: path.clone(), source };
    // `O_NONBLOCK`, because opening a pipe would block. The checks below refuse pipes and devices.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = std::fs::File::from(opened.map_err(|error| failed(error.into()))?);
    let meta = file.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(std::io::Error::other("it is not a regular file")));
    }
    let length = meta.len();
    let mut bytes = Zeroizing::new(Vec::with_capacity(
        usize::try_from(length.min(MAX_LEN)).unwrap_or_default() + 1,
    ));
    file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(SecretError::TooLong { path: path.clone() });
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| SecretError::NotText { place: path.display().to_string() })?;
    Ok(Zeroizing::new(text.to_owned()))
}

impl Secret {
    /// Returns bytes as a text without its final line break; `None` if they are not UTF-8.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        Some(Self::of(Zeroizing::new(text.to_owned())))
    }

    fn of(text: Zeroizing<String>) -> Self {
        Self { text, begins: 0 }
    }

    /// Returns the secret without its prefix.
    pub(super) fn bare(&self) -> &str {
        &self.text[self.begins..]
    }

    /// Returns the whole text.
    pub fn expose(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

/// The table form of a reference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    env: Option<String>,
    file: Option<PathBuf>,
    #[serde(default)]
    prefix: String,
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, { env = \"NAME\" } or { file = \"PATH\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text::Plain(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Text, A::Error> {
        let Reference { env, file, prefix } =
            Reference::deserialize(MapAccessDeserializer::new(map))?;
        match (env, file) {
            (Some(name), None) if name.is_empty() || name.contains(['=', '\0']) => {
                Err(de::Error::custom(format!("{name:?} is not a variable's name")))
            }
            (Some(name), None) => Ok(Text::Env { name, prefix }),
            (None, Some(path)) => Ok(Text::File { path, prefix }),
            (None, None) | (Some(_), Some(_)) => {
                Err(de::Error::custom("give either `env` or `file`"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(toml: &str) -> Result<Text, String> {
        #[derive(Deserialize)]
        struct Holder {
            it: Text,
        }
        toml::from_str::<Holder>(toml).map(|it| it.it).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_file_is_read_when_it_is_used_and_without_its_line_break() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let it = text(&format!("it = {{ file = {path:?}, prefix = \"Bearer \" }}")).unwrap();
        assert!(matches!(it.resolve(), Err(SecretError::Read { .. })));
        std::fs::write(&path, "s3cret\r\n").unwrap();
        assert_eq!(it.resolve().unwrap().expose(), "Bearer s3cret");
        std::fs::write(&path, vec![b'x'; 70_000]).unwrap();
        assert!(matches!(it.resolve(), Err(SecretError::TooLong { .. })));
    }

    #[test]
    fn a_variable_that_is_not_set_is_named() {
        let it = text("it = { env = \"MOONSWARM_TEST_NOT_SET\" }").unwrap();
        let error = it.resolve().unwrap_err().to_string();
        assert!(error.contains("MOONSWARM_TEST_NOT_SET"), "{error}");
    }

    #[test]
    fn a_reference_is_one_thing_and_nothing_else() {
        assert_eq!(text("it = \"plain\""), Ok(Text::Plain("plain".to_owned())));
        for (toml, part) in [
            ("it = {}", "either `env` or `file`"),
            ("it = { env = \"A\", file = \"b\" }", "either `env` or `file`"),
            ("it = { evn = \"A\" }", "unknown field `evn`"),
            ("it = { env = \"\" }", "not a variable's name"),
            ("it = 7", "a text, { env"),
        ] {
            let error = text(toml).unwrap_err();
            assert!(error.contains(part), "{toml}: {error}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Text::Plain("hush".to_owned()).resolve().unwrap();
        assert!(!format!("{secret:?}").contains("hush"));
    }
}
