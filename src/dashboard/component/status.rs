//! The state of a run, a step or a task, as a word with a sign and a color.

use maud::{Markup, html};

use crate::{
    dashboard::fields::Fields,
    door::{Code, Problem},
    store::RunStatus,
};

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

/// Returns the field of a filter that chooses a status of runs: the parameter `status`.
pub(in crate::dashboard) fn choice(fields: &Fields) -> Markup {
    let chosen: Vec<&str> = words(fields).collect();
    html! {
        div {
            label for="status" { "Status" }
            select id="status" name="status" {
                option value="" { "any" }
                @for it in RunStatus::ALL {
                    option value=(it.as_str()) selected[chosen == [it.as_str()]] { (it.as_str()) }
                }
                // Several come by a link; the form keeps them.
                @if chosen.len() > 1 { option value=(chosen.join(",")) selected { (chosen.join(", ")) } }
            }
        }
    }
}

/// Returns the words of the filter by status: each parameter has one, or several with commas.
pub(in crate::dashboard) fn words(fields: &Fields) -> impl Iterator<Item = &str> {
    let all = fields.all("status").flat_map(|all| all.split(',')).map(str::trim);
    all.filter(|word| !word.is_empty()).take(RunStatus::ALL.len())
}

/// Returns the statuses that a filter has chosen.
///
/// # Errors
/// Returns `bad_query` if a word is no status.
pub(in crate::dashboard) fn chosen(fields: &Fields) -> Result<Vec<RunStatus>, Problem> {
    let status = words(fields).map(|word| {
        RunStatus::parse(word).ok_or_else(|| {
            let all = RunStatus::ALL.map(RunStatus::as_str).join(", ");
            Problem::new(Code::BadQuery, format!("{word:?} is no status; there are {all}"))
        })
    });
    status.collect()
}
