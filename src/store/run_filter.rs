//! The selection of runs in a listing, by one set of rules for all adapters.
//!
//! An adapter finds the rows by an index where it has one: status, blueprint, parent, starter, a
//! tag's value, the time of creation, the words of ended runs. Every other condition is checked row
//! by row, on a bounded number of rows; a page that ended for that reason is partial.

use rust_decimal::Decimal;
use serde_json::Value;

use super::{Header, RunStatus, Used, find};
use crate::protocol::{Failure, RunId, TagIs};

/// The maximum number of bytes of a text that are searched.
const SEARCHED: usize = 4 << 10;

/// The selection of runs in a listing.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only runs with one of these statuses; all if empty.
    pub status: Vec<RunStatus>,
    /// Only runs of this blueprint.
    pub blueprint: Option<String>,
    /// Only runs created at or after this time, in Unix milliseconds.
    pub since_ms: Option<u64>,
    /// Only runs created before this time, in Unix milliseconds.
    pub until_ms: Option<u64>,
    /// Only runs that ended at or after this time, in Unix milliseconds.
    pub ended_since_ms: Option<u64>,
    /// Only runs that ended before this time, in Unix milliseconds.
    pub ended_until_ms: Option<u64>,
    /// Only runs that this run called.
    pub parent: Option<u64>,
    /// Only runs that meet all these conditions on tags.
    pub tags: Vec<TagIs>,
    /// Only runs started by this subject.
    pub started_by: Option<String>,
    /// Only runs with an error of this kind.
    pub error: Option<String>,
    /// Only runs that used this agent, wait for it, or failed in it.
    pub agent: Option<String>,
    /// Only runs that wait for this: the kind of a thing, or the name of an agent, signal,
    /// operator, queue or run.
    pub waiting_on: Option<String>,
    /// Only runs whose error and status text contain all these words, or whose id begins with this
    /// text.
    pub text: Option<String>,
    /// Only runs that cost at least this, in US dollars, as far as it was reported.
    pub min_cost: Option<Decimal>,
    /// Only runs older than this one (the cursor of the previous page).
    pub before: Option<RunId>,
    /// The maximum number of results.
    pub limit: usize,
    /// The maximum number of rows that are read; no limit if absent.
    pub look: Option<usize>,
}

/// A page of runs.
#[derive(Debug, Clone, Default)]
pub struct RunPage {
    /// The runs, newest first.
    pub headers: Vec<Header>,
    /// The last run that was read, if there may be more after it.
    pub next: Option<RunId>,
    /// True if the page ended because enough rows were read, not because it is full.
    pub partial: bool,
}

/// The text that a listing is searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sought {
    /// The beginning of an id.
    Id(String),
    /// Words.
    Words(Vec<find::Word>),
}

impl Sought {
    /// Returns the meaning of a text.
    pub(super) fn of(text: &str) -> Self {
        let text = text.trim();
        match text.starts_with("run_") {
            true => Self::Id(text.to_ascii_lowercase()),
            false => Self::Words(find::words(text)),
        }
    }
}

impl RunFilter {
    /// Returns the text that is sought.
    pub(super) fn sought(&self) -> Option<Sought> {
        self.text.as_deref().map(Sought::of)
    }

    /// Returns true if pages are in the order of the runs' numbers, not of their times.
    pub(super) fn is_by_number(&self) -> bool {
        matches!(self.sought(), Some(Sought::Words(_)))
    }

    /// Returns true if a run is after the cursor.
    pub(super) fn is_after(&self, header: &Header) -> bool {
        self.before.is_none_or(|before| match self.is_by_number() {
            true => header.num < before.num(),
            false => header.id() < before,
        })
    }

    /// Returns true if a run meets all conditions except the cursor.
    pub(super) fn fits(&self, header: &Header) -> bool {
        let within = |at: Option<u64>, since: Option<u64>, until: Option<u64>| {
            (since.is_none() && until.is_none())
                || at.is_some_and(|at| {
                    since.is_none_or(|since| at >= since) && until.is_none_or(|until| at < until)
                })
        };
        (self.status.is_empty() || self.status.contains(&header.status))
            && self.blueprint.as_ref().is_none_or(|name| *name == header.blueprint)
            && within(Some(header.created_ms), self.since_ms, self.until_ms)
            && within(header.ended_ms, self.ended_since_ms, self.ended_until_ms)
            && self.parent.is_none_or(|parent| header.parent.is_some_and(|it| it.0 == parent))
            && self.tags.iter().all(|tag| tag.fits(&header.tags))
            && self.started_by.as_ref().is_none_or(|name| *name == header.principal)
            && self.fits_details(header)
    }

    /// Checks the conditions for which texts of the header are parsed.
    fn fits_details(&self, header: &Header) -> bool {
        if let Some(kind) = &self.error
            && failure(header).is_none_or(|failure| failure.kind != *kind)
        {
            return false;
        }
        if let Some(agent) = &self.agent
            && !uses(header, agent)
        {
            return false;
        }
        if let Some(wanted) = &self.waiting_on
            && !waits_for(header, wanted)
        {
            return false;
        }
        if let Some(least) = self.min_cost {
            let cost = Used::parse(header.used.as_deref()).spent.total.usd();
            if cost.is_none_or(|cost| cost < least) {
                return false;
            }
        }
        match self.sought() {
            None => true,
            Some(Sought::Id(prefix)) => header.id().to_string().starts_with(&prefix),
            Some(Sought::Words(words)) => {
                let text = text_of(header).unwrap_or_default();
                let tokens: Vec<String> = find::tokens(&text).collect();
                !words.is_empty() && words.iter().all(|word| word.is_in(&tokens))
            }
        }
    }
}

/// Returns the searchable text of a run; `None` if it has none.
pub(super) fn text_of(header: &Header) -> Option<String> {
    let mut text = header.status_text.clone().unwrap_or_default();
    if let Some(failure) = failure(header) {
        let Failure { kind, message, agent, .. } = failure;
        for part in [Some(kind.as_str()), Some(message.as_str()), agent.as_deref()] {
            text.push(' ');
            text.push_str(find::cut(part.unwrap_or_default(), SEARCHED));
        }
    }
    let text = find::cut(&text, 2 * SEARCHED);
    (!text.trim().is_empty()).then(|| text.to_owned())
}

fn failure(header: &Header) -> Option<Failure> {
    header.error.as_deref().and_then(|text| serde_json::from_str(text).ok())
}

fn uses(header: &Header, agent: &str) -> bool {
    let waits = waiting_on(header).into_iter().any(|item| {
        item["subject"]["name"] == agent
            && matches!(item["kind"].as_str(), Some("task" | "capacity" | "retry"))
    });
    waits
        || Used::parse(header.used.as_deref()).agents.contains(agent)
        || failure(header).is_some_and(|failure| failure.agent.as_deref() == Some(agent))
}

fn waits_for(header: &Header, wanted: &str) -> bool {
    const NAMES: [&str; 6] = ["name", "operator", "operator_kind", "queue", "run", "task"];
    // Most rows do not have the word at all, and need not be parsed. Escapes would hide it.
    let text = header.waiting_on.as_deref().unwrap_or_default();
    if !text.contains(wanted) && !text.contains('\\') {
        return false;
    }
    let fits = |item: &Value| {
        item["kind"] == wanted || NAMES.iter().any(|name| item["subject"][name] == wanted)
    };
    waiting_on(header).iter().any(fits)
}

fn waiting_on(header: &Header) -> Vec<Value> {
    let items = header.waiting_on.as_deref();
    items.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Collects a page from rows in the order of the listing.
pub(super) struct Pick<'f> {
    filter: &'f RunFilter,
    page: RunPage,
    looked: usize,
    last: Option<RunId>,
}

impl<'f> Pick<'f> {
    pub(super) fn new(filter: &'f RunFilter) -> Self {
        Self { filter, page: RunPage::default(), looked: 0, last: None }
    }

    /// Takes the next row. Returns false once the page is complete; the row is then not part of it.
    pub(super) fn take(&mut self, header: &Header) -> bool {
        let full = self.page.headers.len() >= self.filter.limit;
        let tired = self.filter.look.is_some_and(|look| self.looked >= look);
        if full || tired {
            self.page.next = self.last;
            self.page.partial = !full;
            return false;
        }
        self.looked += 1;
        self.last = Some(header.id());
        if self.filter.fits(header) {
            self.page.headers.push(header.clone());
        }
        true
    }

    pub(super) fn done(self) -> RunPage {
        self.page
    }
}
