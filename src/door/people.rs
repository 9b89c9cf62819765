//! People whom others have identified: their roles, and the tokens with which they act.
//!
//! A proxy that knows who somebody is names them in a header; a provider names them in its tokens.
//! The first role that fits holds, and the person gets a token of it: from there on the request is
//! one like any other, with a subject, a rate, scopes, and a place in the audit log.

use std::{net::IpAddr, path::Path};

use axum::http::{HeaderMap, HeaderName, header::AUTHORIZATION};
use hashlink::LruCache;
use ipnet::IpNet;
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::{
    Code,
    oidc::{Attempt, Oidc, Provider, secret},
    person::{MOST_GROUPS, Person, folded},
    problem::Problem,
    proof::{PeopleError, Proof, is_of_this_machine},
};
use crate::{
    clock::Clock,
    engine::{Bearer, Engine},
    environment::Text,
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
    /// The secret with which a proxy proves that the header is its own.
    #[serde(default, deserialize_with = "secret")]
    secret: Option<Text>,
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
    let mut roles = Vec::<RoleOf>::deserialize(from)?;
    if roles.len() > MOST_ROLES {
        return Err(D::Error::custom(format!("there are more than {MOST_ROLES} roles")));
    }
    for row in &mut roles {
        row.name = row.name.as_deref().map(folded);
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
        let name = name.to_str().ok()?;
        let groups = self.groups.iter().flat_map(|header| headers.get_all(header));
        let groups = groups.filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(','));
        let groups = groups.map(|it| it.trim().to_owned()).take(MOST_GROUPS).collect();
        Person::new(name, groups)
    }

    /// Returns true if a request has the header with a name, whatever is in it.
    pub(super) fn is_named(&self, headers: &HeaderMap) -> bool {
        self.header.as_ref().is_some_and(|header| headers.contains_key(header))
    }

    /// Returns the proof that a proxy has to give. Blocks while a file is read.
    pub(super) fn proof(&self) -> Proof {
        self.secret.as_ref().map_or(Proof::Needless, |secret| {
            // Reported at the start; here it means that nobody can give the proof.
            Proof::read(secret).unwrap_or(Proof::Unknown)
        })
    }

    /// Checks that nobody but the proxies can name people. Blocks while the secret is read.
    ///
    /// # Errors
    /// Fails when every program on this machine could name them, and when the secret cannot be used.
    pub fn check(&self, proxies: &[IpNet]) -> Result<(), PeopleError> {
        if let Some(secret) = &self.secret {
            return Proof::read(secret).map(drop);
        }
        let Some(header) = &self.header else { return Ok(()) };
        match proxies.iter().find(|net| is_of_this_machine(net)) {
            Some(net) => Err(PeopleError::Unproven { header: header.clone(), net: *net }),
            None => Ok(()),
        }
    }

    /// Returns true if an address in `proxies` is all that it takes to name people.
    pub fn lacks_secret(&self) -> bool {
        self.header.is_some() && self.secret.is_none()
    }

    /// Returns the file of the secret, if it is in one.
    pub fn secret_file(&self) -> Option<&Path> {
        match &self.secret {
            Some(Text::File { path, .. }) => Some(path.as_path()),
            Some(Text::Plain(_) | Text::Env { .. }) | None => None,
        }
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

    /// Returns a token of the person who signed in, for the code and the issuer that came back from
    /// the browser at an address, and the provider's own token.
    ///
    /// # Errors
    /// Fails when the code or the token of the provider is not good, or no role fits.
    pub(crate) async fn finish(
        &self,
        engine: &Engine,
        attempt: &Attempt,
        answer: (&str, Option<&str>),
        client: Option<IpAddr>,
    ) -> Result<(String, String), Problem> {
        let (person, id_token) = self.asked()?.finish(attempt, answer, client).await?;
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
        assert_eq!(role(&[("remote-user", "ADA")]), Some(Role::Admin), "it is the same person");
    }

    #[test]
    fn a_row_for_a_name_fits_it_in_any_case() {
        let text = "header = \"X\"\n[[roles]]\nname = \"Bob\"\nrole = \"operator\"\n\
                    [[roles]]\neverybody = true\nrole = \"approver\"";
        let people = people(text).unwrap();
        for name in ["bob", "Bob", "bOB"] {
            let bob = people.of(&headers(&[("x", name)])).unwrap();
            assert_eq!((&*bob.name, people.row_of(&bob)), ("bob", Some(0)), "{name}");
        }
    }

    #[test]
    fn who_trusts_this_machine_without_a_secret_is_refused() {
        let check = |text: &str, net: &str| {
            people(text).unwrap().check(&[net.parse().unwrap()]).map_err(|error| error.to_string())
        };
        for net in ["127.0.0.1/32", "127.9.0.0/16", "0.0.0.0/1", "::1/128", "::ffff:127.0.0.1/128"]
        {
            let error = check(CONFIG, net).unwrap_err();
            assert!(
                error.contains("`remote-user`") && error.contains("`people.secret`"),
                "{error}"
            );
        }
        check(CONFIG, "10.0.0.0/8").unwrap();
        check("", "127.0.0.1/32").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("proxy.secret");
        let text = format!("secret = {{ file = {file:?} }}\n{CONFIG}");
        assert!(check(&text, "127.0.0.1/32").unwrap_err().contains("proxy.secret"));
        for secret in ["", "short", "with spaces in it\n"] {
            std::fs::write(&file, secret).unwrap();
            let error = check(&text, "127.0.0.1/32").unwrap_err();
            assert!(error.contains("openssl rand"), "{secret:?}: {error}");
        }
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        check(&text, "127.0.0.1/32").unwrap();
        assert_eq!(people(&text).unwrap().secret_file(), Some(&*file));
        let plain = people("header = \"X\"\nsecret = \"0123456789abcdef\"").unwrap_err();
        assert!(plain.contains("does not stand in the file"), "{plain}");
    }

    #[test]
    fn a_proof_is_the_secret_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("proxy.secret");
        let text = format!("header = \"X\"\nsecret = {{ file = {file:?} }}");
        let people = people(&text).unwrap();
        let good = [("moonswarm-proxy-secret", "0123456789abcdef")];
        assert!(
            !people.proof().is_given(&headers(&good), false),
            "a secret that cannot be read is nobody's"
        );
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let proof = people.proof();
        assert!(proof.is_given(&headers(&good), false));
        assert!(!proof.is_given(&headers(&[]), false));
        assert!(
            !proof.is_given(&headers(&[good[0], good[0]]), false),
            "a client may have sent one of two"
        );
        for wrong in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(
                !proof.is_given(&headers(&[("moonswarm-proxy-secret", wrong)]), false),
                "{wrong}"
            );
        }
        assert!(!format!("{proof:?}").contains("0123"), "it is shown nowhere");
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
