//! The codes of refusals: stable words, each with its HTTP status and title. The engine, the API, the
//! sessions and the exit codes of the CLI share them; docs/errors.md has a section for each.

use std::fmt;

macro_rules! codes {
    ($($name:ident = $word:literal, $status:literal, $title:literal;)+) => {
        /// The code of a refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $title] $name,)+
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the stable word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }

            /// Returns the HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)+ }
            }

            /// Returns the title, which is the same for every occurrence.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)+ }
            }
        }
    };
}

codes! {
    BadRequest = "bad_request", 400, "Malformed request";
    BadId = "bad_id", 400, "Malformed id";
    BadQuery = "bad_query", 400, "Malformed query string";
    BadHeader = "bad_header", 400, "Malformed header";
    MalformedJson = "malformed_json", 400, "Body is not JSON";
    NotSupported = "not_supported", 400, "Not supported by this release";
    Unauthenticated = "unauthenticated", 401, "Valid token required";
    TokenRevoked = "token_revoked", 401, "Token revoked";
    HostNotAllowed = "host_not_allowed", 403, "Host name not allowed";
    OriginNotAllowed = "origin_not_allowed", 403, "Origin not allowed";
    TlsRequired = "tls_required", 403, "TLS required";
    FormRefused = "form_refused", 403, "Form of another sign-in";
    ForbiddenVerb = "forbidden_verb", 403, "Not permitted by the token";
    ForbiddenScope = "forbidden_scope", 403, "Outside the scope of the token";
    TokenWidens = "token_widens", 403, "Wider than the parent token";
    WrongRole = "wrong_role", 403, "Wrong role for this task";
    SelfApproval = "self_approval", 403, "Approval by the requester refused";
    ForeignTask = "foreign_task", 403, "Task belongs to another session";
    Forbidden = "forbidden", 403, "Not permitted by the token";
    NotFound = "not_found", 404, "Not found";
    ModelNotFound = "model_not_found", 404, "Model not found";
    PreviousResponseNotFound = "previous_response_not_found", 400, "Previous response not found";
    UnknownMethod = "unknown_method", 404, "Unknown method";
    NoRoute = "no_route", 404, "Unknown route";
    MethodNotAllowed = "method_not_allowed", 405, "Method not allowed";
    BodyTimeout = "body_timeout", 408, "Body timed out";
    AlreadyAccepted = "already_accepted", 409, "Another result was already accepted";
    IdempotencyMismatch = "idempotency_mismatch", 409, "Idempotency key reused for another request";
    RepeatWidens = "repeat_widens", 409, "Stored answer carries a wider token";
    Fenced = "fenced", 409, "Replaced by a newer attempt";
    RunClosed = "run_closed", 409, "Run has ended";
    RunPaused = "run_paused", 409, "Run is paused";
    StaleTask = "stale_task", 409, "Task changed since it was read";
    AlreadyAnswered = "already_answered", 409, "Already answered";
    NotHuman = "not_human", 409, "Not a task for people";
    WrongSeat = "wrong_seat", 409, "Seat held by another session";
    NoSessions = "no_sessions", 409, "Operator has no sessions";
    Replaced = "replaced", 409, "Newer connection took over";
    SeqAhead = "seq_ahead", 409, "Sequence number ahead of the session";
    QuestionOpen = "question_open", 409, "Question already open";
    NoQuestion = "no_question", 409, "No open question";
    ResponseInProgress = "response_in_progress", 409, "Response in progress";
    ConversationLocked = "conversation_locked", 409, "Conversation in use";
    NotEnded = "not_ended", 409, "Run has not ended";
    SelectionChanged = "selection_changed", 409, "Selection has changed";
    HistoryTooLong = "history_too_long", 409, "History too long to copy";
    BlueprintArchived = "blueprint_archived", 409, "Blueprint is archived";
    TriggerPaused = "trigger_paused", 409, "Trigger is paused";
    InUse = "in_use", 409, "Still in use";
    RevisionMismatch = "revision_mismatch", 409, "Revision mismatch";
    Conflict = "conflict", 409, "Conflicts with the current state";
    TooLarge = "too_large", 413, "Too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "Unsupported content type";
    UnknownField = "unknown_field", 422, "Unknown field in the body";
    InvalidBody = "invalid_body", 422, "Invalid body";
    InvalidInput = "invalid_input", 422, "Input does not match its schema";
    InvalidResult = "invalid_result", 422, "Result does not match its schema";
    BlueprintInvalid = "blueprint_invalid", 422, "Invalid blueprint";
    StateRefused = "state_refused", 422, "State change refused";
    FlowFailed = "flow_failed", 422, "Flow function failed";
    UpgradeRequired = "upgrade_required", 426, "WebSocket upgrade required";
    RateLimited = "rate_limited", 429, "Rate limit of the token exceeded";
    SignalQueueFull = "signal_queue_full", 429, "Signal queue full";
    RunFull = "run_full", 429, "Run is at its memory limit";
    TooManyRuns = "too_many_runs", 429, "Too many open runs";
    TooManyWorkers = "too_many_workers", 429, "Too many waiting workers";
    TooManySessions = "too_many_sessions", 429, "Too many open sessions";
    TooManySubscriptions = "too_many_subscriptions", 429, "Too many subscriptions";
    QuotaExceeded = "quota_exceeded", 429, "Quota of the token exceeded";
    TooManyConnections = "too_many_connections", 503, "Too many connections";
    Busy = "busy", 429, "Busy";
    Internal = "internal", 500, "Internal error";
    ResponseFailed = "response_failed", 500, "Response flow failed";
    Damaged = "damaged", 500, "Stored data is damaged";
    Storage = "storage", 500, "Storage error";
    UnknownOutcome = "unknown_outcome", 502, "Outcome unknown";
    Overloaded = "overloaded", 503, "Too many requests in flight";
    NotReady = "not_ready", 503, "Not ready";
    Stopping = "stopping", 503, "Shutting down";
    MemoryFull = "memory_full", 503, "Memory budget exhausted";
    StorageFull = "storage_full", 503, "Disk full";
    StorageLocked = "storage_locked", 503, "Database locked by another process";
    StorageAway = "storage_away", 503, "Database unreachable";
    NoDriver = "no_driver", 503, "No node has the runs";
}

impl Code {
    /// Returns the code of a word, if there is one.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == word)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<&str> for Code {
    fn eq(&self, word: &&str) -> bool {
        self.as_str() == *word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_unique() {
        for code in Code::ALL.iter().copied() {
            assert_eq!(Code::of(code.as_str()), Some(code), "{code} twice");
        }
    }
}
