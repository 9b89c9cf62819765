//! Credentials: tokens, handles, idempotency keys, and the keys behind them.
