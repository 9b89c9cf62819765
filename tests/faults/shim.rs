//! A disk that fails as the test says: `tests/support/faults.c` put before the program.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{Daemon, repository};

/// The shim, its control file and its notes.
pub struct Shim {
    library: PathBuf,
    control: PathBuf,
    /// Which files it concerns.
    concerns: String,
}

impl Shim {
    /// Compiles it; it concerns files with this in their names, or with this as their end, if it
    /// ends with `$`.
    pub fn build(dir: &Path, concerns: &str) -> Self {
        let library = dir.join("faults.so");
        let compiled = Command::new("cc")
            .args(["-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(repository("tests/support/faults.c"))
            .args(["-ldl", "-lpthread"])
            .status()
            .unwrap();
        assert!(compiled.success());
        Self { library, control: dir.join("fault"), concerns: concerns.to_owned() }
    }

    /// What a program needs in its environment.
    pub fn env(&self) -> [(&str, &str); 3] {
        [
            ("LD_PRELOAD", self.library.to_str().unwrap()),
            ("MOONSWARM_FAULT_FILE", self.control.to_str().unwrap()),
            ("MOONSWARM_FAULT_PATH", &self.concerns),
        ]
    }

    /// A daemon over it.
    pub fn start(&self, data: &Path) -> Daemon {
        Daemon::launch(data, &self.env()).expect("it starts on a disk that works")
    }

    /// From now on the disk fails so.
    pub fn fail(&self, how: &str) {
        // Whole or not at all: the program reads it at any moment.
        let draft = self.control.with_extension("new");
        std::fs::write(&draft, how).unwrap();
        std::fs::rename(&draft, &self.control).unwrap();
    }

    /// The disk works again; what happened is forgotten.
    pub fn heal(&self) {
        std::fs::remove_file(&self.control).unwrap();
        let _ = std::fs::remove_file(self.control.with_extension("log"));
    }

    /// The notes of the library: the faults that happened, and the calls that synced.
    pub fn notes(&self) -> Vec<String> {
        let log = format!("{}.log", self.control.display());
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Whether a write or a sync has failed since the disk began to fail so.
    pub fn has_hit(&self, how: &str) -> bool {
        self.notes().iter().any(|note| note == how)
    }
}
