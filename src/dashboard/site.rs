//! The names by which browsers know this host: of its cookie, and below `.localhost`.

/// The names of one host.
///
/// Cookies know no ports: two hosts on one machine would overwrite each other's. So the cookie is
/// named after the data directory, and a link to a loopback address uses a name of its own, to which
/// no other local server is sent the cookie.
#[derive(Debug, Clone)]
pub struct Site {
    cookie: String,
    host: String,
}

impl Site {
    /// Returns the names of the host with this incarnation.
    pub fn of(incarnation: u64) -> Self {
        let key = blake3::derive_key("moonswarm dashboard names 1", &incarnation.to_le_bytes());
        let short = data_encoding::HEXLOWER.encode(&key[..6]);
        Self { cookie: format!("moonswarm_{short}"), host: format!("moonswarm-{short}.localhost") }
    }

    /// Returns the name of the cookie.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Returns the host name, which browsers resolve to the loopback address.
    pub fn host(&self) -> &str {
        &self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_names_of_its_own_that_do_not_show_its_incarnation() {
        let (one, other) = (Site::of(7), Site::of(8));
        assert_ne!(one.cookie(), other.cookie());
        assert_eq!(one.host(), Site::of(7).host());
        assert!(one.host().ends_with(".localhost") && one.host().len() < 40, "{}", one.host());
    }
}
