//! Small pictures of sums over time: a bar for each hour or day, the failures in front.

use std::collections::HashMap;

use maud::{Markup, html};

use crate::{
    dashboard::component::{time, usage},
    engine::{StatsItem, StatsView},
};

/// The height of the picture.
const HEIGHT: u64 = 36;

/// The content of a bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dashboard) enum Shown {
    /// The number of runs that ended.
    Runs,
    /// The cost or, where none was reported, the tokens.
    Cost,
}

/// Returns the picture of sums that were read by hour or day: the last `slots` of them up to now.
pub(in crate::dashboard) fn of(
    view: &StatsView,
    (slots, slot_ms): (usize, u64),
    shown: Shown,
    now_ms: u64,
) -> Markup {
    let by_time: HashMap<u64, &StatsItem> =
        view.items.iter().filter_map(|item| Some((time::unix_ms(&item.key)?, item))).collect();
    let last = now_ms - now_ms % slot_ms;
    let bars: Vec<(u64, Option<&StatsItem>)> = (0..slots as u64)
        .rev()
        .map(|ago| last.saturating_sub(ago * slot_ms))
        .map(|at| (at, by_time.get(&at).copied()))
        .collect();
    let has_cost = bars.iter().flat_map(|(_, it)| it).any(|it| !it.usd.is_zero());
    let value = |it: &StatsItem| match shown {
        Shown::Runs => it.count,
        Shown::Cost if has_cost => micro(it),
        Shown::Cost => it.tokens,
    };
    let most = bars.iter().filter_map(|(_, it)| it.map(value)).max().unwrap_or(0).max(1);
    let height = |value: u64| {
        let high = u128::from(value) * u128::from(HEIGHT) / u128::from(most);
        // What is not nothing is seen.
        u64::try_from(high).unwrap_or(HEIGHT).max(u64::from(value > 0))
    };
    let words = words(view, shown);
    html! {
        svg viewBox={ "0 0 " (slots * 10) " " (HEIGHT + 4) } width="100%" height="60"
            preserveAspectRatio="none" role="img" aria-label=(words) {
            @for (at, (begin_ms, item)) in bars.iter().enumerate() {
                @if let Some(item) = item {
                    g {
                        title { (time::exact(*begin_ms)) ": " (told(item)) }
                        rect.run x=(at * 10 + 1) width="8" y=(HEIGHT + 4 - height(value(item))) height=(height(value(item))) {}
                        @if shown == Shown::Runs {
                            rect.bad x=(at * 10 + 1) width="8" y=(HEIGHT + 4 - height(item.failed)) height=(height(item.failed)) {}
                        }
                    }
                }
            }
        }
        p.small { (words) "." }
    }
}

/// Returns the cost in millionths of a dollar.
fn micro(item: &StatsItem) -> u64 {
    use rust_decimal::prelude::ToPrimitive as _;
    let micro = item.usd.checked_mul(rust_decimal::Decimal::from(1_000_000));
    micro.and_then(|it| it.to_u64()).unwrap_or(u64::MAX)
}

fn words(view: &StatsView, shown: Shown) -> String {
    let total = &view.total;
    match shown {
        Shown::Runs => format!("{} ended, {} of them failed", total.count, total.failed),
        Shown::Cost => format!("{} tokens, ${}", usage::grouped(total.tokens), total.usd),
    }
}

fn told(item: &StatsItem) -> String {
    let tokens = usage::grouped(item.tokens);
    format!("{} ended, {} failed, {tokens} tokens, ${}", item.count, item.failed, item.usd)
}
