//! Links that answer one task for one person, once: from a mail or a chat message.
//!
//! A link stands for a token that was minted for the person: of the role approver, with the verbs to
//! read and answer, and the scope of the one task. So whoever makes a link must be able to mint that
//! token, and everything that holds for the person's answer holds for one that comes through the
//! link. The token is signed, and sealed with a key that only the link gives; the store has a hash of
//! the link. A link ends with the first answer, with another revision of the task, and when its time
//! is over.

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};

use crate::{
    engine::{
        Answer, Bearer, Caller, EngineError, MintToken, TaskView, shared::message::ControlAsk,
        verbs::engine::TaskVerbs,
    },
    fault,
    protocol::{Code, TaskId},
    store::Write,
    token::{Quotas, Role, Verb},
};

/// The maximum and default lifetime of a link, in milliseconds.
pub const LINK_MS: u64 = 7 * 86_400_000;
/// The prefix of a link's secret.
const PREFIX: &str = "ln_";
/// The length of a link's secret, in characters.
const CHARS: usize = PREFIX.len() + 64;
/// The place of links among the values that are kept with an expiry. No layer of middleware has a
/// name with a space.
const KEPT: &str = "answer link";

/// A link that was made. Its secret is shown this once.
#[derive(Debug, Clone)]
pub struct AnswerLink {
    /// The secret: its holder may answer.
    pub secret: String,
    /// The subject that answers.
    pub person: String,
    /// The revision of the task that it answers.
    pub revision: String,
    /// The expiry, in Unix milliseconds.
    pub expires_ms: u64,
}

/// An open link.
#[derive(Debug, Clone)]
pub struct OpenLink {
    /// The task, as it is now.
    pub task: TaskView,
    /// The person.
    pub person: String,
    /// The token without which the form of the link is refused.
    pub form: String,
    /// The expiry, in Unix milliseconds.
    pub expires_ms: u64,
    caller: Caller,
    revision: String,
    key: String,
}

impl OpenLink {
    /// Returns the revision that the link answers.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the person, as whom the link answers.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }
}

/// The stored form of a link.
#[derive(Serialize, Deserialize)]
struct Stored {
    sealed: String,
    task: TaskId,
    revision: String,
    expires_ms: u64,
}

impl TaskVerbs<'_> {
    /// Makes a link with which a person answers a task once.
    ///
    /// # Errors
    /// Fails when the caller may not mint a token for that person, or belongs to the run's own work or
    /// is behind it; when the task is over, not for people, or does not ask that person.
    pub async fn link(
        self,
        caller: &Caller,
        task: TaskId,
        person: &str,
        ttl_ms: u64,
    ) -> Result<AnswerLink, EngineError> {
        caller.grant.check(Verb::TokenMint, &[])?;
        let view = self.get(caller, task).await?;
        if ttl_ms == 0 || ttl_ms > LINK_MS {
            let message = "make a link: it lives for at most 7 days".to_owned();
            return Err(EngineError::BadRequest(message));
        }
        self.may_answer(caller, &view, false).await?;
        let verbs = [Verb::TaskRead, Verb::TaskAnswer].map(|it| it.as_str().to_owned());
        let mint = MintToken {
            role: Role::Approver,
            verbs: Some(verbs.into()),
            extra_verbs: Vec::new(),
            scopes: Some(vec![format!("task:{task}")]),
            ttl_ms,
            name: Some(person.to_owned()),
            quotas: Quotas::default(),
        };
        let minted = self.engine.tokens().mint(caller, mint, None).await?;
        let asked = async {
            let Bearer::Caller(holder) = self.engine.authenticate(&minted.token)? else {
                return Err(EngineError::Stopping);
            };
            // What is read now is what the person will be shown.
            let view = self.task_view(task).await?;
            self.may_answer(&holder, &view, true).await?;
            Ok((holder.subject, view.revision.unwrap_or_default()))
        };
        let (person, revision) = match asked.await {
            Ok(asked) => asked,
            Err(error) => {
                self.forget(&minted.jti).await?;
                return Err(error);
            }
        };
        let secret = format!("{PREFIX}{}", random());
        let expires_ms = minted.expires_ms;
        let sealed = BASE64.encode(&sealed(&secret, minted.token.as_bytes()));
        let stored = Stored { sealed, task, revision: revision.clone(), expires_ms };
        let value = serde_json::to_string(&stored).expect("a link is plain data");
        let (layer, key) = (KEPT.to_owned(), key_of(&secret));
        fault::point("engine.answer_link");
        let write = Write::PutKept { layer, key, value, expires_ms: Some(expires_ms) };
        self.engine.write(Vec::new(), vec![write]).await?;
        Ok(AnswerLink { secret, person, revision, expires_ms })
    }

    async fn may_answer(
        self,
        caller: &Caller,
        view: &TaskView,
        asked: bool,
    ) -> Result<(), EngineError> {
        let ask = ControlAsk::MayAnswer { step: view.step, caller: caller.clone(), asked };
        self.engine.ask(view.run.num(), ask).await
    }

    /// Opens a link; it is not used up by that.
    ///
    /// # Errors
    /// Fails when there is no such link, it was used or revoked or its time is over, or the task is
    /// over or another revision.
    pub async fn open_link(self, secret: &str) -> Result<OpenLink, EngineError> {
        let missing = || EngineError::NotFound { what: "link", id: "with this address".into() };
        let is_one = secret.len() == CHARS
            && secret
                .strip_prefix(PREFIX)
                .is_some_and(|it| it.bytes().all(|b| b.is_ascii_hexdigit()));
        if !is_one {
            return Err(missing());
        }
        let key = key_of(secret);
        let wanted = key.clone();
        let kept = self.engine.read(move |store| store.kept(KEPT, &wanted)).await?;
        let stored: Option<Stored> = kept.and_then(|(text, _)| serde_json::from_str(&text).ok());
        let now_ms = self.engine.shared().clock.now_ms();
        let stored = stored.filter(|it| it.expires_ms > now_ms).ok_or_else(missing)?;
        let bytes = BASE64.decode(stored.sealed.as_bytes()).map_err(|_| missing())?;
        let token = String::from_utf8(self::sealed(secret, &bytes)).map_err(|_| missing())?;
        let Ok(Bearer::Caller(caller)) = self.engine.authenticate(&token) else {
            return Err(missing());
        };
        let task = self.get(&caller, stored.task).await?;
        let gone =
            |code, message: &str| EngineError::Conflict { code, message: message.to_owned() };
        match &task.revision {
            None => {
                return Err(gone(Code::AlreadyAccepted, "answer the task: it has ended"));
            }
            Some(now) if *now != stored.revision => {
                let message =
                    "answer the task: it changed since the link was made; ask for another";
                return Err(gone(Code::StaleTask, message));
            }
            Some(_) => {}
        }
        Ok(OpenLink {
            task,
            person: caller.subject.clone(),
            form: form_of(secret),
            expires_ms: stored.expires_ms,
            caller,
            revision: stored.revision,
            key,
        })
    }

    /// Answers through a link, which is used up by that. A refused answer leaves it open.
    ///
    /// # Errors
    /// As [`TaskVerbs::answer`].
    pub async fn answer_link(self, link: &OpenLink, answer: Answer) -> Result<(), EngineError> {
        let revision = Some(link.revision.clone());
        self.answer(&link.caller, link.task.id, (answer, revision), None).await?;
        // The answer counts already: a person answers once.
        let remove = Write::RemoveKept { layer: KEPT.to_owned(), key: link.key.clone() };
        if let Err(error) = self.engine.write(Vec::new(), vec![remove]).await {
            tracing::warn!(%error, "could not remove a used link");
        }
        if let Err(error) = self.forget(&link.caller.jti).await {
            tracing::warn!(%error, "could not revoke the token of a used link");
        }
        Ok(())
    }

    async fn forget(self, jti: &str) -> Result<(), EngineError> {
        self.engine.tokens().revoke(&self.engine.dispatches().owner(), jti).await
    }
}

/// Returns 64 hexadecimal characters that nobody can guess.
fn random() -> String {
    let half = || uuid::Uuid::new_v4().simple().to_string();
    half() + &half()
}

/// Returns the key under which a link is stored.
fn key_of(secret: &str) -> String {
    blake3::derive_key("moonswarm answer link key 1", secret.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn form_of(secret: &str) -> String {
    let key = blake3::derive_key("moonswarm answer link form 1", secret.as_bytes());
    data_encoding::HEXLOWER.encode(&key[..16])
}

/// Seals or opens a token with the key of a link. A link seals one token only.
fn sealed(secret: &str, token: &[u8]) -> Vec<u8> {
    let mut stream = vec![0; token.len()];
    let mut hasher = blake3::Hasher::new_derive_key("moonswarm answer link token 1");
    hasher.update(secret.as_bytes());
    hasher.finalize_xof().fill(&mut stream);
    stream.iter().zip(token).map(|(key, byte)| key ^ byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_opened_by_its_own_link_only_and_the_store_has_no_link() {
        let [one, other] = [0, 1].map(|_| format!("{PREFIX}{}", random()));
        let closed = sealed(&one, b"header.claims.signature");
        assert_eq!(sealed(&one, &closed), b"header.claims.signature");
        assert_ne!(sealed(&other, &closed), b"header.claims.signature");
        assert_eq!(one.len(), CHARS);
        assert!(!key_of(&one).contains(&one[3..]) && key_of(&one) != form_of(&one));
    }
}
