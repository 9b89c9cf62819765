//! The error codes of the API with their statuses and titles. docs/errors.md has a section for
//! each.

use axum::http::StatusCode;

/// An error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    /// The stable code.
    pub word: &'static str,
    /// The HTTP status.
    pub status: StatusCode,
    /// A short title that is the same for every occurrence.
    pub title: &'static str,
}

macro_rules! codes {
    ($($name:ident = $word:literal, $status:ident, $title:literal;)+) => {
        $(pub(crate) const $name: Code =
            Code { word: $word, status: StatusCode::$status, title: $title };)+

        /// All codes.
        pub(crate) const ALL: &[Code] = &[$($name,)+];
    };
}

codes! {
    BAD_REQUEST = "bad_request", BAD_REQUEST, "Malformed request";
    BAD_ID = "bad_id", BAD_REQUEST, "Malformed id";
    BAD_QUERY = "bad_query", BAD_REQUEST, "Malformed query string";
    BAD_HEADER = "bad_header", BAD_REQUEST, "Malformed header";
    MALFORMED_JSON = "malformed_json", BAD_REQUEST, "Body is not JSON";
    NOT_SUPPORTED = "not_supported", BAD_REQUEST, "Not supported by this release";
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED, "Valid token required";
    TOKEN_REVOKED = "token_revoked", UNAUTHORIZED, "Token revoked";
    HOST_NOT_ALLOWED = "host_not_allowed", FORBIDDEN, "Host name not allowed";
    ORIGIN_NOT_ALLOWED = "origin_not_allowed", FORBIDDEN, "Origin not allowed";
    FORBIDDEN_VERB = "forbidden_verb", FORBIDDEN, "Not permitted by the token";
    FORBIDDEN_SCOPE = "forbidden_scope", FORBIDDEN, "Outside the scope of the token";
    TOKEN_WIDENS = "token_widens", FORBIDDEN, "Wider than the parent token";
    WRONG_ROLE = "wrong_role", FORBIDDEN, "Wrong role for this task";
    SELF_APPROVAL = "self_approval", FORBIDDEN, "Approval by the requester refused";
    FOREIGN_TASK = "foreign_task", FORBIDDEN, "Task belongs to another session";
    FORBIDDEN = "forbidden", FORBIDDEN, "Not permitted by the token";
    NOT_FOUND = "not_found", NOT_FOUND, "Not found";
    MODEL_NOT_FOUND = "model_not_found", NOT_FOUND, "Model not found";
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found", BAD_REQUEST, "Previous response not found";
    UNKNOWN_METHOD = "unknown_method", NOT_FOUND, "Unknown method";
    NO_ROUTE = "no_route", NOT_FOUND, "Unknown route";
    METHOD_NOT_ALLOWED = "method_not_allowed", METHOD_NOT_ALLOWED, "Method not allowed";
    BODY_TIMEOUT = "body_timeout", REQUEST_TIMEOUT, "Body timed out";
    ALREADY_ACCEPTED = "already_accepted", CONFLICT, "Another result was already accepted";
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch", CONFLICT, "Idempotency key reused for another request";
    REPEAT_WIDENS = "repeat_widens", CONFLICT, "Stored answer carries a wider token";
    FENCED = "fenced", CONFLICT, "Replaced by a newer attempt";
    RUN_CLOSED = "run_closed", CONFLICT, "Run has ended";
    RUN_PAUSED = "run_paused", CONFLICT, "Run is paused";
    STALE_TASK = "stale_task", CONFLICT, "Task changed since it was read";
    ALREADY_ANSWERED = "already_answered", CONFLICT, "Already answered";
    NOT_HUMAN = "not_human", CONFLICT, "Not a task for people";
    WRONG_SEAT = "wrong_seat", CONFLICT, "Seat held by another session";
    NO_SESSIONS = "no_sessions", CONFLICT, "Operator has no sessions";
    REPLACED = "replaced", CONFLICT, "Newer connection took over";
    SEQ_AHEAD = "seq_ahead", CONFLICT, "Sequence number ahead of the session";
    QUESTION_OPEN = "question_open", CONFLICT, "Question already open";
    NO_QUESTION = "no_question", CONFLICT, "No open question";
    RESPONSE_IN_PROGRESS = "response_in_progress", CONFLICT, "Response in progress";
    CONVERSATION_LOCKED = "conversation_locked", CONFLICT, "Conversation in use";
    NOT_ENDED = "not_ended", CONFLICT, "Run has not ended";
    HISTORY_TOO_LONG = "history_too_long", CONFLICT, "History too long to copy";
    IN_USE = "in_use", CONFLICT, "Still in use";
    REVISION_MISMATCH = "revision_mismatch", CONFLICT, "Revision mismatch";
    CONFLICT = "conflict", CONFLICT, "Conflicts with the current state";
    TOO_LARGE = "too_large", PAYLOAD_TOO_LARGE, "Too large";
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "Unsupported content type";
    UNKNOWN_FIELD = "unknown_field", UNPROCESSABLE_ENTITY, "Unknown field in the body";
    INVALID_BODY = "invalid_body", UNPROCESSABLE_ENTITY, "Invalid body";
    INVALID_INPUT = "invalid_input", UNPROCESSABLE_ENTITY, "Input does not match its schema";
    INVALID_RESULT = "invalid_result", UNPROCESSABLE_ENTITY, "Result does not match its schema";
    BLUEPRINT_INVALID = "blueprint_invalid", UNPROCESSABLE_ENTITY, "Invalid blueprint";
    STATE_REFUSED = "state_refused", UNPROCESSABLE_ENTITY, "State change refused";
    FLOW_FAILED = "flow_failed", UNPROCESSABLE_ENTITY, "Flow function failed";
    UPGRADE_REQUIRED = "upgrade_required", UPGRADE_REQUIRED, "WebSocket upgrade required";
    RATE_LIMITED = "rate_limited", TOO_MANY_REQUESTS, "Rate limit of the token exceeded";
    SIGNAL_QUEUE_FULL = "signal_queue_full", TOO_MANY_REQUESTS, "Signal queue full";
    RUN_FULL = "run_full", TOO_MANY_REQUESTS, "Run is at its memory limit";
    TOO_MANY_RUNS = "too_many_runs", TOO_MANY_REQUESTS, "Too many open runs";
    TOO_MANY_WORKERS = "too_many_workers", TOO_MANY_REQUESTS, "Too many waiting workers";
    TOO_MANY_SESSIONS = "too_many_sessions", TOO_MANY_REQUESTS, "Too many open sessions";
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions", TOO_MANY_REQUESTS, "Too many subscriptions";
    QUOTA_EXCEEDED = "quota_exceeded", TOO_MANY_REQUESTS, "Quota of the token exceeded";
    TOO_MANY_CONNECTIONS = "too_many_connections", SERVICE_UNAVAILABLE, "Too many connections";
    BUSY = "busy", TOO_MANY_REQUESTS, "Busy";
    INTERNAL = "internal", INTERNAL_SERVER_ERROR, "Internal error";
    RESPONSE_FAILED = "response_failed", INTERNAL_SERVER_ERROR, "Response flow failed";
    DAMAGED = "damaged", INTERNAL_SERVER_ERROR, "Stored data is damaged";
    STORAGE = "storage", INTERNAL_SERVER_ERROR, "Storage error";
    OVERLOADED = "overloaded", SERVICE_UNAVAILABLE, "Too many requests in flight";
    NOT_READY = "not_ready", SERVICE_UNAVAILABLE, "Not ready";
    STOPPING = "stopping", SERVICE_UNAVAILABLE, "Shutting down";
    MEMORY_FULL = "memory_full", SERVICE_UNAVAILABLE, "Memory budget exhausted";
    STORAGE_FULL = "storage_full", SERVICE_UNAVAILABLE, "Disk full";
    STORAGE_LOCKED = "storage_locked", SERVICE_UNAVAILABLE, "Database locked by another process";
}

/// Returns the code for a word. For an unknown word, returns `otherwise` with that word.
pub(crate) fn named(word: &'static str, otherwise: Code) -> Code {
    ALL.iter().copied().find(|code| code.word == word).unwrap_or(Code { word, ..otherwise })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_is_unique_and_has_its_section_in_the_docs() {
        let docs = include_str!("../../docs/errors.md");
        let mut words = BTreeSet::new();
        for code in ALL {
            assert!(words.insert(code.word), "{} twice", code.word);
            let heading = format!("### {}\n\n{} {}", code.word, code.status.as_u16(), code.title);
            assert!(docs.contains(&heading), "{heading}");
        }
    }

    #[test]
    fn a_word_of_another_room_keeps_its_name_under_the_status_of_its_family() {
        assert_eq!(named("fenced", CONFLICT), FENCED);
        let code = named("seat_taken", CONFLICT);
        assert_eq!((code.word, code.status), ("seat_taken", StatusCode::CONFLICT));
    }
}
