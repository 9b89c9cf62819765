//! The tokens of people whom a proxy has identified.

use super::auth::{is_persons_name, mint_claims, token_row};
use crate::{
    engine::{EngineError, Minted, TokenVerbs},
    fault,
    store::Write,
    token::{Grant, Role, Scopes},
};

impl TokenVerbs<'_> {
    /// Mints a token for a person, who is the same one under each token of this name.
    ///
    /// # Errors
    /// Fails when it is no name of a person, or the token cannot be stored.
    pub async fn mint_person(
        self,
        name: &str,
        role: Role,
        scopes: Option<&[String]>,
        ttl_ms: u64,
    ) -> Result<Minted, EngineError> {
        if !is_persons_name(name) {
            let name: String = name.chars().take(80).collect();
            return Err(EngineError::BadRequest(format!(
                "know {name:?} as a person: a name has 1 to 64 letters, digits or any of `._-@+`, \
                 and is no role's"
            )));
        }
        let scopes = scopes.map_or_else(|| Ok(Scopes::all()), |scopes| self.scopes_of(scopes))?;
        let now_ms = self.engine.shared().clock.now_ms();
        let expires_ms = now_ms.saturating_add(ttl_ms);
        let claims = mint_claims(name, Grant::new(role, scopes), now_ms, expires_ms);
        let token = self.engine.inner.auth.sign(&claims)?;
        let row = token_row(&claims, now_ms, expires_ms);
        fault::point("engine.token_mint");
        self.engine.shared().accounts.add(&claims, now_ms);
        self.engine.write(Vec::new(), vec![Write::PutToken(row)]).await?;
        Ok(Minted { token, jti: claims.jti, expires_ms })
    }
}
