//! The hidden verb: a process that drops the rights listed in a plan and then becomes the child.
//!
//! Between fork and exec this would need unsafe code. A separate program does it in safe code, one
//! call after another. It is single-threaded, and uses neither configuration nor store. It first
//! waits at the gate, and reports failures there (`gate.rs`).

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags},
    net::{AddressFamily, RecvFlags, SendFlags, SocketType},
    process::{Resource, Rlimit},
    thread::{CapabilitySet, CapabilitySets, UnshareFlags},
};

use super::{
    births,
    bubblewrap::{TRIAL_BYTES, network},
    gate::Gate,
    helper, paths,
    plan::{
        CHILD, LAUNCH, LAUNCH_COVERED, NotBegun, PROBE, PROBE_VEIL, PROBE_WITHIN, Plan, Probed,
        VERB,
    },
    veil,
};

/// The exit code of a child that was not started.
const NOT_BEGUN: u8 = 125;
/// The bytes of a room for each of its files and directories.
const FILE_BYTES: u64 = 4096;
/// The minimum number of files and directories of a room.
const FEWEST_FILES: u64 = 512;

/// Runs the hidden verb if the command line asks for it. Returns `None` if it does not, or the exit
/// code of a child that was not started.
///
/// A program that embeds a host must call this first in its `main`. The program itself then hides,
/// confines and gates its children, like `moonswarm` does.
pub fn confined() -> Option<ExitCode> {
    helper::answers();
    let mut words = std::env::args_os().skip(1).peekable();
    if words.next()? != VERB {
        return None;
    }
    match words.peek()?.to_str() {
        Some(PROBE) => {
            let probed = Probed { network: probe_network().err(), disk: probe_disk().err() };
            // The reader may be gone.
            let _ = serde_json::to_writer(io::stdout(), &probed);
            return Some(ExitCode::SUCCESS);
        }
        Some(PROBE_WITHIN) => {
            let outside = words.nth(1)?.into_string().ok()?;
            let room = PathBuf::from(words.next()?);
            let probed = Probed {
                network: left(&outside).err().map(|error| error.to_string()),
                disk: sized(&room, TRIAL_BYTES).err().map(|error| error.to_string()),
            };
            // The reader may be gone.
            let _ = serde_json::to_writer(io::stdout(), &probed);
            return Some(ExitCode::SUCCESS);
        }
        Some(PROBE_VEIL) => {
            let data = PathBuf::from(words.nth(1)?);
            let why = veil::probe(&data, || part(UnshareFlags::NEWNS)).err();
            // The reader may be gone.
            let _ = serde_json::to_writer(io::stdout(), &why);
            return Some(ExitCode::SUCCESS);
        }
        Some(LAUNCH) => return Some(births::serve(false)),
        Some(LAUNCH_COVERED) => return Some(births::serve(true)),
        _ => {}
    }
    let argv: Vec<OsString> = words.collect();
    Some(ExitCode::from(match begin(&argv) {
        Ok(never) => match never {},
        Err(Some(why)) => {
            eprintln!("moonswarm: {}: {}", why.what, why.reason);
            NOT_BEGUN
        }
        // The host is gone, and nobody waits for this child.
        Err(None) => NOT_BEGUN,
    }))
}

fn begin(argv: &[OsString]) -> Result<std::convert::Infallible, Option<NotBegun>> {
    let waited = Gate::wait().map_err(|error| NotBegun {
        what: "wait at the gate".to_owned(),
        reason: error.to_string(),
        exec: None,
    });
    let (gate, plan, input) = waited.map_err(Some)?.ok_or(None)?;
    let why = match give_up(&plan) {
        Err((what, reason)) => NotBegun { what: what.to_owned(), reason, exec: None },
        Ok(()) => {
            gate.begins();
            let error = become_child(argv, input);
            NotBegun {
                what: "start the program".to_owned(),
                reason: error.to_string(),
                exec: error.raw_os_error(),
            }
        }
    };
    gate.fails(&why);
    Err(Some(why))
}

fn give_up(plan: &Plan) -> Result<(), (&'static str, String)> {
    let step = |what: &'static str| move |error: io::Error| (what, error.to_string());
    for group in &plan.groups {
        fs::write(group, "0").map_err(step("enter the control group"))?;
    }
    if plan.confined {
        // A core file would contain the secrets.
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        limit(Resource::Core, none).map_err(step("forbid core files"))?;
    }
    if let Some(bytes) = plan.disk {
        let most = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        limit(Resource::Fsize, most).map_err(step("limit the files"))?;
    }
    if let Some(outside) = &plan.parted {
        stands_apart(plan, outside).map_err(step("trust the namespaces"))?;
    }
    stand_apart(plan)?;
    for dir in &plan.make {
        fs::create_dir_all(dir).map_err(step("make a directory"))?;
    }
    std::env::set_current_dir(&plan.cwd).map_err(step("enter the working directory"))?;
    if !plan.confined {
        return Ok(());
    }
    paths::restrict(&plan.read, &plan.write).map_err(|reason| ("restrict the paths", reason))?;
    drop_capabilities().map_err(step("drop the capabilities"))
}

/// Creates the namespaces of a plan, except those that another program has created.
fn stand_apart(plan: &Plan) -> Result<(), (&'static str, String)> {
    let step = |what: &'static str| move |error: io::Error| (what, error.to_string());
    let is_own = plan.parted.is_none();
    let (closed, disk) = (is_own && plan.closed, plan.disk.filter(|_| is_own));
    let mut apart = UnshareFlags::empty();
    apart.set(UnshareFlags::NEWNET, closed);
    apart.set(UnshareFlags::NEWNS, disk.is_some() || plan.cover.is_some());
    let mut privileged = false;
    if !apart.is_empty() {
        privileged = part(apart).map_err(step("make the namespaces"))?;
    }
    if closed {
        raise_loopback().map_err(step("raise the loopback of the closed network"))?;
    }
    if let Some(bytes) = disk {
        own_file_system(&plan.room, bytes).map_err(step("mount the room for files"))?;
    }
    if let Some(cover) = &plan.cover {
        cover.put().map_err(step("hide the data directory"))?;
        if privileged && !plan.confined {
            paths::stay().map_err(|reason| ("keep the data directory hidden", reason))?;
            veil::give_up_looking_around().map_err(step("give up looking around"))?;
        }
    }
    Ok(())
}

/// Verifies the namespaces of a plan that another program was to create.
fn stands_apart(plan: &Plan, outside: &str) -> io::Result<()> {
    if plan.closed {
        left(outside)?;
    }
    plan.disk.map_or(Ok(()), |bytes| sized(&plan.room, bytes))
}

/// Verifies that the network namespace differs from the named one.
fn left(outside: &str) -> io::Result<()> {
    match network()? == outside {
        true => Err(io::Error::other("the network is the same as outside")),
        false => Ok(()),
    }
}

/// Verifies that a directory is an in-memory file system of at most that size.
fn sized(room: &Path, bytes: u64) -> io::Result<()> {
    const TMPFS: u64 = 0x0102_1994;
    const PAGE: u64 = 1 << 16;
    let found = rustix::fs::statfs(room)?;
    let is_tmpfs = u64::try_from(found.f_type).is_ok_and(|it| it == TMPFS);
    let size = u64::try_from(found.f_bsize).unwrap_or(u64::MAX).saturating_mul(found.f_blocks);
    // The kernel rounds the size up to whole pages.
    match is_tmpfs && size < bytes.saturating_add(PAGE) {
        true => Ok(()),
        false => Err(io::Error::other("the directory is no file system of that size")),
    }
}

fn limit(resource: Resource, to: Rlimit) -> io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    // A hard limit can only be lowered.
    let most = match (now.maximum, to.maximum) {
        (Some(now), Some(to)) => Some(now.min(to)),
        (None, to) => to,
        (now, None) => now,
    };
    Ok(rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

/// Enters new namespaces; without the privilege, inside a new user namespace. Returns true if its
/// children are privileged there.
fn part(flags: UnshareFlags) -> io::Result<bool> {
    match veil::unshare(flags) {
        Ok(()) => Ok(true),
        Err(_) => veil::unshare_as_user(flags),
    }
}

/// Brings up the only interface of a new network namespace, with a netlink message.
fn raise_loopback() -> io::Result<()> {
    const LENGTH: u32 = 32;
    const NEW_LINK: u16 = 16;
    const REQUEST_ACK: u16 = 1 | 4;
    const LOOPBACK: i32 = 1;
    const UP: u32 = 1;
    let mut message = Vec::with_capacity(32);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_ACK.to_ne_bytes());
    // Sequence number and port.
    message.extend([0; 8]);
    // Family and type: any.
    message.extend([0; 4]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0_u8; 512];
    let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    // After the header of 16 bytes follows the negative error number, or 0.
    let code = answer.get(16..20).filter(|_| length >= 20);
    match code.and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Mounts a file system of limited size over a directory, visible only to this process and its
/// children.
fn own_file_system(room: &Path, bytes: u64) -> io::Result<()> {
    let apart = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", apart)?;
    // An empty file has no size.
    let files = (bytes / FILE_BYTES).max(FEWEST_FILES);
    let options = format!("size={bytes},nr_inodes={files},mode=0700");
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(rustix::mount::mount("moonswarm", room, "tmpfs", flags, options.as_c_str())?)
}

/// Drops all capabilities, so that root has only its owner's file permissions.
fn drop_capabilities() -> io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all() {
            // Older kernels do not know all of them.
            let _ = rustix::thread::remove_capability_from_bounding_set(capability);
        }
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(rustix::thread::set_capabilities(None, none)?)
}

/// Executes the program with the child's variables and input.
fn become_child(argv: &[OsString], input: OwnedFd) -> io::Error {
    let Some((program, arguments)) = argv.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.as_bytes().strip_prefix(CHILD.as_bytes())?;
        Some((OsString::from_vec(name.to_vec()), value))
    });
    Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(variables)
        .stdin(Stdio::from(input))
        .exec()
}

fn probe_network() -> Result<(), String> {
    part(UnshareFlags::NEWNET)
        .and_then(|_| raise_loopback())
        .map_err(|error| format!("this machine makes no network namespace ({error})"))
}

fn probe_disk() -> Result<(), String> {
    part(UnshareFlags::NEWNS)
        .and_then(|_| own_file_system(Path::new("/tmp"), 1 << 16))
        .map_err(|error| format!("this machine makes no mount namespace ({error})"))
}
