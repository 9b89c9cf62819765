//! The accounts of tokens with quotas: the open runs, storage and usage of the runs under them.
//!
//! A run counts against the token that it was started with and against all ancestors of that token,
//! as do its child runs. Only tokens with a quota have an account, so a host without quotas counts
//! nothing.
//!
//! | quota | is checked | over it |
//! |---|---|---|
//! | open runs, starts a minute | before a run begins | the start is refused; a call waits for the rate |
//! | stored bytes | before a run begins, and before each turn of one | refused; ended with kind `limit` |
//! | tokens, money | before a run begins, and before each dispatch | refused; the step fails, kind `budget` |
//!
//! The charges of a run are written in the commits that they are for, so the accounts are the same
//! after a restart. Tokens and money stay used when the run is deleted; its bytes are then free.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rust_decimal::{Decimal, prelude::ToPrimitive};

use crate::{
    engine::{EngineError, error::Exceeded, view::shown::QuotaUse},
    journal::Spent,
    store::{ChargeRow, Store, StoreError},
    token::{Claims, Quota, Quotas},
};

/// The window of the quota of starts, in milliseconds.
const MINUTE_MS: u64 = 60_000;

/// The maximum number of accounts that one token counts against.
const LINE: usize = 32;

/// The `Retry-After` when runs must end first, in seconds.
const LATER_S: u64 = 5;

/// The maximum of every count, so that sums fit into an integer of the database.
const MOST: u64 = 1 << 60;

/// All accounts.
#[derive(Default)]
pub(crate) struct Accounts {
    known: Mutex<AccountBook>,
    /// True if there are any.
    any: AtomicBool,
}

#[derive(Default)]
struct AccountBook {
    /// The accounts that each token counts against, by its id.
    lines: HashMap<String, Line>,
    accounts: HashMap<Arc<str>, Account>,
    /// The open runs that count against an account.
    runs: HashMap<u64, Charge>,
}

/// The accounts that a token counts against.
#[derive(Clone)]
struct Line {
    /// Their tokens, its own first.
    accounts: Arc<[Arc<str>]>,
    /// The time at which the token was added, in Unix milliseconds.
    since_ms: u64,
}

struct Account {
    quotas: Quotas,
    used: Used,
    starts: Starts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Used {
    open_runs: u64,
    bytes: u64,
    tokens: u64,
    nano_usd: u64,
}

impl Used {
    fn view(self) -> QuotaUse {
        let Self { open_runs, bytes: stored_bytes, tokens, nano_usd } = self;
        QuotaUse { open_runs, stored_bytes, tokens, usd: dollars(nano_usd) }
    }
}

/// A bucket of starts.
struct Starts {
    /// In fractions of a start: 60,000 are one start.
    left: u64,
    at_ms: u64,
}

/// The charges of an open run, stored or about to be.
struct Charge {
    jti: Arc<str>,
    bytes: u64,
    tokens: u64,
    nano_usd: u64,
    /// The tokens and money in its chain when it was last counted; `None` before it was loaded.
    seen: Option<(u64, u64)>,
    /// True if there is a charge that no commit has yet.
    is_new: bool,
}

impl Accounts {
    /// Loads the accounts from the store.
    pub(crate) fn open(store: &dyn Store, now_ms: u64) -> Result<Self, StoreError> {
        let tokens = store.tokens()?;
        let claims = |text: &str| serde_json::from_str::<Claims>(text).ok();
        let tokens: HashMap<String, Claims> =
            tokens.iter().filter_map(|row| Some((row.jti.clone(), claims(&row.claims)?))).collect();
        let mut known = AccountBook::default();
        if tokens.values().all(|claims| claims.quotas.is_none()) {
            return Ok(Self::default());
        }
        for claims in tokens.values() {
            let mut line = vec![claims];
            while let Some(parent) = line.last().and_then(|it| tokens.get(it.parent.as_ref()?))
                && line.len() <= tokens.len()
            {
                line.push(parent);
            }
            for claims in line.into_iter().rev() {
                known.add(claims, now_ms);
            }
        }
        let (open, sums) = store.charges(now_ms.saturating_sub(MINUTE_MS))?;
        for sum in sums {
            known.each(&sum.jti, |account| {
                account.used.bytes += sum.bytes.min(MOST);
                account.used.tokens += sum.tokens.min(MOST);
                account.used.nano_usd += sum.nano_usd.min(MOST);
                let taken = sum.starts.saturating_mul(MINUTE_MS);
                account.starts.left = account.starts.left.saturating_sub(taken);
            });
        }
        for row in open {
            known.each(&row.jti, |account| account.used.open_runs += 1);
            known.runs.insert(row.run, Charge::of(&row));
        }
        Ok(Self { known: Mutex::new(known), any: AtomicBool::new(true) })
    }

    /// Returns true if any token has a quota.
    pub(crate) fn are_kept(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Adds an account for a new token, if it or an ancestor has a quota.
    pub(crate) fn add(&self, claims: &Claims, now_ms: u64) {
        let mut known = self.known.lock();
        known.add(claims, now_ms);
        self.any.store(!known.accounts.is_empty(), Ordering::Release);
    }

    /// Removes the tokens from before a time whose records are gone; an open run keeps its own. A token
    /// that was just added may not be stored yet.
    pub(crate) fn forget(&self, before_ms: u64, is_stored: impl Fn(&str) -> bool) {
        let mut known = self.known.lock();
        let AccountBook { lines, accounts, runs } = &mut *known;
        let charged: HashSet<&str> = runs.values().map(|charge| &*charge.jti).collect();
        lines.retain(|jti, line| {
            line.since_ms >= before_ms || is_stored(jti) || charged.contains(jti.as_str())
        });
        let named: HashSet<&str> =
            lines.values().flat_map(|line| line.accounts.iter().map(|token| &**token)).collect();
        accounts.retain(|token, _| named.contains(&**token));
        self.any.store(!known.accounts.is_empty(), Ordering::Release);
    }

    /// Returns the effective quotas of a token: the tightest of its own and those of its ancestors.
    pub(crate) fn bounds(&self, jti: &str) -> Option<Quotas> {
        let known = self.known.lock();
        let line = &known.lines.get(jti)?.accounts;
        let quotas = line.iter().filter_map(|it| known.accounts.get(it)).map(|it| it.quotas);
        quotas.reduce(Quotas::within)
    }

    /// Returns true if the token `jti` counts against every account that `of` counts against.
    pub(crate) fn covers(&self, of: &str, jti: &str) -> bool {
        let known = self.known.lock();
        let Some(of) = known.lines.get(of) else { return true };
        let counts = |line: &Line| of.accounts.iter().all(|it| line.accounts.contains(it));
        known.lines.get(jti).is_some_and(counts)
    }

    /// Refuses a quota if too many ancestors have one.
    pub(crate) fn check_line(&self, parent: &str) -> Result<(), EngineError> {
        if self.known.lock().lines.get(parent).is_none_or(|line| line.accounts.len() < LINE) {
            return Ok(());
        }
        Err(EngineError::BadRequest(format!(
            "mint a token: {LINE} tokens that it comes from have quotas already"
        )))
    }

    /// Returns what counts against the quotas of a token, if it has any.
    pub(crate) fn used(&self, jti: &str) -> Option<QuotaUse> {
        self.known.lock().accounts.get(jti).map(|account| account.used.view())
    }

    /// Counts a new run under a token, if no quota is exceeded; counting the same run again changes
    /// nothing. Returns true if any account counts it.
    pub(crate) fn admit(&self, jti: &str, run: u64, now_ms: u64) -> Result<bool, Exceeded> {
        if !self.are_kept() {
            return Ok(false);
        }
        let mut known = self.known.lock();
        if known.runs.contains_key(&run) {
            return Ok(true);
        }
        let Some(line) = known.lines.get(jti).cloned() else { return Ok(false) };
        for token in line.accounts.iter() {
            let Some(account) = known.accounts.get_mut(token) else { continue };
            account.starts.refill(account.quotas.starts_per_minute, now_ms);
            if let Some(exceeded) = account.closed(token) {
                return Err(exceeded);
            }
        }
        known.each(jti, |account| {
            account.used.open_runs += 1;
            account.starts.left = account.starts.left.saturating_sub(MINUTE_MS);
        });
        let fresh = Charge::of(&ChargeRow::new(run, jti));
        let charge = Charge { seen: Some((0, 0)), ..fresh };
        known.runs.insert(run, charge);
        Ok(true)
    }

    /// Returns the token that a run counts against, if any.
    pub(crate) fn of(&self, run: u64) -> Option<Arc<str>> {
        if !self.are_kept() {
            return None;
        }
        self.known.lock().runs.get(&run).map(|charge| Arc::clone(&charge.jti))
    }

    /// Loads the stored charges of a run that is loaded: charges for a commit that was refused are
    /// given back. Returns true if any account counts it.
    pub(crate) fn take_up(&self, run: u64, stored: Option<ChargeRow>, spent: &Spent) -> bool {
        if self.of(run).is_none() {
            return false;
        }
        let mut known = self.known.lock();
        let Some(charge) = known.runs.get_mut(&run) else { return false };
        let (bytes, tokens, nano_usd) = (charge.bytes, charge.tokens, charge.nano_usd);
        let stored = stored.unwrap_or_else(|| ChargeRow::new(run, &charge.jti));
        *charge = Charge { seen: Some(own(spent)), ..Charge::of(&stored) };
        known.each(&stored.jti, |Account { used, .. }| {
            used.bytes = used.bytes.saturating_sub(bytes) + stored.bytes;
            used.tokens = used.tokens.saturating_sub(tokens) + stored.tokens;
            used.nano_usd = used.nano_usd.saturating_sub(nano_usd) + stored.nano_usd;
        });
        true
    }

    /// Charges a run its usage until now and the bytes of its next commit; returns the row to be
    /// written with it.
    pub(crate) fn charge(&self, run: u64, spent: &Spent, bytes: u64) -> Option<ChargeRow> {
        let mut known = self.known.lock();
        known.spend(run, spent, bytes);
        let charge = known.runs.get_mut(&run)?;
        std::mem::take(&mut charge.is_new).then(|| charge.row(run))
    }

    /// Removes a run whose end is stored from the open ones; its storage and usage stay.
    pub(crate) fn ended(&self, run: u64) {
        if !self.are_kept() {
            return;
        }
        let mut known = self.known.lock();
        if let Some(charge) = known.runs.remove(&run) {
            known.each(&charge.jti, |Account { used, .. }| {
                used.open_runs = used.open_runs.saturating_sub(1);
            });
        }
    }

    /// Removes a run that was never stored, with all of its charges.
    pub(crate) fn never(&self, run: u64) {
        if !self.are_kept() {
            return;
        }
        let mut known = self.known.lock();
        if let Some(charge) = known.runs.remove(&run) {
            let Charge { jti, bytes, tokens, nano_usd, .. } = charge;
            known.each(&jti, |Account { used, .. }| {
                used.open_runs = used.open_runs.saturating_sub(1);
                used.bytes = used.bytes.saturating_sub(bytes);
                used.tokens = used.tokens.saturating_sub(tokens);
                used.nano_usd = used.nano_usd.saturating_sub(nano_usd);
            });
        }
    }

    /// Releases the bytes of deleted runs.
    pub(crate) fn freed(&self, rows: &[ChargeRow]) {
        let mut known = self.known.lock();
        for row in rows {
            known.each(&row.jti, |Account { used, .. }| {
                used.bytes = used.bytes.saturating_sub(row.bytes);
            });
        }
    }

    /// Returns the quota of tokens or money that an open run exceeds with its usage until now.
    pub(crate) fn over_budget(&self, run: u64, spent: &Spent) -> Option<Exceeded> {
        self.known.lock().spend(run, spent, 0);
        self.over(run, Account::over_budget)
    }

    /// Returns the quota of bytes that an open run exceeds.
    pub(crate) fn over_bytes(&self, run: u64) -> Option<Exceeded> {
        self.over(run, Account::over_bytes)
    }

    fn over(
        &self,
        run: u64,
        over: impl Fn(&Account, &str) -> Option<Exceeded>,
    ) -> Option<Exceeded> {
        let known = self.known.lock();
        let line = known.lines.get(&*known.runs.get(&run)?.jti)?;
        line.accounts.iter().find_map(|token| over(known.accounts.get(token)?, token))
    }
}

impl AccountBook {
    fn add(&mut self, claims: &Claims, now_ms: u64) {
        if self.lines.contains_key(&claims.jti) {
            return;
        }
        let parents = claims.parent.as_ref().and_then(|parent| self.lines.get(parent));
        let mut line: Vec<Arc<str>> = Vec::new();
        if let Some(quotas) = claims.quotas.filter(|quotas| !quotas.is_open()) {
            let jti: Arc<str> = claims.jti.as_str().into();
            line.push(Arc::clone(&jti));
            let starts = Starts::full(quotas.starts_per_minute, now_ms);
            self.accounts.insert(jti, Account { quotas, used: Used::default(), starts });
        }
        line.extend(parents.into_iter().flat_map(|line| line.accounts.iter().map(Arc::clone)));
        if !line.is_empty() {
            let line = Line { accounts: line.into(), since_ms: now_ms };
            self.lines.insert(claims.jti.clone(), line);
        }
    }

    /// Charges an open run its usage until now, and bytes.
    fn spend(&mut self, run: u64, spent: &Spent, bytes: u64) {
        let Some(charge) = self.runs.get_mut(&run) else { return };
        let (tokens, nano_usd) = own(spent);
        let (before_tokens, before_nano) = charge.seen.unwrap_or((tokens, nano_usd));
        charge.seen = Some((tokens, nano_usd));
        let tokens = tokens.saturating_sub(before_tokens);
        let nano_usd = nano_usd.saturating_sub(before_nano);
        if (bytes, tokens, nano_usd) == (0, 0, 0) {
            return;
        }
        charge.is_new = true;
        charge.bytes = (charge.bytes + bytes).min(MOST);
        charge.tokens = (charge.tokens + tokens).min(MOST);
        charge.nano_usd = (charge.nano_usd + nano_usd).min(MOST);
        let jti = Arc::clone(&charge.jti);
        self.each(&jti, |Account { used, .. }| {
            used.bytes = (used.bytes + bytes).min(MOST);
            used.tokens = (used.tokens + tokens).min(MOST);
            used.nano_usd = (used.nano_usd + nano_usd).min(MOST);
        });
    }

    /// Changes every account that a token counts against.
    fn each(&mut self, jti: &str, mut change: impl FnMut(&mut Account)) {
        let Some(line) = self.lines.get(jti) else { return };
        for token in line.accounts.iter() {
            if let Some(account) = self.accounts.get_mut(token) {
                change(account);
            }
        }
    }
}

impl Account {
    /// Returns the quota that prevents another run, if any.
    fn closed(&self, token: &str) -> Option<Exceeded> {
        let Self { quotas, used, starts } = self;
        if let Some(most) = quotas.open_runs
            && used.open_runs >= most
        {
            return Some(exceeded(token, Quota::OpenRuns, used.open_runs, most, Some(LATER_S)));
        }
        if let Some(rate) = quotas.starts_per_minute
            && starts.left < MINUTE_MS
        {
            let missing_ms = (MINUTE_MS - starts.left).checked_div(u64::from(rate));
            let after = missing_ms.map(|ms| ms.div_ceil(1_000).max(1));
            return Some(exceeded(token, Quota::StartsPerMinute, rate, rate, after));
        }
        self.over_bytes(token).or_else(|| self.over_budget(token))
    }

    fn over_bytes(&self, token: &str) -> Option<Exceeded> {
        let (most, used) = (self.quotas.stored_bytes?, self.used.bytes);
        (used >= most).then(|| exceeded(token, Quota::StoredBytes, used, most, None))
    }

    fn over_budget(&self, token: &str) -> Option<Exceeded> {
        let Used { tokens, nano_usd, .. } = self.used;
        if let Some(most) = self.quotas.tokens
            && tokens >= most
        {
            return Some(exceeded(token, Quota::Tokens, tokens, most, None));
        }
        let most = self.quotas.usd?;
        let used = dollars(nano_usd);
        (used >= most).then(|| exceeded(token, Quota::Usd, used, most, None))
    }
}

fn exceeded(
    token: &str,
    quota: Quota,
    used: impl ToString,
    allowed: impl ToString,
    retry_after_s: Option<u64>,
) -> Exceeded {
    let (used, allowed) = (used.to_string(), allowed.to_string());
    Exceeded { token: token.to_owned(), quota, used, allowed, retry_after_s }
}

impl Starts {
    fn full(rate: Option<u32>, now_ms: u64) -> Self {
        Self { left: u64::from(rate.unwrap_or_default()) * MINUTE_MS, at_ms: now_ms }
    }

    fn refill(&mut self, rate: Option<u32>, now_ms: u64) {
        let rate = u64::from(rate.unwrap_or_default());
        // A clock that was set back adds nothing.
        let since = now_ms.saturating_sub(self.at_ms).min(MINUTE_MS);
        self.left = (self.left + since * rate).min(rate * MINUTE_MS);
        self.at_ms = now_ms;
    }
}

impl Charge {
    fn of(row: &ChargeRow) -> Self {
        let ChargeRow { jti, bytes, tokens, nano_usd, .. } = row;
        let (bytes, tokens, nano_usd) = (*bytes, *tokens, *nano_usd);
        Self { jti: jti.as_str().into(), bytes, tokens, nano_usd, seen: None, is_new: false }
    }

    fn row(&self, run: u64) -> ChargeRow {
        let Self { jti, bytes, tokens, nano_usd, .. } = self;
        let (bytes, tokens, nano_usd) = (*bytes, *tokens, *nano_usd);
        ChargeRow { bytes, tokens, nano_usd, ..ChargeRow::new(run, jti) }
    }
}

/// Returns the usage of a run's own attempts: tokens, and money in billionths of a dollar. The
/// usage of its child runs is charged to those.
fn own(spent: &Spent) -> (u64, u64) {
    spent.agents.values().fold((0, 0), |(tokens, nano), used| {
        let more = used.tokens().unwrap_or_default();
        (tokens.saturating_add(more).min(MOST), (nano + billionths(used.usd())).min(MOST))
    })
}

/// Rounds up: many small amounts must not count as zero.
fn billionths(usd: Option<Decimal>) -> u64 {
    let usd = usd.unwrap_or_default().max(Decimal::ZERO);
    let nano = usd.checked_mul(Decimal::from(1_000_000_000)).map(|nano| nano.ceil());
    nano.and_then(|nano| nano.to_u64()).unwrap_or(MOST).min(MOST)
}

fn dollars(nano_usd: u64) -> Decimal {
    Decimal::from_i128_with_scale(i128::from(nano_usd), 9).normalize()
}

#[cfg(test)]
mod tests;
