//! Quotas of tokens: open runs, starts, stored bytes, model tokens and money.
