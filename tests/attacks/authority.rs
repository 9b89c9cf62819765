//! Authority: what a token may bring, call, signal, link and answer.
