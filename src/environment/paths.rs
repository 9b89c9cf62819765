//! The files that a child may read and write, enforced by Landlock.

use std::{
    fmt::Display,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, Scope,
};

/// The paths that every child may read and execute: programs, libraries, and the files these look
/// up. In `/proc`, the entries of processes outside the boundary stay closed: Landlock prevents
/// tracing them, which protects their memory, environment, files and root.
const READ: &[&str] = &[
    "/bin",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/terminfo",
    "/etc/timezone",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/run/systemd/resolve",
    "/sbin",
    "/sys/devices/system/cpu",
    "/usr",
];
/// The paths that every child may also write.
const WRITE: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];
/// The newest known set of rights. Older kernels enforce those that they know.
const KNOWN: ABI = ABI::V9;

/// Checks that this kernel supports Landlock.
pub(super) fn supported() -> Result<(), String> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .map(drop)
        .map_err(|_| "this kernel has no Landlock".to_owned())
}

/// Prevents this process and its children from changing mounts, and from inspecting processes
/// outside. Access to files is unchanged.
pub(super) fn stay() -> Result<(), String> {
    static RULES: OnceLock<RulesetCreated> = OnceLock::new();
    enter(&RULES, || {
        let root = PathFd::new("/").map_err(|error| failed(&error))?;
        // One right is handled, and granted everywhere. The rest comes with any Landlock domain.
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::Refer)
            .and_then(Ruleset::create)
            .and_then(|rules| rules.add_rule(PathBeneath::new(root, AccessFs::Refer)))
            .map_err(|error| failed(&error))
    })
}

/// Prevents this process and its children from inspecting processes outside, and from connecting to
/// abstract sockets of these. They may mount in namespaces of their own.
///
/// A domain without rights over files leaves mounts alone; it must restrict something.
pub(super) fn keep_to_itself() -> Result<(), String> {
    static RULES: OnceLock<RulesetCreated> = OnceLock::new();
    enter(&RULES, || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::AbstractUnixSocket)
            .and_then(Ruleset::create)
            .map_err(|error| failed(&error))
    })
}

/// Restricts the calling thread, and what it starts, by rules that are made once for all
/// threads. The domain is the thread's own all the same: the kernel makes one for each restriction.
fn enter(
    rules: &OnceLock<RulesetCreated>,
    make: impl FnOnce() -> Result<RulesetCreated, String>,
) -> Result<(), String> {
    let made = match rules.get() {
        Some(made) => made,
        None => {
            let made = make()?;
            rules.get_or_init(|| made)
        }
    };
    let own = made.try_clone().map_err(|error| failed(&error))?;
    own.no_new_privs(false).restrict_self().map(drop).map_err(|error| failed(&error))
}

fn failed(error: &dyn Display) -> String {
    format!("Landlock: {error}")
}

/// Restricts this process and its children irrevocably.
pub(super) fn restrict(read: &[PathBuf], write: &[PathBuf]) -> Result<(), String> {
    let all = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .map_err(|error| failed(&error))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(|error| failed(&error))?;
    // A device file created in its own directory would circumvent every path.
    let write_access = all & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let read_access = AccessFs::from_read(KNOWN);
    let usual = READ.iter().map(|path| (Path::new(path), false, read_access));
    let devices = WRITE.iter().map(|path| (Path::new(path), false, write_access));
    let asked = read.iter().map(|path| (path.as_path(), true, read_access));
    let own = write.iter().map(|path| (path.as_path(), true, write_access));
    for (path, needed, access) in usual.chain(devices).chain(asked).chain(own) {
        let fd = match PathFd::new(path) {
            Ok(fd) => fd,
            Err(_) if !needed => continue,
            Err(error) => return Err(format!("cannot open {}: {error}", path.display())),
        };
        let is_dir = path.metadata().is_ok_and(|meta| meta.is_dir());
        let access = if is_dir { access } else { access & AccessFs::from_file(KNOWN) };
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(|error| failed(&error))?;
    }
    rules.restrict_self().map(drop).map_err(|error| failed(&error))
}
