//! Places: limits on concurrent requests and on their bodies in memory, per bearer and in total.
//!
//! A place is taken after the bearer was verified, and released when its request was answered; a
//! large answer is counted by itself until its client has taken it. The messages of a socket are
//! counted as bodies, but an idle socket is no request. Each bearer has a share, and so has each
//! account (all tokens derived from one token, or all attempts of one run). So a client that sends
//! slowly, or a lot at once, does not lock out others. Admins have a reserve beyond the common
//! total.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use super::{Code, problem::Problem};
use crate::{
    engine::Bearer,
    token::{Role, account},
};

/// An account may use this fraction of the total: one half.
const ACCOUNT_SHARE: usize = 2;
/// A bearer may use this fraction of the total: one quarter.
const BEARER_SHARE: usize = 4;
/// Additional places that only admins may use, as a fraction of the total: one sixteenth.
const PLACE_RESERVE: usize = 16;
/// Additional bytes that only admins may use, as a fraction of the total: one half.
const BYTE_RESERVE: usize = 2;
/// A message over a socket of at most this many bytes is not counted.
const SMALL_MESSAGE: usize = 4 << 10;

/// The places in use.
#[derive(Debug)]
pub(super) struct Places {
    requests: usize,
    bytes: usize,
    hasher: RandomState,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: Load,
    by: HashMap<u64, Load, BuildHasherDefault<Hashed>>,
}

/// The hasher of keys that are hashes of [`Places`] already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Load {
    requests: usize,
    bytes: usize,
}

/// The place of one request, or of what is in memory for a socket.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    /// Keys of the bearer and of its account.
    holders: [u64; 2],
    is_admin: bool,
    /// One, or none for a socket.
    requests: usize,
    bytes: AtomicUsize,
}

impl Places {
    /// Creates the places for a number of requests and a total of body bytes.
    pub(super) fn new(requests: usize, bytes: usize) -> Arc<Self> {
        let hasher = RandomState::new();
        Arc::new(Self { requests, bytes, hasher, taken: Mutex::default() })
    }

    /// Takes a place for a request.
    ///
    /// # Errors
    /// Fails when the share of the bearer or of its account is used up, or the total is.
    pub(super) fn take(self: &Arc<Self>, bearer: &Bearer) -> Result<Arc<Place>, Problem> {
        let (holders, is_admin) = match bearer {
            Bearer::Caller(caller) => (
                [self.hash((&caller.jti,)), self.hash(account(&caller.subject))],
                caller.grant.role == Role::Admin,
            ),
            Bearer::Holder(it) => {
                ([self.hash((it.run, it.step, it.attempt)), self.hash((it.run,))], false)
            }
        };
        let mut taken = self.taken.lock();
        for (holder, share) in holders.iter().zip([BEARER_SHARE, ACCOUNT_SHARE]) {
            let most = (self.requests / share).max(1);
            if taken.of(*holder).requests >= most {
                return Err(own(format!("{most} requests of this bearer are under way")));
            }
        }
        let reserve = if is_admin { (self.requests / PLACE_RESERVE).max(1) } else { 0 };
        if taken.all.requests >= self.requests + reserve {
            return Err(full("too many requests are under way"));
        }
        taken.change(&holders, |load| load.requests += 1);
        drop(taken);
        let places = Arc::clone(self);
        let bytes = AtomicUsize::new(0);
        Ok(Arc::new(Place { places, holders, is_admin, requests: 1, bytes }))
    }

    fn hash(&self, who: impl Hash) -> u64 {
        self.hasher.hash_one(who)
    }
}

impl Taken {
    fn of(&self, holder: u64) -> Load {
        self.by.get(&holder).copied().unwrap_or_default()
    }

    /// Updates the loads of the holders and the total. Removes a holder whose load is zero.
    fn change(&mut self, holders: &[u64], change: impl Fn(&mut Load)) {
        change(&mut self.all);
        for holder in holders {
            let load = self.by.entry(*holder).or_default();
            change(load);
            if *load == Load::default() {
                self.by.remove(holder);
            }
        }
    }
}

impl Place {
    /// Returns a place of the same bearer for a socket or one of its messages: it has no bytes yet,
    /// and takes nothing of the number of requests.
    pub(crate) fn beside(&self) -> Self {
        self.among(&self.places)
    }

    /// Returns an empty place of the same bearer among other places, as [`beside`](Self::beside)
    /// does.
    pub(super) fn among(&self, places: &Arc<Places>) -> Self {
        let (places, bytes) = (Arc::clone(places), AtomicUsize::new(0));
        Self { places, requests: 0, bytes, ..*self }
    }

    /// Reserves memory for a message of a socket, as long as the returned place is kept.
    ///
    /// # Errors
    /// As [`grow`](Self::grow).
    pub(crate) fn message(&self, bytes: usize) -> Result<Self, Problem> {
        let place = self.beside();
        // Without room for anything large, what acknowledges and ends work still goes through.
        if bytes > SMALL_MESSAGE {
            place.grow(bytes)?;
        }
        Ok(place)
    }

    /// Reserves memory for more of the request's body. If no other body of the account is in
    /// memory, only the route limits its size.
    ///
    /// # Errors
    /// Fails when the bodies of the bearer, of its account or of all requests are too large.
    pub(crate) fn grow(&self, more: usize) -> Result<(), Problem> {
        let own_bytes = self.bytes.load(Ordering::Relaxed);
        let mut taken = self.places.taken.lock();
        for (holder, share) in self.holders.iter().zip([BEARER_SHARE, ACCOUNT_SHARE]) {
            let (has, most) = (taken.of(*holder).bytes, self.places.bytes / share);
            if has > own_bytes && has + more > most {
                return Err(own(format!("the bodies of this bearer have {has} bytes by now")));
            }
        }
        let reserve = if self.is_admin { self.places.bytes / BYTE_RESERVE } else { 0 };
        if taken.all.bytes + more > self.places.bytes + reserve {
            return Err(full("the bodies of the requests that are under way are too large"));
        }
        taken.change(&self.holders, |load| load.bytes += more);
        self.bytes.fetch_add(more, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let requests = self.requests;
        self.places.taken.lock().change(&self.holders, |load| {
            load.requests -= requests;
            load.bytes -= bytes;
        });
    }
}

fn own(detail: String) -> Problem {
    Problem::new(Code::Busy, detail).retry_after(1)
}

fn full(detail: &str) -> Problem {
    Problem::new(Code::Overloaded, detail).retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{Caller, Holder},
        token::{Grant, Scopes},
    };

    fn caller(role: Role, subject: &str, jti: &str) -> Bearer {
        Bearer::Caller(Caller {
            subject: subject.to_owned(),
            grant: Grant::new(role, Scopes::all()).into(),
            jti: jti.to_owned(),
            expires_ms: u64::MAX,
            session: None,
            trace: None,
        })
    }

    fn holder(step: u32) -> Bearer {
        Bearer::Holder(Holder::of_first(1, step))
    }

    /// Takes places until one is refused. Returns them and the code of the refusal.
    fn fill(places: &Arc<Places>, bearer: &Bearer) -> (Vec<Arc<Place>>, &'static str) {
        let mut held = Vec::new();
        loop {
            match places.take(bearer) {
                Ok(place) => held.push(place),
                Err(problem) => return (held, problem.code().as_str()),
            }
        }
    }

    #[test]
    fn a_bearer_and_an_account_have_their_share_and_admins_a_reserve() {
        let places = Places::new(16, 0);
        let ada = |jti| caller(Role::Operator, "ada/operator", jti);
        let (first, code) = fill(&places, &ada("a"));
        assert_eq!((first.len(), code), (4, "busy"));
        let (second, _) = fill(&places, &ada("b"));
        assert_eq!(second.len(), 4);
        assert_eq!(fill(&places, &ada("c")).0.len(), 0, "the account has its half");
        let (attempt, code) = fill(&places, &holder(1));
        assert_eq!((attempt.len(), code), (4, "busy"));
        let (other, _) = fill(&places, &holder(2));
        let bob = caller(Role::Operator, "bob", "d");
        assert_eq!((other.len(), fill(&places, &bob).1), (4, "overloaded"));
        let (admin, code) = fill(&places, &caller(Role::Admin, "admin", "e"));
        assert_eq!((admin.len(), code), (1, "overloaded"));
        drop(first);
        assert_eq!(fill(&places, &bob).0.len(), 4 - 1, "the reserve is not theirs");
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let places = Places::new(16, 100);
        let ada = caller(Role::Operator, "ada", "a");
        let (one, two) = (places.take(&ada).unwrap(), places.take(&ada).unwrap());
        assert!(one.grow(90).is_ok(), "a body that is alone is bounded by its route");
        assert_eq!(two.grow(1).unwrap_err().code(), "busy");
        let bob = places.take(&caller(Role::Operator, "bob", "b")).unwrap();
        assert_eq!(bob.grow(11).unwrap_err().code(), "overloaded");
        let admin = places.take(&caller(Role::Admin, "admin", "c")).unwrap();
        assert!(admin.grow(60).is_ok());
        drop(one);
        assert!(bob.grow(11).is_ok() && two.grow(1).is_ok());
        drop((two, bob, admin));
        let taken = places.taken.lock();
        assert_eq!((taken.all, taken.by.len()), (Load::default(), 0));
    }

    #[test]
    fn messages_of_a_socket_are_counted_as_bodies_and_the_socket_is_no_request() {
        let places = Places::new(16, 8 * SMALL_MESSAGE);
        let ada = caller(Role::Operator, "ada", "a");
        let socket = places.take(&ada).unwrap().beside();
        assert_eq!(places.taken.lock().all, Load::default(), "an idle socket has no share");
        let large = 2 * SMALL_MESSAGE;
        let held = socket.message(large).unwrap();
        assert_eq!(socket.message(large).unwrap_err().code(), "busy");
        assert_eq!(places.take(&ada).unwrap().grow(1).unwrap_err().code(), "busy");
        assert!(socket.message(SMALL_MESSAGE).is_ok(), "a small one always has room");
        drop(held);
        assert!(socket.message(large).is_ok());
        assert_eq!(places.taken.lock().by.len(), 0);
    }
}
