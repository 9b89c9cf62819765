//! The scopes that have state, with their sizes, and the keys of one as a tree.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    engine::{Caller, EngineError, Page, StateItem, verbs::engine::StateVerbs},
    protocol::Scope,
    store::ScopeFilter,
    token::{Need, Verb},
};

/// The maximum number of scopes that one page looks at.
const MOST_LOOKED: usize = 1_000;
/// The number of scopes that are read at a time.
const READ: usize = 100;
/// The number of keys that are read at a time for a tree.
const KEYS: usize = 200;
/// The maximum number of reads for one page of a tree.
const MOST_READS: usize = 20;
/// The separator of the parts of a key.
const SEPARATOR: char = '/';

/// A scope that has state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScopeView {
    /// The scope: `global`, `run:<id>`, `session:<id>`, `operator:<run>:<operator>`,
    /// `custom:<name>`.
    pub scope: String,
    /// The number of its stored keys.
    pub keys: u64,
    /// The size of these keys and their values, in bytes.
    pub bytes: u64,
    /// True if there are more keys than were counted.
    pub more: bool,
}

/// An entry of the tree of keys.
#[derive(Debug, Clone, PartialEq)]
pub enum TreeItem {
    /// Keys that share a prefix, which ends with a slash.
    Folder(String),
    /// A key.
    Key(Box<StateItem>),
}

impl StateVerbs<'_> {
    /// Lists the scopes that have stored values and that the token reaches as a whole, sorted.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or the store cannot be read.
    pub async fn scopes(
        self,
        caller: &Caller,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<ScopeView>, EngineError> {
        caller.grant.check(Verb::StateRead, &[])?;
        let (mut items, mut after, mut looked) = (Vec::new(), after, 0);
        let now_ms = self.engine.shared().clock.now_ms();
        while looked < MOST_LOOKED {
            let (prefix, from) = (prefix.to_owned(), after.clone());
            let filter = ScopeFilter { prefix, after: from, limit: READ, now_ms };
            let rows = self.engine.read(move |store| store.state_scopes(&filter)).await?;
            if rows.is_empty() {
                return Ok(Page { items, next_cursor: None });
            }
            looked += rows.len();
            for row in rows {
                if items.len() == limit {
                    return Ok(Page { items, next_cursor: after });
                }
                after = Some(row.scope.clone());
                let need = Need::State { scope: &row.scope, key: "" };
                if caller.grant.scopes.cover(&need) {
                    let (keys, bytes, more) = (row.keys, row.bytes, row.more);
                    items.push(ScopeView { scope: row.scope, keys, bytes, more });
                }
            }
        }
        Ok(Page { items, next_cursor: after })
    }

    /// Lists the keys of a scope below a prefix; those that go on with a slash are folded.
    ///
    /// # Errors
    /// As [`StateVerbs::state_page`].
    pub async fn tree(
        self,
        caller: &Caller,
        scope: &Scope,
        prefix: &str,
        after: Option<String>,
    ) -> Result<Page<TreeItem>, EngineError> {
        let (mut items, mut after) = (Vec::new(), after);
        for _ in 0..MOST_READS {
            let page = self.state_page(caller, scope, prefix, after.clone(), KEYS).await?;
            for item in page.items {
                let rest = item.key.strip_prefix(prefix).unwrap_or(&item.key);
                let Some((part, _)) = rest.split_once(SEPARATOR) else {
                    after = Some(item.key.clone());
                    items.push(TreeItem::Key(Box::new(item)));
                    continue;
                };
                let folder = format!("{prefix}{part}{SEPARATOR}");
                // The next read begins behind everything in the folder.
                after = Some(format!("{folder}{}", char::MAX));
                if items.last() != Some(&TreeItem::Folder(folder.clone())) {
                    items.push(TreeItem::Folder(folder));
                }
            }
            if page.next_cursor.is_none() {
                return Ok(Page { items, next_cursor: None });
            }
            if items.len() >= KEYS {
                break;
            }
        }
        Ok(Page { items, next_cursor: after })
    }
}
