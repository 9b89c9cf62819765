//! The gate before a child: a program that was forked becomes the child only once it is let in.
//!
//! The helper is started with one end of a socket as its stdin, and waits there. The host tells
//! its watch of the new group first, and then sends one message: what to give up, and the child's
//! input, each as a file that is whole. A host that is killed before that closes the socket, and
//! the helper ends without having become anything. The same socket takes back what went wrong; the
//! exec closes it, so that no child can write to it.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _},
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    },
};

use super::plan::{NotBegun, Plan};

/// What the helper says right before it becomes the child.
const BEGINS: &[u8] = b"begins";
/// The longest message of a helper, in bytes.
const LONGEST: usize = 8 * 1024;

/// The host's end, or the helper's.
#[derive(Debug)]
pub(super) struct Gate(OwnedFd);

/// What was heard of a helper that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It became the child.
    Begun,
    /// It says why it did not.
    Not(NotBegun),
    /// It ended before it could say anything.
    Nothing,
}

impl Gate {
    /// The host's end, and the one that becomes the helper's stdin.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(ours), theirs))
    }

    /// Lets the helper in.
    pub(super) fn open(&self, plan: &Plan, input: &OwnedFd) -> io::Result<()> {
        let plan = whole(&serde_json::to_vec(plan)?)?;
        let files = [input.as_fd(), plan.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        along.push(SendAncillaryMessage::ScmRights(&files));
        let word = [IoSlice::new(b"go")];
        match rustix::net::sendmsg(&self.0, &word, &mut along, SendFlags::NOSIGNAL) {
            // It has ended already: its exit says so.
            Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What the helper said, once it has ended.
    pub(super) fn heard(&self) -> Heard {
        let mut heard = Heard::Nothing;
        let mut message = [0; LONGEST];
        while let Ok((length, _)) =
            rustix::net::recv(&self.0, &mut message[..], RecvFlags::DONTWAIT)
        {
            match &message[..length.min(LONGEST)] {
                [] => break,
                BEGINS => heard = Heard::Begun,
                json => match serde_json::from_slice(json) {
                    Ok(why) => return Heard::Not(why),
                    Err(_) => return Heard::Nothing,
                },
            }
        }
        heard
    }

    /// Waits to be let in, on stdin; nothing once there is no host any more.
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

    /// Says that the exec is next.
    pub(super) fn begins(&self) {
        self.say(BEGINS);
    }

    /// Says why it is not the child.
    pub(super) fn fails(&self, why: &NotBegun) {
        if let Ok(json) = serde_json::to_vec(why) {
            self.say(&json);
        }
    }

    fn say(&self, message: &[u8]) {
        // A host that is gone does not ask.
        let _ = rustix::net::send(&self.0, message, SendFlags::NOSIGNAL);
    }
}

/// A file in memory with these bytes, read from its beginning; nobody can change it.
pub(super) fn whole(bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match rustix::fs::memfd_create("input", flags | MemfdFlags::NOEXEC_SEAL) {
        // A kernel before 6.3 does not know that flag.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("input", flags),
        made => made,
    };
    let mut file = File::from(made?);
    file.write_all(bytes)?;
    file.rewind()?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(host.heard(), Heard::Nothing);
        helper.begins();
        assert_eq!(host.heard(), Heard::Begun);
        let why = NotBegun { what: "start".into(), reason: "no".into(), exec: Some(2) };
        helper.begins();
        helper.fails(&why);
        drop(helper);
        assert_eq!(host.heard(), Heard::Not(why));
        assert_eq!(host.heard(), Heard::Nothing);
    }
}
