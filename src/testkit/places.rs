//! Places: the number of requests to run tests that are under way, in total and per account.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// The requests of one account that are under way.
const EACH: usize = 1;

/// The places of a host.
#[derive(Debug)]
pub struct Places {
    all: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// The reason why a request has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// The account has its share.
    Own,
    /// All places are taken.
    All,
}

/// The place of one request; dropping it frees it.
#[derive(Debug)]
pub struct RequestPlace {
    places: Arc<Places>,
    account: String,
}

impl Places {
    /// Creates the places for a number of requests at a time.
    pub fn new(all: usize) -> Arc<Self> {
        Arc::new(Self { all, taken: Mutex::default() })
    }

    /// Takes a place for an account.
    ///
    /// # Errors
    /// Fails when the account has its share, or there is none left.
    pub fn take(self: &Arc<Self>, account: &str) -> Result<RequestPlace, NoPlace> {
        let mut taken = self.taken.lock();
        if taken.get(account).is_some_and(|own| *own >= EACH) {
            return Err(NoPlace::Own);
        }
        if taken.values().sum::<usize>() >= self.all {
            return Err(NoPlace::All);
        }
        *taken.entry(account.to_owned()).or_default() += 1;
        Ok(RequestPlace { places: Arc::clone(self), account: account.to_owned() })
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        if let Some(own) = taken.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_one_place_and_all_have_a_few() {
        let places = Places::new(2);
        let ada = places.take("ada").unwrap();
        assert_eq!(places.take("ada").unwrap_err(), NoPlace::Own);
        let _bob = places.take("bob").unwrap();
        assert_eq!(places.take("eve").unwrap_err(), NoPlace::All);
        drop(ada);
        assert!(places.take("eve").is_ok());
        assert_eq!(places.taken.lock().len(), 1, "who has none is forgotten");
    }
}
