//! The state of a run, a step or a task, as a word with a sign and a color.

use maud::{Markup, html};

/// Returns the pill of a status.
pub(in crate::dashboard) fn pill(word: &str) -> Markup {
    let (class, sign) = match word {
        "completed" => ("status ok", "✓"),
        "failed" => ("status bad", "✕"),
        "canceled" => ("status", "⊘"),
        "running" | "processing" | "compensating" => ("status busy", "▶"),
        "paused" => ("status warn", "⏸"),
        "waiting" => ("status warn", "…"),
        _ => ("status", "○"),
    };
    html! { span class=(class) { (sign) " " (word) } }
}
