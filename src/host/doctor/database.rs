//! The PostgreSQL database, for the doctor.

use crate::engine::{DoctorLine as Line, DoctorVerdict};
use crate::store::{self, FindingLevel, PostgresOptions};

const WHAT: &str = "database";

/// Returns what a look at the database finds. Waits for it on this thread.
pub fn database(options: &PostgresOptions) -> Vec<Line> {
    match store::survey_database(options) {
        Err(error) => vec![
            Line::new(DoctorVerdict::Fail, WHAT, format!("failed to {error}"))
                .next("start the database, or check its address; --store names it"),
        ],
        Ok(found) => found
            .into_iter()
            .map(|it| {
                let verdict = match it.level {
                    FindingLevel::Fine => DoctorVerdict::Ok,
                    FindingLevel::Risk => DoctorVerdict::Warn,
                    FindingLevel::Fails => DoctorVerdict::Fail,
                };
                let line = Line::new(verdict, WHAT, it.says);
                match it.next {
                    Some(next) => line.next(next),
                    None => line,
                }
            })
            .collect(),
    }
}
