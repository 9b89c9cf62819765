//! The conformance suite over a real server, and the plans of the statements.

use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::store::conformance::conformance;

mod cuts;
mod faults;
mod helping;
mod lanes;
#[path = "../../../tests/support/network.rs"]
mod network;
mod passing;
mod plans;
#[path = "../../../tests/support/postgres.rs"]
mod server;

use network::Network;
use server::Database;

/// A data directory and a database, which are gone with it.
pub struct Home {
    pub dir: TempDir,
    pub database: Database,
}

impl Home {
    /// Creates a directory and an empty database. Without a server the test is noted as skipped.
    pub fn new() -> Option<Self> {
        match Database::fresh() {
            Ok(database) => Some(Self { dir: TempDir::new().unwrap(), database }),
            Err(why) => {
                skip(&why);
                None
            }
        }
    }

    /// Opens the store through a network.
    pub fn open_through(&self, network: &Network) -> Arc<Postgres> {
        let url = network.through(&self.database.tcp_url(), self.database.port());
        let options = PostgresOptions::new(DatabaseAddress::parse(&url).unwrap());
        Postgres::open(self.dir.path(), &options).unwrap()
    }

    /// Opens the store.
    pub fn open(&self) -> Arc<Postgres> {
        let address = DatabaseAddress::parse(&self.database.url()).unwrap();
        let options = PostgresOptions { writers: 4, ..PostgresOptions::new(address) };
        Postgres::open(self.dir.path(), &options).unwrap()
    }
}

fn fresh() -> Option<(Home, Arc<Postgres>)> {
    let home = Home::new()?;
    let store = home.open();
    Some((home, store))
}

/// Notes that the tests over a server are not run. `scripts/test.sh` reads the file.
fn skip(why: &str) {
    use std::io::Write as _;
    assert!(
        std::env::var("MOONSWARM_REQUIRE_TOOLS").as_deref() != Ok("1"),
        "the store over PostgreSQL: {why}, and MOONSWARM_REQUIRE_TOOLS asks for it"
    );
    eprintln!("SKIPPED the store over PostgreSQL: {why}");
    let Some(list) = std::env::var_os("MOONSWARM_SKIPPED") else { return };
    let list = std::fs::OpenOptions::new().create(true).append(true).open(list);
    list.unwrap().write_all(format!("the store over PostgreSQL: {why}\n").as_bytes()).unwrap();
}

conformance!(match fresh() {
    Some(it) => it,
    None => return,
});
