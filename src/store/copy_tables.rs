//! The tables that a copy of a store into one of the other kind carries, with their columns.
//!
//! Rows are carried as they are stored. What one adapter derives from them (indexes of words, sums,
//! marks, hashes of keys) is made anew by the adapter that receives them. A test compares this list
//! with the schemas of both, so that nothing new is forgotten.

use super::StoreError;

/// A table.
#[derive(Debug)]
pub struct Table {
    /// The name, in both schemas.
    pub name: &'static str,
    /// The columns.
    pub columns: &'static [Column],
    /// The order of the rows in each of the schemas, where it matters; otherwise empty.
    pub order: Order,
    /// The condition on the rows that are carried, as both databases understand it.
    pub only: &'static str,
    /// The columns that name a row, where PostgreSQL finds it by a hash of them.
    pub place: &'static [&'static str],
}

/// The order in which the rows of a table are read.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// In the embedded database.
    pub sqlite: &'static str,
    /// In PostgreSQL.
    pub postgres: &'static str,
}

/// A column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The name of the column in SQLite.
    pub name: &'static str,
    /// The name in PostgreSQL, if that is another.
    pub in_postgres: Option<&'static str>,
    /// The kind of its values.
    pub kind: Kind,
}

/// The content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A number.
    Int,
    /// A number with a fraction.
    Real,
    /// True or false.
    Flag,
    /// A text.
    Text,
    /// Bytes.
    Bytes,
    /// A status of a run: a word in the embedded database, a number in PostgreSQL.
    Status,
    /// A phase of a task, likewise.
    Phase,
}

/// A value of a row. Words and flags are numbers, texts are bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A number, a flag, or the number of a word.
    Int(i64),
    /// A number with a fraction.
    Real(f64),
    /// A text, or bytes.
    Bytes(Vec<u8>),
}

impl Column {
    /// Returns its name in PostgreSQL.
    pub fn postgres(&self) -> &'static str {
        self.in_postgres.unwrap_or(self.name)
    }
}

impl Table {
    /// Returns the condition on its rows as a part of a statement.
    pub fn condition(&self) -> String {
        match self.only {
            "" => String::new(),
            only => format!(" WHERE {only}"),
        }
    }

    /// Returns the place of a column in a row.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn at(&self, name: &str) -> usize {
        let found = self.columns.iter().position(|column| column.name == name);
        found.expect("the lists of this file name their own columns")
    }
}

/// Returns the error of a value that is not of its column.
pub fn unfitting(what: &str) -> StoreError {
    StoreError::Damaged {
        what: format!("a row of {what}"),
        reason: "a value is not of its column; `moonswarm doctor --deep` names it".to_owned(),
    }
}

const fn column(name: &'static str, kind: Kind) -> Column {
    Column { name, in_postgres: None, kind }
}

const fn table(name: &'static str, columns: &'static [Column]) -> Table {
    let order = Order { sqlite: "", postgres: "" };
    Table { name, columns, order, only: "", place: &[] }
}

/// The journal. The embedded database has the number of an entry inside of it, and links its rows.
pub const JOURNAL: &str = "journal";

use Kind::{Bytes, Flag, Int, Phase, Real, Status, Text};

/// All tables, in the order in which they are copied.
pub const TABLES: &[Table] = &[
    Table {
        only: "key NOT LIKE 'debris:%' AND key <> 'mark'",
        ..table("meta", &[column("key", Text), column("value", Text)])
    },
    table(
        "runs",
        &[
            column("num", Int),
            column("cursor", Int),
            column("seq", Int),
            column("steps", Int),
            column("steps_done", Int),
            column("updated_ms", Int),
            column("created_ms", Int),
            column("status", Status),
            column("wake_at_ms", Int),
            column("epoch", Int),
            column("parent_run", Int),
            column("parent_step", Int),
            column("ended_ms", Int),
            column("progress", Real),
            column("blueprint", Text),
            column("hash", Text),
            column("principal", Text),
            column("status_text", Text),
            column("error", Text),
            column("waiting_on", Text),
            column("nonce", Int),
            column("bytes", Int),
            column("tags", Text),
            column("used", Text),
        ],
    ),
    table(
        "run_tags",
        &[
            column("name", Text),
            column("value", Text),
            column("created_ms", Int),
            column("run", Int),
        ],
    ),
    Table {
        // What is left of deleted runs stays behind.
        only: "run IN (SELECT num FROM runs)",
        order: Order { sqlite: "lsn", postgres: "run, seq" },
        ..table(
            JOURNAL,
            &[
                column("run", Int),
                column("seq", Int),
                column("lsn", Int),
                column("begins", Flag),
                column("entry", Bytes),
            ],
        )
    },
    table(
        "tasks",
        &[
            column("run", Int),
            column("step", Int),
            column("attempt", Int),
            column("epoch", Int),
            column("scheduled_ms", Int),
            column("opened_ms", Int),
            column("deadline_ms", Int),
            column("lease_ms", Int),
            column("graces", Int),
            column("phase", Phase),
            column("agent", Text),
            column("operator", Text),
            column("kind", Text),
            column("queue", Text),
            column("worker", Text),
            column("summary", Text),
            column("prompt", Text),
            column("question", Text),
        ],
    ),
    Table {
        place: &["scope", "key"],
        order: Order { sqlite: "id", postgres: "place" },
        ..table(
            "state",
            &[
                column("scope", Text),
                column("key", Text),
                column("revision", Int),
                column("updated_ms", Int),
                column("expires_ms", Int),
                column("hints", Text),
                column("value", Text),
            ],
        )
    },
    Table {
        place: &["scope", "from_key", "relation", "to_key"],
        ..table(
            "state_links",
            &[
                column("scope", Text),
                column("from_key", Text),
                column("relation", Text),
                column("to_key", Text),
                column("metadata", Text),
            ],
        )
    },
    table("state_receipts", &[column("run", Int), column("step", Int), column("answer", Text)]),
    Table {
        only: "EXISTS (SELECT 1 FROM artifacts a JOIN runs r ON r.num = a.run WHERE a.hash = blobs.hash)
               OR NOT EXISTS (SELECT 1 FROM artifacts a WHERE a.hash = blobs.hash)",
        ..table("blobs", &[column("hash", Text), column("data", Bytes)])
    },
    Table {
        only: "run IN (SELECT num FROM runs)",
        ..table(
            "artifacts",
            &[
                column("run", Int),
                column("n", Int),
                column("step", Int),
                column("attempt", Int),
                column("size", Int),
                column("created_ms", Int),
                column("published", Flag),
                column("name", Text),
                column("hash", Text),
            ],
        )
    },
    Table {
        order: Order { sqlite: "rowid", postgres: "id" },
        ..table(
            "blueprints",
            &[
                column("hash", Text),
                column("name", Text),
                column("created_ms", Int),
                column("bundle", Bytes),
                column("publisher", Text),
            ],
        )
    },
    table("blueprint_names", &[column("name", Text), column("hash", Text), column("at_ms", Int)]),
    table(
        "charges",
        &[
            column("run", Int),
            column("jti", Text),
            column("bytes", Int),
            column("tokens", Int),
            column("nano_usd", Int),
        ],
    ),
    table("charged", &[column("jti", Text), column("tokens", Int), column("nano_usd", Int)]),
    Table {
        order: Order { sqlite: "id", postgres: "id" },
        ..table("stats_new", &[column("body", Bytes)])
    },
    table(
        "stats",
        &[
            column("grain", Int),
            column("of", Int),
            column("at_ms", Int),
            column("name", Text),
            column("ending", Int),
            column("body", Bytes),
        ],
    ),
    table(
        "stats_costly",
        &[
            column("day_ms", Int),
            column("run", Int),
            column("created_ms", Int),
            column("tokens", Int),
            column("nano_usd", Int),
            column("blueprint", Text),
        ],
    ),
    Table {
        order: Order { sqlite: "rowid", postgres: "id" },
        ..table(
            "tokens",
            &[
                column("jti", Text),
                column("role", Text),
                column("claims", Text),
                column("parent", Text),
                column("created_ms", Int),
                column("expires_ms", Int),
            ],
        )
    },
    table("revocations", &[column("jti", Text), column("at_ms", Int)]),
    Table {
        place: &["principal", "route", "key"],
        ..table(
            "idempotency",
            &[
                column("principal", Text),
                column("route", Text),
                column("key", Text),
                column("created_ms", Int),
                column("body", Text),
                column("answer", Text),
            ],
        )
    },
    Table {
        order: Order { sqlite: "id", postgres: "id" },
        ..table(
            "outbox",
            &[
                column("run", Int),
                column("step", Int),
                column("target", Int),
                Column { name: "cancels", in_postgres: Some("kind"), kind: Int },
                column("name", Text),
                column("payload", Text),
            ],
        )
    },
    Table {
        order: Order { sqlite: "id", postgres: "id" },
        ..table(
            "evidence",
            &[
                column("run", Int),
                column("step", Int),
                column("attempt", Int),
                column("at_ms", Int),
                column("code", Text),
                column("body", Text),
            ],
        )
    },
    table(
        "sessions",
        &[
            column("id", Text),
            column("operator", Text),
            column("principal", Text),
            column("jti", Text),
            column("until_ms", Int),
            column("created_ms", Int),
            column("expires_ms", Int),
            column("direct", Flag),
            column("last_seq", Int),
            column("acked_seq", Int),
            column("closed_ms", Int),
            column("reason", Text),
        ],
    ),
    table(
        "frames",
        &[
            column("session", Text),
            column("seq", Int),
            column("run", Int),
            column("step", Int),
            column("attempt", Int),
            column("epoch", Int),
            column("scheduled_ms", Int),
            column("nonce", Int),
            column("timeout_ms", Int),
            column("method", Text),
            column("params", Text),
        ],
    ),
    Table {
        place: &["layer", "key"],
        ..table(
            "kept",
            &[
                column("layer", Text),
                column("key", Text),
                column("expires_ms", Int),
                column("value", Text),
            ],
        )
    },
    table(
        "audit",
        &[column("seq", Int), column("at", Text), column("line", Text), column("hash", Text)],
    ),
];
