//! Every code of the API with its status and title; docs/errors.md has a section for each.

use axum::http::StatusCode;

/// One kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    /// The word that never changes.
    pub word: &'static str,
    /// The HTTP status.
    pub status: StatusCode,
    /// What it means, in a few words that do not depend on the case.
    pub title: &'static str,
}

macro_rules! codes {
    ($($name:ident = $word:literal, $status:ident, $title:literal;)+) => {
        $(pub(crate) const $name: Code =
            Code { word: $word, status: StatusCode::$status, title: $title };)+

        /// All of them.
        pub(crate) const ALL: &[Code] = &[$($name,)+];
    };
}

codes! {
    BAD_REQUEST = "bad_request", BAD_REQUEST, "The request makes no sense";
    BAD_ID = "bad_id", BAD_REQUEST, "An id has another form";
    BAD_QUERY = "bad_query", BAD_REQUEST, "The query string cannot be read";
    BAD_HEADER = "bad_header", BAD_REQUEST, "A header cannot be read";
    MALFORMED_JSON = "malformed_json", BAD_REQUEST, "The body is not JSON";
    NOT_SUPPORTED = "not_supported", BAD_REQUEST, "This release does not support it";
    UNAUTHENTICATED = "unauthenticated", UNAUTHORIZED, "A valid token is needed";
    TOKEN_REVOKED = "token_revoked", UNAUTHORIZED, "The token was revoked";
    HOST_NOT_ALLOWED = "host_not_allowed", FORBIDDEN, "The host name is not one of this server's";
    ORIGIN_NOT_ALLOWED = "origin_not_allowed", FORBIDDEN, "Pages of this origin may not call the API";
    FORBIDDEN_VERB = "forbidden_verb", FORBIDDEN, "The token may not do this";
    FORBIDDEN_SCOPE = "forbidden_scope", FORBIDDEN, "The token does not reach this";
    TOKEN_WIDENS = "token_widens", FORBIDDEN, "A token makes no wider one";
    WRONG_ROLE = "wrong_role", FORBIDDEN, "Somebody else must answer";
    SELF_APPROVAL = "self_approval", FORBIDDEN, "Who asks does not answer";
    FOREIGN_TASK = "foreign_task", FORBIDDEN, "The session does not have this task";
    FORBIDDEN = "forbidden", FORBIDDEN, "The token may not do this";
    NOT_FOUND = "not_found", NOT_FOUND, "There is no such thing";
    MODEL_NOT_FOUND = "model_not_found", NOT_FOUND, "Nothing of this name answers";
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found", BAD_REQUEST, "There is no such response to continue";
    UNKNOWN_METHOD = "unknown_method", NOT_FOUND, "There is no such method";
    NO_ROUTE = "no_route", NOT_FOUND, "There is no such route";
    METHOD_NOT_ALLOWED = "method_not_allowed", METHOD_NOT_ALLOWED, "The route has no such method";
    BODY_TIMEOUT = "body_timeout", REQUEST_TIMEOUT, "The body did not arrive in time";
    ALREADY_ACCEPTED = "already_accepted", CONFLICT, "Another result was accepted before";
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch", CONFLICT, "The key was used for another request";
    REPEAT_WIDENS = "repeat_widens", CONFLICT, "The answer carries a wider token";
    FENCED = "fenced", CONFLICT, "Another attempt has taken over";
    RUN_CLOSED = "run_closed", CONFLICT, "The run has ended";
    RUN_PAUSED = "run_paused", CONFLICT, "The run rests and cannot be asked";
    STALE_TASK = "stale_task", CONFLICT, "The task is not what was shown";
    ALREADY_ANSWERED = "already_answered", CONFLICT, "Each answers once";
    NOT_HUMAN = "not_human", CONFLICT, "The task is not one for people";
    WRONG_SEAT = "wrong_seat", CONFLICT, "It is not this session's";
    NO_SESSIONS = "no_sessions", CONFLICT, "The operator has no sessions";
    SEQ_AHEAD = "seq_ahead", CONFLICT, "No frame has this number yet";
    QUESTION_OPEN = "question_open", CONFLICT, "The attempt waits for an answer already";
    NO_QUESTION = "no_question", CONFLICT, "The task asks nothing";
    RESPONSE_IN_PROGRESS = "response_in_progress", CONFLICT, "The response is not over";
    CONVERSATION_LOCKED = "conversation_locked", CONFLICT, "A response continues the conversation";
    NOT_ENDED = "not_ended", CONFLICT, "The run has not ended";
    HISTORY_TOO_LONG = "history_too_long", CONFLICT, "The history is too long to be copied";
    IN_USE = "in_use", CONFLICT, "Something open still needs it";
    REVISION_MISMATCH = "revision_mismatch", CONFLICT, "The value has another revision";
    CONFLICT = "conflict", CONFLICT, "It does not fit what happened before";
    TOO_LARGE = "too_large", PAYLOAD_TOO_LARGE, "It is larger than allowed";
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The content type is not read here";
    UNKNOWN_FIELD = "unknown_field", UNPROCESSABLE_ENTITY, "The body has an unknown field";
    INVALID_BODY = "invalid_body", UNPROCESSABLE_ENTITY, "The body has another shape";
    INVALID_INPUT = "invalid_input", UNPROCESSABLE_ENTITY, "The value breaks its schema";
    INVALID_RESULT = "invalid_result", UNPROCESSABLE_ENTITY, "The result breaks its schema";
    BLUEPRINT_INVALID = "blueprint_invalid", UNPROCESSABLE_ENTITY, "The blueprint has errors";
    STATE_REFUSED = "state_refused", UNPROCESSABLE_ENTITY, "The state does not take the change";
    FLOW_FAILED = "flow_failed", UNPROCESSABLE_ENTITY, "A function of the flow failed";
    UPGRADE_REQUIRED = "upgrade_required", UPGRADE_REQUIRED, "It is a WebSocket";
    RATE_LIMITED = "rate_limited", TOO_MANY_REQUESTS, "The token asks too often";
    SIGNAL_QUEUE_FULL = "signal_queue_full", TOO_MANY_REQUESTS, "Too many signals wait to be read";
    RUN_FULL = "run_full", TOO_MANY_REQUESTS, "The run holds as much as it may";
    TOO_MANY_RUNS = "too_many_runs", TOO_MANY_REQUESTS, "Too many runs are open";
    TOO_MANY_WORKERS = "too_many_workers", TOO_MANY_REQUESTS, "Too many workers wait for this queue";
    TOO_MANY_SESSIONS = "too_many_sessions", TOO_MANY_REQUESTS, "Too many sessions are open";
    TOO_MANY_SUBSCRIPTIONS = "too_many_subscriptions", TOO_MANY_REQUESTS, "The connection watches too many runs";
    QUOTA_EXCEEDED = "quota_exceeded", TOO_MANY_REQUESTS, "A quota of the token is used up";
    TOO_MANY_CONNECTIONS = "too_many_connections", SERVICE_UNAVAILABLE, "Every connection is taken";
    BUSY = "busy", TOO_MANY_REQUESTS, "There is too much to do";
    INTERNAL = "internal", INTERNAL_SERVER_ERROR, "The server failed";
    RESPONSE_FAILED = "response_failed", INTERNAL_SERVER_ERROR, "The flow that answers failed";
    DAMAGED = "damaged", INTERNAL_SERVER_ERROR, "What is stored of it is damaged";
    STORAGE = "storage", INTERNAL_SERVER_ERROR, "The storage failed";
    OVERLOADED = "overloaded", SERVICE_UNAVAILABLE, "Too many requests are under way";
    NOT_READY = "not_ready", SERVICE_UNAVAILABLE, "The host takes no work now";
    STOPPING = "stopping", SERVICE_UNAVAILABLE, "The host is stopping";
    MEMORY_FULL = "memory_full", SERVICE_UNAVAILABLE, "The host has no memory left for runs";
    STORAGE_FULL = "storage_full", SERVICE_UNAVAILABLE, "The disk is full";
    STORAGE_LOCKED = "storage_locked", SERVICE_UNAVAILABLE, "Another process keeps the database locked";
}

/// The code of a word; for a word that another room made up, `otherwise` under that word.
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
