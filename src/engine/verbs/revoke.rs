//! The end of tokens: revocations, and the records of expired tokens.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::{
    engine::{
        Caller, EngineError,
        verbs::{
            auth::{attempt_row, is_minted, is_of_attempt},
            engine::TokenVerbs,
        },
    },
    fault,
    protocol::SessionId,
    session::LinkEnd,
    store::{TokenRow, Trace, Write},
    token::{Grant, Verb},
};

/// The time for which the record of an expired token is kept, in milliseconds. A clock that is set back
/// by less still finds it.
const EXPIRED_KEPT_MS: u64 = 24 * 3_600 * 1_000;
/// The number of such records that are looked for at a time, beside the writer.
const EXPIRED: usize = 65_536;
/// The number of records that are deleted in one commit.
const DELETED: usize = 256;

impl TokenVerbs<'_> {
    /// Revokes a token and every token derived from it; later requests with them are refused. An admin
    /// may revoke one whose record is gone, too: it would be good again if the clock were set back.
    ///
    /// # Errors
    /// Fails when the caller lacks permission, or there is no such token.
    pub async fn revoke(self, caller: &Caller, jti: &str) -> Result<(), EngineError> {
        caller.grant.check(Verb::TokenRevoke, &[])?;
        let (is_known, made) = self.made_from(jti.to_owned()).await?;
        let at_ms = self.engine.shared().clock.now_ms();
        let mut writes = Vec::new();
        let may_be_gone = is_minted(jti) && caller.grant.covers(&Grant::everything());
        if !is_known && is_of_attempt(jti) {
            writes.push(Write::PutToken(attempt_row(jti, at_ms)));
        } else if !is_known && !may_be_gone {
            return Err(EngineError::NotFound { what: "token", id: jti.to_owned() });
        }
        let mut doomed: BTreeSet<String> = made.into_iter().collect();
        doomed.insert(jti.to_owned());
        self.refuse(&doomed);
        fault::point("engine.token_revoke");
        writes.extend(doomed.iter().map(|jti| Write::RevokeToken { jti: jti.clone(), at_ms }));
        let (engine, jti) = (self.engine.clone(), jti.to_owned());
        // The caller may be gone in the meantime; the sessions end with their tokens all the same.
        let revoking = self.engine.shared().tasks.spawn(async move {
            engine.write(Vec::new(), writes).await?;
            engine.tokens().revoke_late(jti, &mut doomed, at_ms).await?;
            let sessions = engine.shared().sessions.with_token(|jti| doomed.contains(jti));
            for session in sessions {
                engine.sessions().end_session(&session, LinkEnd::Revoked).await?;
            }
            Ok(())
        });
        revoking.await.map_err(|_| EngineError::Stopping)?
    }

    /// Revokes the tokens that were made from those which a revocation found, between its reading and
    /// its commit. None is made from a token after the commit that revokes it.
    pub(crate) async fn revoke_late(
        self,
        jti: String,
        doomed: &mut BTreeSet<String>,
        at_ms: u64,
    ) -> Result<(), EngineError> {
        loop {
            let (_, made) = self.made_from(jti.clone()).await?;
            let late: BTreeSet<String> =
                made.into_iter().filter(|it| !doomed.contains(it)).collect();
            if late.is_empty() {
                return Ok(());
            }
            self.refuse(&late);
            let revoke = |jti: &String| Write::RevokeToken { jti: jti.clone(), at_ms };
            self.engine.write(Vec::new(), late.iter().map(revoke).collect()).await?;
            doomed.extend(late);
        }
    }

    /// Refuses tokens from here on, before it is durable.
    fn refuse(self, doomed: &BTreeSet<String>) {
        self.engine.inner.auth.refuse(doomed.iter().cloned());
    }

    /// Returns true if a token is stored, and the stored tokens that are made from it, or from one of
    /// those.
    async fn made_from(self, jti: String) -> Result<(bool, Vec<String>), EngineError> {
        self.engine
            .read(move |store| {
                let rows = store.tokens()?;
                Ok((rows.iter().any(|row| row.jti == jti), descendants(&rows, &jti)))
            })
            .await
    }

    /// Deletes the records of tokens that expired a day ago and that nothing needs.
    ///
    /// # Errors
    /// Fails when the store cannot be read or written.
    pub async fn forget_tokens(self) -> Result<(), EngineError> {
        let before_ms = self.engine.shared().clock.now_ms().saturating_sub(EXPIRED_KEPT_MS);
        loop {
            // Deleting a token may be the end of the one that it was made from.
            let expired = self
                .engine
                .read(move |store| store.upkeep().expired_tokens(before_ms, EXPIRED))
                .await?;
            if expired.is_empty() {
                break;
            }
            let erase = |jti: &String| Write::Erase(Box::new(Trace::Token(jti.clone())));
            for some in expired.chunks(DELETED) {
                self.engine.write(Vec::new(), some.iter().map(erase).collect()).await?;
            }
        }
        if !self.engine.shared().accounts.are_kept() {
            return Ok(());
        }
        let rows = self.engine.read(|store| store.tokens()).await?;
        let stored: HashSet<String> = rows.into_iter().map(|row| row.jti).collect();
        self.engine.shared().accounts.forget(before_ms, |jti| stored.contains(jti));
        Ok(())
    }

    /// Returns the open sessions whose tokens are revoked: the host may have died, or failed to
    /// write, before they were ended.
    pub(crate) fn sessions_of_revoked(self) -> Vec<SessionId> {
        let revoked = self.engine.inner.auth.revoked.read();
        self.engine.shared().sessions.with_token(|jti| revoked.contains(jti))
    }
}

/// Returns the tokens that are made from a token, or from one of those.
fn descendants(rows: &[TokenRow], jti: &str) -> Vec<String> {
    let mut children: HashMap<&str, Vec<&str>> = HashMap::new();
    for row in rows {
        if let Some(parent) = &row.parent {
            children.entry(parent).or_default().push(&row.jti);
        }
    }
    let mut found = children.remove(jti).unwrap_or_default();
    let mut at = 0;
    while at < found.len() {
        found.extend(children.remove(found[at]).into_iter().flatten());
        at += 1;
    }
    found.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_made_from_a_token_is_found_once_also_in_a_circle() {
        let row = |jti: &str, parent: Option<&str>| TokenRow {
            jti: jti.to_owned(),
            role: "operator".to_owned(),
            claims: "{}".to_owned(),
            parent: parent.map(str::to_owned),
            created_ms: 1,
            expires_ms: 2,
            revoked_ms: None,
        };
        let rows = [
            row("low", Some("mid")),
            row("other", Some("root")),
            row("mid", Some("top")),
            row("next", Some("top")),
            row("top", Some("root")),
            row("a", Some("b")),
            row("b", Some("a")),
        ];
        assert_eq!(descendants(&rows, "top"), ["mid", "next", "low"]);
        assert!(descendants(&rows, "low").is_empty());
        assert_eq!(descendants(&rows, "a"), ["b", "a"]);
    }
}
