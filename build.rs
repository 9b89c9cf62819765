//! Asks the linker for packed relocations where the C library can read them.
//!
//! The tables of a program of this size are 2 MB otherwise, and every start reads all of them. The
//! GNU C library knows the packed form since 2.36; one that is older would refuse the program.

use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| env::var(name).is_ok_and(|it| it == value);
    let native = env::var("HOST") == env::var("TARGET");
    if native && is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") && packs()
    {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the C library of this machine is 2.36 or later, as `getconf` says ("glibc 2.36").
fn packs() -> bool {
    let Ok(said) = Command::new("getconf").arg("GNU_LIBC_VERSION").output() else { return false };
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut version = said.trim().rsplit(' ').next().unwrap_or_default().split('.');
    let mut number = || version.next().and_then(|it| it.parse::<u32>().ok());
    matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (2, 36))
}
