//! The configuration that a blueprint finds: what the command line says, over the `moonswarm.toml` of
//! the current directory, with the names that the one nearest to the blueprint declares.
//!
//! A file beside a blueprint says what blueprints may name: operators, environments, secrets. What a
//! host is (its data directory, its address) is only said by the current directory's, or by --config.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::exit::Stop;
use crate::{
    config::{Config, DEFAULT_FILE, Layer},
    engine::ConfigItem,
};

/// The layers that hold for every blueprint of a command line.
#[derive(Debug, Clone)]
pub struct Beside {
    flags: Layer,
    file: Layer,
    /// The file that --config names: then there is no other.
    named: Option<PathBuf>,
}

impl Beside {
    /// Reads the file that is named, or the current directory's if there is one.
    ///
    /// # Errors
    /// A file that cannot be read, or has a mistake.
    pub fn new(flags: Layer, named: Option<&Path>) -> Result<Self, Stop> {
        Ok(Self { flags, file: read(named)?, named: named.map(Path::to_owned) })
    }

    /// The file that --config names.
    pub fn named(&self) -> Option<&Path> {
        self.named.as_deref()
    }

    /// The configuration without a blueprint.
    pub fn config(&self) -> Config {
        Config::from(self.flags.clone().over(self.file.clone()))
    }

    /// The settings of a configuration with their origins, for people.
    pub fn shown(&self, config: &Config) -> Vec<ConfigItem> {
        crate::config::shown(config, &self.flags, &self.file)
    }

    /// The configuration for a blueprint's file, or for a directory of blueprints.
    ///
    /// # Errors
    /// As [`Beside::new`].
    pub fn config_of(&self, path: &Path) -> Result<Config, Stop> {
        let Some(file) = nearest(path).filter(|_| self.named.is_none()) else {
            return Ok(self.config());
        };
        let Layer { operators, environments, secrets, vault, .. } = read(Some(&file))?;
        let names = Layer { operators, environments, secrets, vault, ..Layer::default() };
        Ok(Config::from(self.flags.clone().over(names).over(self.file.clone())))
    }
}

fn read(named: Option<&Path>) -> Result<Layer, Stop> {
    Layer::read(named).map_err(|error| Stop::usage(format!("{:#}", anyhow::Error::from(error))))
}

/// The nearest configuration above a path: up to the current directory, whose own file holds anyway,
/// or to the root of the repository. One that belongs to somebody else than the blueprint is not read.
fn nearest(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let here = std::env::current_dir().and_then(|dir| dir.canonicalize()).ok();
    let owner = path.metadata().ok()?.uid();
    let dir = if path.is_dir() { path.as_path() } else { path.parent()? };
    for dir in dir.ancestors().take_while(|dir| here.as_deref() != Some(*dir)) {
        let file = dir.join(DEFAULT_FILE);
        if file.metadata().is_ok_and(|it| it.is_file() && it.uid() == owner) {
            return Some(file);
        }
        if dir.join(".git").exists() {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_file_declares_the_names_and_not_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        put("moonswarm.toml", "data = \"far\"\n[operators.far]\nkind = \"echo\"");
        put("a/moonswarm.toml", "data = \"near\"\n[operators.near]\nkind = \"echo\"");
        let deep = put("a/b/x.lua", "");
        let beside = Beside::new(Layer::default(), None).unwrap();
        let names = |config: &Config| -> Vec<String> {
            config.operators.iter().map(|(name, _)| name.to_owned()).collect()
        };
        let config = beside.config_of(&deep).unwrap();
        assert_eq!(names(&config), ["near"]);
        assert_eq!(config.data, Path::new(".moonswarm"));
        let above = put("x.lua", "");
        assert_eq!(names(&beside.config_of(&above).unwrap()), ["far"]);
        let named =
            Beside::new(Layer::default(), Some(&dir.path().join("moonswarm.toml"))).unwrap();
        assert_eq!(names(&named.config_of(&deep).unwrap()), ["far"]);
        std::fs::create_dir(dir.path().join("a/b/.git")).unwrap();
        assert!(names(&beside.config_of(&deep).unwrap()).is_empty());
    }
}
