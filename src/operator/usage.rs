//! Parses the usage that a worker reports, leniently: an invalid value counts as not reported.

use std::str::FromStr;

use rust_decimal::Decimal;
use serde_json::Value;

use crate::journal::Usage;

/// Parses `{input, output, cached, reasoning, cost}`; returns `None` if nothing is valid.
pub fn read_usage(usage: &Value) -> Option<Usage> {
    let tokens = |names: [&str; 2]| names.iter().find_map(|name| whole(usage.get(name)?));
    let usage = Usage {
        input_tokens: tokens(["input", "input_tokens"]),
        output_tokens: tokens(["output", "output_tokens"]),
        cached_tokens: tokens(["cached", "cached_tokens"]),
        reasoning_tokens: tokens(["reasoning", "reasoning_tokens"]),
        cost: usage.get("cost").and_then(money),
    };
    let Usage { input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost } = &usage;
    let counts = [input_tokens, output_tokens, cached_tokens, reasoning_tokens];
    let reported = counts.iter().any(|count| count.is_some()) || cost.is_some();
    reported.then_some(usage)
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            // Above 2^53 a float no longer identifies one integer.
            (float.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&float))
                .then_some(float as u64)
        }),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn money(value: &Value) -> Option<String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().trim_start_matches('$').to_owned(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let amount = Decimal::from_str(&text).or_else(|_| Decimal::from_scientific(&text)).ok()?;
    (!amount.is_sign_negative()).then(|| amount.normalize().to_string())
}
