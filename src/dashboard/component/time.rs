//! Times: relative, with the exact one as title.

use maud::{Markup, html};

use crate::engine::rfc3339;

/// Returns a time of the engine (RFC 3339) as an age or as what is left until it.
pub(in crate::dashboard) fn of(at: &str, now_ms: u64) -> Markup {
    match unix_ms(at) {
        Some(ms) => html! { time datetime=(at) title=(at) { (relative(ms, now_ms)) } },
        None => html! { (at) },
    }
}

/// Returns a time in Unix milliseconds in the same way.
pub(in crate::dashboard) fn of_ms(ms: u64, now_ms: u64) -> Markup {
    of(&rfc3339(ms), now_ms)
}

/// Returns a time of which the seconds do not matter.
pub(in crate::dashboard) fn exact(ms: u64) -> String {
    rfc3339(ms).chars().take("2026-01-31T08:00".len()).collect()
}

/// Returns the Unix milliseconds of a time.
pub(in crate::dashboard) fn unix_ms(at: &str) -> Option<u64> {
    let at: jiff::Timestamp = at.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

fn relative(ms: u64, now_ms: u64) -> String {
    match now_ms.checked_sub(ms) {
        Some(0..1_000) => "now".to_owned(),
        Some(ago) => format!("{} ago", coarse(ago)),
        None => format!("in {}", coarse(ms - now_ms)),
    }
}

/// Returns a span in its largest unit: `4 min`.
pub(in crate::dashboard) fn coarse(ms: u64) -> String {
    match ms / 1_000 {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7_200 => format!("{} min", s / 60),
        s @ 7_200..172_800 => format!("{} h", s / 3_600),
        s => format!("{} days", s / 86_400),
    }
}

/// Returns how long something took: `12 ms`, `3.4 s`, `2m 5s`, `3h 4m`.
pub(in crate::dashboard) fn took(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{}m {}s", ms / 60_000, ms % 60_000 / 1_000),
        3_600_000..172_800_000 => format!("{}h {}m", ms / 3_600_000, ms % 3_600_000 / 60_000),
        _ => format!("{}d {}h", ms / 86_400_000, ms % 86_400_000 / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_relative_and_its_title_is_exact() {
        let at = "1970-01-01T00:01:00.000Z";
        let shown = of(at, 200_000).into_string();
        assert_eq!(shown, format!("<time datetime=\"{at}\" title=\"{at}\">2 min ago</time>"));
        assert_eq!((relative(500, 600), relative(9_000, 2_000)), ("now".into(), "in 7 s".into()));
    }

    #[test]
    fn a_duration_has_two_units_at_most() {
        let shown: Vec<_> = [12, 3_450, 125_000, 11_040_000, 180_000_000].map(took).into();
        assert_eq!(shown, ["12 ms", "3.4 s", "2m 5s", "3h 4m", "2d 2h"]);
    }
}
