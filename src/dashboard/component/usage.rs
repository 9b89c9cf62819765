//! Tokens and cost. What nobody reported is not zero.

use maud::{Markup, html};

use crate::journal::Usage;

/// Returns the tokens and the cost of a usage.
pub(in crate::dashboard) fn of(usage: Option<&Usage>) -> Markup {
    let tokens = usage.and_then(Usage::tokens);
    let cost = usage.and_then(|usage| usage.cost.as_deref());
    html! {
        @match (tokens, cost) {
            (None, None) => { span.dim { "not reported" } }
            (tokens, cost) => {
                @if let Some(tokens) = tokens { (grouped(tokens)) " tokens" }
                @if tokens.is_some() && cost.is_some() { ", " }
                @if let Some(cost) = cost { "$" (cost) }
            }
        }
    }
}

/// Returns the cost or, without one, the tokens, for a row of a list.
pub(in crate::dashboard) fn short(usage: Option<&Usage>) -> Markup {
    let tokens = usage.and_then(Usage::tokens);
    html! {
        @match (usage.and_then(|usage| usage.cost.as_deref()), tokens) {
            (Some(cost), _) => { "$" (cost) }
            (None, Some(tokens)) => { (grouped(tokens)) " tok" }
            (None, None) => { span.dim title="not reported" { "—" } }
        }
    }
}

/// Returns a number with thin spaces between its thousands.
pub(in crate::dashboard) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push('\u{202f}');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reported_is_not_zero() {
        assert!(of(None).into_string().contains("not reported"));
        let usage = Usage { output_tokens: Some(1_234_567), ..Usage::default() };
        assert_eq!(of(Some(&usage)).into_string(), "1\u{202f}234\u{202f}567 tokens");
        assert_eq!(grouped(7), "7");
    }
}
