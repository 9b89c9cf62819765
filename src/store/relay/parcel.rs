//! A batch as one node sends it to another.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | XXH3 (64 bits, little endian) over all bytes after it |
//! | 4 | the length of the head, big endian |
//! | the head | JSON: its version, the checks, the writes, and the lengths of the parts |
//! | the parts | the entries of the journal, then the contents of the files, without gaps |
//!
//! The receiver allocates for the bytes that it has, not for what they say. Unknown words are refused.

use std::{borrow::Cow, vec};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::store::{Answers, Batch, Changed, Check, RunWrite, StoreError, Write};

/// The version of the form.
const VERSION: u32 = 1;
/// The length of the checksum in bytes.
const SUM: usize = 8;
/// The bytes that a row or a write takes beside its content.
const ROW: usize = 256;

/// A batch on its way to the node that commits it: a [`Batch`] without its `ack`.
#[derive(Debug, Clone, PartialEq)]
pub struct Parcel {
    /// The conditions.
    pub checks: Vec<Check>,
    /// The entries and the header of a run.
    pub run: Option<RunWrite>,
    /// All other writes.
    pub writes: Vec<Write>,
}

/// The fate of a parcel: the answers of each of its changes of state ([`Write::ChangeState`]), in their
/// order, or the reason why nothing of it is written.
pub type Delivered = Result<Vec<Vec<Changed>>, StoreError>;

/// The part of a parcel that is JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head<'a> {
    version: u32,
    checks: Cow<'a, [Check]>,
    run: Option<Cow<'a, RunWrite>>,
    writes: Cow<'a, [Write]>,
    /// The lengths of the parts behind the head.
    parts: Vec<usize>,
}

impl Parcel {
    /// Encodes the parcel.
    ///
    /// # Errors
    /// Fails for a write that no run makes, like one of the host.
    pub fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let parts = self.parts();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let behind = lengths.iter().sum::<usize>();
        let head = Head {
            version: VERSION,
            checks: Cow::Borrowed(self.checks.as_slice()),
            run: self.run.as_ref().map(Cow::Borrowed),
            writes: Cow::Borrowed(self.writes.as_slice()),
            parts: lengths,
        };
        let head = serde_json::to_vec(&head).map_err(|error| unsent(error.to_string()))?;
        let length = u32::try_from(head.len())
            .map_err(|_| unsent(format!("its head has {} bytes", head.len())))?;
        let mut bytes = Vec::with_capacity(SUM + size_of::<u32>() + head.len() + behind);
        bytes.extend_from_slice(&[0; SUM]);
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(&head);
        for part in parts {
            bytes.extend_from_slice(part);
        }
        seal(&mut bytes);
        Ok(bytes)
    }

    /// Decodes a parcel.
    ///
    /// # Errors
    /// Returns [`StoreError::Damaged`] for bytes that are no parcel.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let short = || damaged("it ends too early");
        let (found, rest) = bytes.split_first_chunk::<SUM>().ok_or_else(short)?;
        if *found != sum(rest) {
            return Err(damaged("its bytes are not those that were sent (the sum differs)"));
        }
        let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| short())?;
        let (head, rest) = rest.split_at_checked(length).ok_or_else(short)?;
        let head: Head<'_> =
            serde_json::from_slice(head).map_err(|error| damaged(&error.to_string()))?;
        if head.version != VERSION {
            let reason = format!("its version is {}, not {VERSION}", head.version);
            return Err(damaged(&reason));
        }
        let mut parcel = Self {
            checks: head.checks.into_owned(),
            run: head.run.map(Cow::into_owned),
            writes: head.writes.into_owned(),
        };
        let mut parts = Parts { lengths: head.parts.into_iter(), rest };
        if let Some(run) = &mut parcel.run {
            for row in &mut run.entries {
                row.bytes = parts.take()?.to_vec();
            }
        }
        for write in &mut parcel.writes {
            if let Write::PutBlob { data, .. } = write {
                *data = parts.take()?.into();
            }
        }
        parts.end()?;
        Ok(parcel)
    }

    /// Returns the run that the parcel is about; none if it is about no run in particular.
    pub fn about(&self) -> Option<u64> {
        self.runs().next()
    }

    /// Returns true if nothing in it is about another run.
    pub fn is_all_of(&self, run: u64) -> bool {
        self.refusal().is_none() && self.runs().all(|of| of == run)
    }

    /// Returns the runs that its header, its checks and its writes are about, in this order.
    fn runs(&self) -> impl Iterator<Item = u64> {
        let checked = self.checks.iter().filter_map(|check| match check {
            Check::RunAt { run, .. } => Some(*run),
            Check::TokenLive(_) | Check::KeyFree { .. } | Check::MetaIs { .. } => None,
        });
        let written = self.writes.iter().filter_map(|write| carried(write).ok().flatten());
        self.run.iter().map(|run| run.header.num).chain(checked).chain(written)
    }

    /// Returns the approximate number of its bytes, for limits.
    pub fn bytes(&self) -> usize {
        let run = self.run.as_ref().map_or(0, |run| {
            let header = &run.header;
            let texts = [&header.status_text, &header.error, &header.waiting_on, &header.used];
            let header = texts.into_iter().flatten().map(String::len).sum::<usize>();
            ROW + header + run.entries.iter().map(|row| ROW + row.bytes.len()).sum::<usize>()
        });
        let checks = ROW * self.checks.len();
        run + checks + self.writes.iter().map(|write| ROW + write.bytes()).sum::<usize>()
    }

    /// Returns a batch that commits the parcel. `deliver` receives its fate, as an ack does.
    pub fn into_batch(self, deliver: impl FnOnce(Delivered) + Send + 'static) -> Batch {
        let Self { checks, run, writes } = self;
        let changes = writes.iter().filter_map(|write| match write {
            Write::ChangeState(batch) => Some(batch.answers.clone()),
            _ => None,
        });
        let answers: Vec<Answers> = changes.collect();
        let ack = Box::new(move |result: Result<(), StoreError>| {
            deliver(result.map(|()| answers.iter().map(|it| it.get().to_vec()).collect()));
        });
        Batch { checks, run, writes, ack }
    }

    /// Takes the slots for the answers of its changes of state, in their order. Its own are new.
    pub(super) fn take_answers(&mut self) -> Vec<Answers> {
        let changes = self.writes.iter_mut().filter_map(|write| match write {
            Write::ChangeState(batch) => Some(std::mem::take(&mut batch.answers)),
            _ => None,
        });
        changes.collect()
    }

    /// Returns the reason why the parcel cannot be sent, if there is one.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        let refused = self.writes.iter().find_map(|write| carried(write).err());
        refused.map(|name| unsent(format!("{name} is no write of a run")))
    }

    /// Returns the bytes that are not in the head.
    fn parts(&self) -> Vec<&[u8]> {
        let rows = self.run.as_ref().map_or(&[][..], |run| &run.entries);
        let files = self.writes.iter().filter_map(|write| match write {
            Write::PutBlob { data, .. } => Some(&**data),
            _ => None,
        });
        rows.iter().map(|row| row.bytes.as_slice()).chain(files).collect()
    }
}

/// The parts of a parcel that are still to be read.
struct Parts<'b> {
    lengths: vec::IntoIter<usize>,
    rest: &'b [u8],
}

impl<'b> Parts<'b> {
    fn take(&mut self) -> Result<&'b [u8], StoreError> {
        let length = self.lengths.next().ok_or_else(|| damaged("it has too few parts"))?;
        let split = self.rest.split_at_checked(length);
        let (part, rest) = split.ok_or_else(|| damaged("it ends within a part"))?;
        self.rest = rest;
        Ok(part)
    }

    fn end(self) -> Result<(), StoreError> {
        match (self.lengths.len(), self.rest.len()) {
            (0, 0) => Ok(()),
            (parts, bytes) => Err(damaged(&format!("{parts} parts and {bytes} bytes are left"))),
        }
    }
}

/// Returns the run that a write is about, if it is about one.
///
/// # Errors
/// Returns the name of a write that is not carried: the host makes it, or it takes a number that only
/// the committing node may give.
fn carried(write: &Write) -> Result<Option<u64>, &'static str> {
    match write {
        Write::PutTask(row) => Ok(Some(row.run)),
        Write::HoldTask(hold) => Ok(Some(hold.run)),
        Write::CloseTask { run, .. }
        | Write::CloseTasks { run }
        | Write::ForgetReceipt { run, .. }
        | Write::PublishArtifacts { run, .. } => Ok(Some(*run)),
        Write::ChangeState(batch) => Ok(batch.receipt.map(|(run, _)| run)),
        Write::PutArtifact(row) => Ok(Some(row.run)),
        Write::PutCharge(row) => Ok(Some(row.run)),
        Write::CountRun(counted) => Ok(Some(counted.run)),
        Write::PutOutbox(row) => Ok(Some(row.run)),
        Write::PutEvidence(row) => Ok(Some(row.run)),
        // The message is another run's if it is removed by the one that received it.
        Write::DeleteOutbox { .. }
        | Write::PutState { .. }
        | Write::DeleteState { .. }
        | Write::PutBlob { .. } => Ok(None),
        Write::ExpireState { .. } => Err("ExpireState"),
        Write::PutBlueprint(_) => Err("PutBlueprint"),
        Write::NameBlueprint { .. } => Err("NameBlueprint"),
        Write::UnnameBlueprint { .. } => Err("UnnameBlueprint"),
        Write::DeleteBlueprint { .. } => Err("DeleteBlueprint"),
        Write::PutToken(_) => Err("PutToken"),
        Write::RevokeToken { .. } => Err("RevokeToken"),
        Write::PutIdempotency(_) => Err("PutIdempotency"),
        Write::PutMeta { .. } => Err("PutMeta"),
        Write::ExpireIdempotency { .. } => Err("ExpireIdempotency"),
        Write::ForgetAnswer { .. } => Err("ForgetAnswer"),
        Write::PutSession(_) => Err("PutSession"),
        Write::ExtendSession { .. } => Err("ExtendSession"),
        Write::CloseSession { .. } => Err("CloseSession"),
        Write::ForgetSessions { .. } => Err("ForgetSessions"),
        Write::PutFrame(_) => Err("PutFrame"),
        Write::AckFrames { .. } => Err("AckFrames"),
        Write::ReserveRun { .. } => Err("ReserveRun"),
        Write::DeleteRun { .. } => Err("DeleteRun"),
        Write::PutKept { .. } => Err("PutKept"),
        Write::RemoveKept { .. } => Err("RemoveKept"),
        Write::ExpireKept { .. } => Err("ExpireKept"),
        Write::AddAudit(_) => Err("AddAudit"),
        Write::Tidy { .. } => Err("Tidy"),
        Write::Erase(_) => Err("Erase"),
        Write::Rewrite => Err("Rewrite"),
    }
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    XxHash3_64::oneshot(bytes).to_le_bytes()
}

/// Puts the checksum before the bytes that follow it.
fn seal(bytes: &mut [u8]) {
    if let Some((place, rest)) = bytes.split_first_chunk_mut() {
        *place = sum(rest);
    }
}

fn unsent(reason: String) -> StoreError {
    StoreError::Database { context: "send a batch to the node that drives".to_owned(), reason }
}

fn damaged(reason: &str) -> StoreError {
    StoreError::Damaged { what: "a batch of another node".to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
