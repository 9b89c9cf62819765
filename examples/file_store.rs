//! A scope of state in files of one's own: `cargo run --example file_store`.
//!
//! Each value is a file, replaced as a whole: a write that comes twice leaves the same. So the
//! names of changes (`write_keyed`) are not needed here.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use moonswarm::{
    Coded, Content, Effect, ExitReason, Host, HostConfig, Operator, OperatorError, OperatorInput,
    OperatorOutput, Scope, StateStore,
    protocol::{SearchResult, StateError},
};
use serde_json::Value;

/// Keeps the values of one scope in a directory.
struct Files(PathBuf);

impl Files {
    /// The file of a key: its bytes in hex, so that no key leads anywhere else.
    fn path(&self, key: &str) -> PathBuf {
        let name: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(format!("{name}.json"))
    }
}

fn key_of(name: &str) -> Option<String> {
    let hex = name.strip_suffix(".json")?;
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    String::from_utf8((0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?).ok()
}

fn not_written(error: io::Error) -> StateError {
    // It is tried again, until it succeeds.
    StateError::WriteFailed(error.to_string())
}

#[async_trait]
impl StateStore for Files {
    async fn read(&self, _: &Scope, key: &str) -> Result<Option<Value>, StateError> {
        let text = match std::fs::read(self.path(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| StateError::Other(error.into()))?,
        };
        serde_json::from_slice(&text).map_err(|error| StateError::Serialization(error.to_string()))
    }

    async fn write(&self, _: &Scope, key: &str, value: Value) -> Result<(), StateError> {
        let path = self.path(key);
        let next = path.with_extension("next");
        std::fs::create_dir_all(&self.0).map_err(not_written)?;
        std::fs::write(&next, value.to_string()).map_err(not_written)?;
        std::fs::File::open(&next).and_then(|file| file.sync_all()).map_err(not_written)?;
        std::fs::rename(&next, &path).map_err(not_written)
    }

    async fn delete(&self, _: &Scope, key: &str) -> Result<(), StateError> {
        match std::fs::remove_file(self.path(key)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_written(error)),
            _ => Ok(()),
        }
    }

    async fn list(&self, _: &Scope, prefix: &str) -> Result<Vec<String>, StateError> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Ok(Vec::new()) };
        let names = entries.flatten().filter_map(|it| key_of(it.file_name().to_str()?));
        let mut keys: Vec<String> = names.filter(|key| key.starts_with(prefix)).collect();
        keys.sort();
        Ok(keys)
    }

    async fn search(&self, _: &Scope, _: &str, _: usize) -> Result<Vec<SearchResult>, StateError> {
        Ok(Vec::new())
    }
}

/// Notes what it is asked under `tide`, by an effect: the host writes it after the commit.
struct Scribe;

#[async_trait]
impl Operator for Scribe {
    async fn execute(&self, input: OperatorInput) -> Result<OperatorOutput, OperatorError> {
        let mut output = OperatorOutput::new(Content::text("noted"), ExitReason::Complete);
        output.effects.push(Effect::WriteMemory {
            scope: notes(),
            key: "tide".to_owned(),
            value: input.message.as_text().unwrap_or_default().into(),
            tier: None,
            lifetime: None,
            content_kind: None,
            salience: None,
            ttl: None,
        });
        Ok(output)
    }
}

fn notes() -> Scope {
    Scope::Custom("notes".into())
}

const BLUEPRINT: &str = r#"return require("swarm").blueprint { name = "notes",
  agents = { scribe = { operator = "scribe" } },
  flow = function(ctx)
    local notes = ctx:scope { custom = "notes" }
    notes:set("moon", { is = "round" })
    notes:set("sun", "bright")
    notes:delete("sun")
    ctx:run("scribe", "low")
    return { notes:get("moon").is, notes:get("tide"), notes:list("") }
  end }"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (data, kept) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let files = Arc::new(Files(kept.path().to_owned()));
    let config = HostConfig {
        code: Coded::default().and_store(&notes(), files).and_operator("scribe", Scribe),
        ..HostConfig::new(data.path())
    };
    let host = Host::open(config).await?;
    let run = host.run(BLUEPRINT, &Value::Null).await?;
    println!("{}", run.output.expect("it completed"));
    println!("{}", std::fs::read_dir(kept.path())?.count());
    host.stop(Duration::from_secs(5)).await;
    Ok(())
}
