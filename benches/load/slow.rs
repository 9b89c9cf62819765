//! A disk whose every sync takes longer: a library that is put before the C library's.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static void wait_a_little(void) {
  struct timespec t = { MS / 1000, (MS % 1000) * 1000000L };
  nanosleep(&t, 0);
}
int fsync(int fd) {
  int (*next)(int) = dlsym(RTLD_NEXT, "fsync");
  wait_a_little();
  return next(fd);
}
int fdatasync(int fd) {
  int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
  wait_a_little();
  return next(fd);
}
"#;

/// The compiled library.
pub struct Shim(PathBuf);

impl Shim {
    /// Compiles it into `dir`, for `ms` milliseconds a sync.
    pub fn compile(dir: &Path, ms: u32) -> Result<Self> {
        let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
        std::fs::write(&source, SOURCE)?;
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", &format!("-DMS={ms}"), "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .status()
            .context("run cc, which --slow-sync needs")?;
        ensure!(compiled.success(), "cc could not compile {}", source.display());
        Ok(Self(library))
    }

    /// Returns the variables of the daemon's environment.
    pub fn env(&self) -> Vec<(&'static str, &Path)> {
        vec![("LD_PRELOAD", self.0.as_path())]
    }
}
