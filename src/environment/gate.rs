//! The gate before a child: a forked helper becomes the child only after the host admits it.
//!
//! The helper starts with one end of a socket as its stdin, and waits there. The host first reports
//! the new group to its watch and then sends one message with the plan and the child's input, each
//! as a complete file. If the host is killed before that, the socket closes and the helper exits
//! without becoming anything. The helper reports errors over the same socket. The exec closes it,
//! so that no child can write to it.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

use super::plan::{NotBegun, Plan};

/// The message that the helper sends right before the exec.
const BEGINS: &[u8] = b"begins";
/// The maximum size of a helper's message, in bytes.
const LONGEST: usize = 8 * 1024;

/// One end of the socket: the host's or the helper's.
#[derive(Debug)]
pub(super) struct Gate(OwnedFd);

/// The report of a helper that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GateReport {
    /// The helper became the child.
    Begun,
    /// The helper failed, and reported the reason.
    Not(NotBegun),
    /// The helper ended before it could report anything.
    Nothing,
}

impl Gate {
    /// Returns the host's end, and the end for the helper's stdin.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(ours), theirs))
    }

    /// Admits the helper.
    pub(super) fn open(&self, plan: &Plan, input: &OwnedFd) -> io::Result<()> {
        let plan = whole(&serde_json::to_vec(plan)?)?;
        let files = [input.as_fd(), plan.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        along.push(SendAncillaryMessage::ScmRights(&files));
        let word = [IoSlice::new(b"go")];
        match rustix::net::sendmsg(&self.0, &word, &mut along, SendFlags::NOSIGNAL) {
            // The helper has already ended. Its exit code has the reason.
            Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the helper's report. Call it after the helper has ended.
    pub(super) fn heard(&self) -> GateReport {
        let mut heard = GateReport::Nothing;
        let mut message = [0; LONGEST];
        while let Ok((length, _)) =
            rustix::net::recv(&self.0, &mut message[..], RecvFlags::DONTWAIT)
        {
            match &message[..length.min(LONGEST)] {
                [] => break,
                BEGINS => heard = GateReport::Begun,
                json => match serde_json::from_slice(json) {
                    Ok(why) => return GateReport::Not(why),
                    Err(_) => return GateReport::Nothing,
                },
            }
        }
        heard
    }

    /// Waits on stdin for the admission. Returns `None` if the host is gone.
    pub(super) fn wait() -> io::Result<Option<(Self, Plan, OwnedFd)>> {
        let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut along = RecvAncillaryBuffer::new(&mut space);
        let mut word = [0; 2];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            let into = &mut [IoSliceMut::new(&mut word)];
            match rustix::net::recvmsg(&socket, into, &mut along, flags) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                got => break got?,
            }
        };
        if got.bytes == 0 {
            return Ok(None);
        }
        let mut files = along.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let mut files = files.next().into_iter().flatten();
        let (Some(input), Some(plan)) = (files.next(), files.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let mut text = Vec::new();
        File::from(plan).read_to_end(&mut text)?;
        Ok(Some((Self(socket), serde_json::from_slice(&text)?, input)))
    }

    /// Reports that the exec is next.
    pub(super) fn begins(&self) {
        self.say(BEGINS);
    }

    /// Reports why the child was not started.
    pub(super) fn fails(&self, why: &NotBegun) {
        if let Ok(json) = serde_json::to_vec(why) {
            self.say(&json);
        }
    }

    fn say(&self, message: &[u8]) {
        // If the host is gone, nobody needs the report.
        let _ = rustix::net::send(&self.0, message, SendFlags::NOSIGNAL);
    }
}

/// Returns an in-memory file with these bytes, positioned at its start and sealed against changes.
pub(super) fn whole(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create("input", flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know that flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("input", flags),
        made => made,
    };
    let file = File::from(made?);
    // This leaves the position alone, which the child shares.
    file.write_all_at(bytes, 0)?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn an_input_is_whole_and_stays_as_it_is() {
        let bytes = "x".repeat(300_000);
        let mut file = File::from(whole(bytes.as_bytes()).unwrap());
        assert!(file.write_all(b"y").is_err());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, bytes);
    }

    #[test]
    fn what_a_helper_said_last_is_what_is_heard() {
        let (host, helper) = Gate::pair().unwrap();
        let helper = Gate(helper);
        assert_eq!(host.heard(), GateReport::Nothing);
        helper.begins();
        assert_eq!(host.heard(), GateReport::Begun);
        let why = NotBegun { what: "start".into(), reason: "no".into(), exec: Some(2) };
        helper.begins();
        helper.fails(&why);
        drop(helper);
        assert_eq!(host.heard(), GateReport::Not(why));
        assert_eq!(host.heard(), GateReport::Nothing);
    }
}
