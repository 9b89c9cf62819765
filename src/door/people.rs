//! People whom others have identified: their roles, and the tokens with which they act.
//!
//! A proxy that knows who somebody is names them in a header; a provider names them in its tokens.
//! The first role that fits holds, and the person gets a token of it: from there on the request is
//! one like any other, with a subject, a rate, scopes, and a place in the audit log.

use axum::http::{HeaderMap, HeaderName, header::AUTHORIZATION};
use hashlink::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    Code,
    oidc::{Attempt, Oidc, Provider},
    person::{MOST_GROUPS, Person},
    problem::Problem,
};
use crate::{
    clock::Clock,
    engine::{Bearer, Engine},
    token::Role,
};

/// The lifetime of a person's token, in milliseconds. A person is asked for again at half of it.
const TTL_MS: u64 = 24 * 3_600 * 1_000;
/// The maximum number of people whose tokens are in memory.
const MOST_KNOWN: usize = 4_096;
/// The maximum number of rows of roles.
const MOST_ROLES: usize = 1_024;

/// The ways in which people are identified, and their roles.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct People {
    /// The header in which a proxy names a person.
    #[serde(default, deserialize_with = "name")]
    header: Option<HeaderName>,
    /// The header with the person's groups, separated by commas.
    #[serde(default, deserialize_with = "name")]
    groups: Option<HeaderName>,
    /// The provider whose tokens name people.
    oidc: Option<Oidc>,
    /// The roles; the first that fits holds.
    #[serde(default, deserialize_with = "roles")]
    roles: Vec<RoleOf>,
}

/// A role, and who has it: a person, a group, or everybody whom the proxy lets through.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleOf {
    name: Option<String>,
    group: Option<String>,
    #[serde(default)]
    everybody: bool,
    role: Role,
    /// The scopes; all if absent.
    scopes: Option<Vec<String>>,
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<HeaderName>, D::Error> {
    let text = String::deserialize(from)?;
    let name = HeaderName::try_from(&*text).ok();
    let name = name.filter(|name| *name != AUTHORIZATION);
    let wrong = || D::Error::custom(format!("{text:?} is not a header for a person's name"));
    name.ok_or_else(wrong).map(Some)
}

fn roles<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RoleOf>, D::Error> {
    let roles = Vec::<RoleOf>::deserialize(from)?;
    if roles.len() > MOST_ROLES {
        return Err(D::Error::custom(format!("there are more than {MOST_ROLES} roles")));
    }
    for row in &roles {
        let said = [row.name.is_some(), row.group.is_some(), row.everybody];
        if said.iter().filter(|it| **it).count() != 1 {
            let wrong = "a row of `people.roles` has one of `name`, `group` and `everybody = true`";
            return Err(D::Error::custom(wrong));
        }
        if matches!(row.role, Role::Queue | Role::Worker) {
            let wrong = format!("the role {} is none for a person", row.role);
            return Err(D::Error::custom(wrong));
        }
        let scopes = row.scopes.iter().flatten();
        for scope in scopes {
            scope.parse::<crate::token::Scope>().map_err(D::Error::custom)?;
        }
    }
    Ok(roles)
}

impl People {
    /// Returns the headers, which only proxies may send.
    pub(super) fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.header.iter().chain(&self.groups)
    }

    /// Reads the person whom a proxy names. A header that comes twice names nobody.
    pub(super) fn of(&self, headers: &HeaderMap) -> Option<Person> {
        let mut named = headers.get_all(self.header.as_ref()?).iter();
        let (Some(name), None) = (named.next(), named.next()) else { return None };
        let name = name.to_str().ok()?.trim().to_owned();
        let groups = self.groups.iter().flat_map(|header| headers.get_all(header));
        let groups = groups.filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(','));
        let groups = groups.map(|it| it.trim().to_owned()).take(MOST_GROUPS).collect();
        (!name.is_empty()).then_some(Person { name, groups })
    }

    /// Returns the number of the first row that fits.
    fn row_of(&self, person: &Person) -> Option<usize> {
        self.roles.iter().position(|row| {
            row.everybody
                || row.name.as_ref().is_some_and(|name| *name == person.name)
                || row.group.as_ref().is_some_and(|group| person.groups.contains(group))
        })
    }

    /// Says in one line what a person may be, for `doctor`.
    pub fn told(&self) -> String {
        let header = self.header.as_ref().map(|it| format!("the header `{it}` of a proxy"));
        let tokens = self.oidc.as_ref().map(|it| format!("tokens of {}", it.issuer()));
        let ways: Vec<_> = header.into_iter().chain(tokens).collect();
        match ways.is_empty() {
            true => "nothing names people: set `header` or `oidc`".to_owned(),
            false => {
                format!("{} name people; {} rows of roles", ways.join(" and "), self.roles.len())
            }
        }
    }

    /// Returns true if a proxy has to name people.
    pub fn needs_proxy(&self) -> bool {
        self.oidc.is_none()
    }
}

/// The tokens of people.
#[derive(Debug)]
pub(crate) struct Tokens {
    people: People,
    provider: Option<Provider>,
    clock: Clock,
    known: Mutex<LruCache<(String, usize), CachedToken>>,
}

#[derive(Debug, Clone)]
struct CachedToken {
    token: String,
    expires_ms: u64,
}

impl Tokens {
    pub(super) fn new(people: People, clock: Clock) -> Self {
        let provider = people.oidc.clone().map(|oidc| Provider::new(oidc, clock.clone()));
        Self { people, provider, clock, known: Mutex::new(LruCache::new(MOST_KNOWN)) }
    }

    /// Returns the provider of a bearer, if it is a foreign token.
    pub(super) fn provider_of(&self, bearer: &str) -> Option<&Provider> {
        self.provider.as_ref().filter(|provider| provider.is_of(bearer))
    }

    /// Returns the provider with which browsers sign in, and the origin of the dashboard.
    pub(crate) fn login(&self) -> Option<(&str, &str)> {
        let origin = self.provider.as_ref()?.login_at()?;
        Some((self.people.oidc.as_ref()?.issuer(), origin))
    }

    /// Returns the address at which a browser signs in.
    ///
    /// # Errors
    /// Fails when browsers do not sign in here, or the provider cannot be asked.
    pub(crate) async fn begin(&self, attempt: &Attempt) -> Result<String, Problem> {
        self.asked()?.begin(attempt).await
    }

    /// Returns a token of the person who signed in, for the code that came back, and the provider's
    /// own token.
    ///
    /// # Errors
    /// Fails when the code or the token of the provider is not good, or no role fits.
    pub(crate) async fn finish(
        &self,
        engine: &Engine,
        attempt: &Attempt,
        (code, issuer): (&str, Option<&str>),
    ) -> Result<(String, String), Problem> {
        let (person, id_token) = self.asked()?.finish(attempt, code, issuer).await?;
        Ok((self.of(engine, &person).await?, id_token))
    }

    /// Returns the address at which a browser signs out of the provider; `None` if it has none, or
    /// does not answer.
    pub(crate) async fn farewell(&self, id_token: &str) -> Option<String> {
        self.provider.as_ref()?.farewell(id_token).await
    }

    fn asked(&self) -> Result<&Provider, Problem> {
        let none = || Problem::new(Code::NoRoute, "browsers do not sign in with a provider here");
        self.provider.as_ref().ok_or_else(none)
    }

    /// Returns a token of a person.
    ///
    /// # Errors
    /// Fails when no role fits, or the name cannot be one of a person.
    pub(super) async fn of(&self, engine: &Engine, person: &Person) -> Result<String, Problem> {
        let Some(at) = self.people.row_of(person) else {
            let name: String = person.name.chars().take(80).collect();
            let detail = format!("{name:?} has no role: no row of `people.roles` fits");
            return Err(Problem::new(Code::Forbidden, detail));
        };
        let now_ms = self.clock.now_ms();
        let key = (person.name.clone(), at);
        let known = self.known.lock().get(&key).cloned();
        if let Some(known) = known.filter(|known| known.expires_ms > now_ms + TTL_MS / 2)
            && let Ok(Bearer::Caller(_)) = engine.authenticate(&known.token)
        {
            return Ok(known.token);
        }
        let RoleOf { role, scopes, .. } = &self.people.roles[at];
        let minted =
            engine.tokens().mint_person(&person.name, *role, scopes.as_deref(), TTL_MS).await?;
        let token = minted.token;
        self.known
            .lock()
            .insert(key, CachedToken { token: token.clone(), expires_ms: minted.expires_ms });
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "header = \"Remote-User\"\ngroups = \"Remote-Groups\"\n\
        [[roles]]\nname = \"ada\"\nrole = \"admin\"\n\
        [[roles]]\ngroup = \"ops\"\nrole = \"operator\"\nscopes = [\"blueprint:deploy\"]\n\
        [[roles]]\neverybody = true\nrole = \"observer\"\n";

    fn people(text: &str) -> Result<People, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_first_row_that_fits_holds() {
        let people = people(CONFIG).unwrap();
        let role = |all: &[(&'static str, &str)]| {
            people
                .of(&headers(all))
                .and_then(|it| people.row_of(&it))
                .map(|at| people.roles[at].role)
        };
        assert_eq!(role(&[("remote-user", "ada"), ("remote-groups", "ops")]), Some(Role::Admin));
        assert_eq!(
            role(&[("remote-user", "bob"), ("remote-groups", "x, ops")]),
            Some(Role::Operator)
        );
        assert_eq!(
            role(&[("remote-user", "bob"), ("remote-groups", "devops")]),
            Some(Role::Observer)
        );
        assert_eq!(role(&[("remote-groups", "ops")]), None);
        assert_eq!(role(&[("remote-user", "ada"), ("remote-user", "bob")]), None);
        assert_eq!(role(&[("remote-user", "  ")]), None);
    }

    #[test]
    fn a_row_that_would_mean_nobody_or_everybody_by_mistake_is_refused() {
        for (row, expected) in [
            ("role = \"admin\"", "has one of `name`, `group`"),
            ("name = \"a\"\ngroup = \"b\"\nrole = \"admin\"", "has one of `name`, `group`"),
            ("name = \"a\"\nrole = \"worker\"", "none for a person"),
            ("name = \"a\"\nrole = \"observer\"\nscopes = [\"nonsense\"]", "scope"),
            ("name = \"a\"\nrole = \"king\"", "king"),
        ] {
            let error = people(&format!("header = \"X\"\n[[roles]]\n{row}")).unwrap_err();
            assert!(error.contains(expected), "{row}: {error}");
        }
        assert!(people("header = \"Authorization\"").is_err());
        assert!(people("header = \"a b\"").is_err());
    }
}
