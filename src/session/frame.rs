//! Messages to a session: a note, and the numbered frame made from it.

use std::sync::Arc;

use crate::{
    clock::rfc3339,
    protocol::{TaskId, Ticket},
    store::FrameRow,
    token::{AttemptId, Handle, HandleKey},
};

/// The method of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Starts a task.
    Spawn,
    /// Cancels an attempt. Its result is no longer accepted.
    Cancel,
    /// Delivers a senior's answer to an attempt's question.
    Answer,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Spawn, Self::Cancel, Self::Answer];

    /// Returns the method's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spawn => "task/spawn",
            Self::Cancel => "task/cancel",
            Self::Answer => "task/answer",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str() == word)
    }
}

/// A message for a session, without a number yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The method.
    pub method: Method,
    /// The attempt.
    pub ticket: Ticket,
    /// Its task.
    pub task: TaskId,
    /// The attempt's epoch.
    pub epoch: u32,
    /// The run's nonce, for the handle of a spawn; 0 in any other note.
    pub nonce: u64,
    /// The timeout of the attempt, counted from its delivery, in milliseconds.
    pub timeout_ms: Option<u64>,
    /// The parameters as a JSON object, without those that are computed at delivery.
    pub params: Arc<str>,
}

/// A numbered note: durable, and sent again until it is acknowledged.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The number within the session, from 1 and without gaps.
    pub seq: u64,
    /// The note.
    pub note: Note,
}

impl Frame {
    /// Returns the message as it is sent.
    ///
    /// The handle of a spawn is computed here and never stored. The deadline is computed here as
    /// well, because it counts from the delivery.
    pub fn wire(&self, key: &HandleKey, now_ms: u64) -> String {
        let Note { method, ticket, epoch, nonce, timeout_ms, params, .. } = &self.note;
        let word = method.as_str();
        let head = format!(r#"{{"jsonrpc":"2.0","method":"{word}","seq":{},"params":"#, self.seq);
        if *method != Method::Spawn {
            return format!("{head}{params}}}");
        }
        let Ticket { run, step, attempt } = *ticket;
        let of = AttemptId { run, step, attempt, epoch: *epoch, nonce: *nonce };
        let handle = Handle::mint(key, &of).expose();
        let deadline = match timeout_ms {
            Some(timeout) => format!("\"{}\"", rfc3339(now_ms + timeout)),
            None => "null".to_owned(),
        };
        let open = params.strip_suffix('}').unwrap_or(params);
        format!(r#"{head}{open},"handle":"{handle}","deadline":{deadline}}}}}"#)
    }

    /// Returns the stored form.
    pub(super) fn row(&self, session: &str) -> FrameRow {
        let Note { method, ticket, task, epoch, nonce, timeout_ms, params } = &self.note;
        FrameRow {
            session: session.to_owned(),
            seq: self.seq,
            method: method.as_str().to_owned(),
            run: ticket.run,
            step: ticket.step,
            scheduled_ms: task.scheduled_ms(),
            attempt: ticket.attempt,
            epoch: *epoch,
            nonce: *nonce,
            timeout_ms: *timeout_ms,
            params: params.to_string(),
        }
    }

    /// Converts the stored form. Returns `None` if the method is unknown to this program.
    pub(super) fn from_row(row: FrameRow) -> Option<Self> {
        Some(Self {
            seq: row.seq,
            note: Note {
                method: Method::parse(&row.method)?,
                ticket: Ticket { run: row.run, step: row.step, attempt: row.attempt },
                task: TaskId::new(row.run, row.step, row.scheduled_ms),
                epoch: row.epoch,
                nonce: row.nonce,
                timeout_ms: row.timeout_ms,
                params: row.params.into(),
            },
        })
    }
}

impl Note {
    /// Returns the approximate size in bytes.
    pub(super) fn size(&self) -> usize {
        self.params.len() + 128
    }
}
