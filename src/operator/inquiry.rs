//! The questions to people, and their answers so far.

use serde::{Deserialize, Serialize};

use crate::{
    flow::{Asking, STARTER},
    protocol::Json,
    token::{Role, is_same_subject, person},
};

/// The maximum number of reminders of one attempt, so that a forgotten task does not fill its
/// journal.
const MOST_REMINDERS: u32 = 100;

/// The people that a task asks, and their answers so far. Stored with the open task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inquiry {
    /// The roles and subjects that may answer; anyone with the verb if empty.
    pub by: Vec<String>,
    /// The number of people who must agree.
    pub required: u32,
    /// The interval of reminders, in milliseconds.
    pub remind_ms: Option<u64>,
    /// A hash of everything that is shown; an answer to an older revision is refused.
    pub revision: String,
    /// The answers so far, while more are needed.
    pub answers: Vec<GivenAnswer>,
    /// The number of reminders so far.
    pub reminders: u32,
    /// The time of the next reminder, in Unix milliseconds.
    pub remind_at_ms: Option<u64>,
}

/// One answer to a task that needs several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenAnswer {
    /// The subject that answered.
    pub by: String,
    /// The time, in Unix milliseconds.
    pub at_ms: u64,
    /// The answer.
    pub output: Json,
}

impl Inquiry {
    /// Creates the inquiry of an attempt with this prompt.
    pub fn new(prompt: &impl Serialize, asking: &Asking, now_ms: u64) -> Self {
        let seen = serde_json::to_vec(&(prompt, &asking.by, asking.required))
            .expect("a prompt is plain data");
        Self {
            by: asking.by.clone(),
            required: asking.required.unwrap_or(1).max(1),
            remind_ms: asking.remind_ms,
            revision: blake3::hash(&seen).to_hex()[..16].to_owned(),
            answers: Vec::new(),
            reminders: 0,
            remind_at_ms: asking.remind_ms.map(|ms| now_ms.saturating_add(ms)),
        }
    }

    /// Returns true if `subject` or `role` is asked, by [`names`].
    pub fn asks(&self, subject: &str, role: Role) -> bool {
        names(&self.by, subject, role)
    }

    /// Returns true if the client that started the run is asked.
    pub fn asks_starter(&self) -> bool {
        names_starter(&self.by)
    }

    /// Returns true if the person behind `subject` has already answered.
    pub fn has_heard(&self, subject: &str) -> bool {
        let asked = person(subject);
        self.answers.iter().any(|given| is_same_subject(&person(&given.by), &asked))
    }

    /// Returns true if one more answer is not enough.
    pub fn wants_more(&self) -> bool {
        (self.answers.len() as u64) + 1 < u64::from(self.required)
    }

    /// Counts a reminder and sets the time of the next one; returns the number so far.
    pub fn remind(&mut self, now_ms: u64) -> u32 {
        self.reminders += 1;
        let next = self.remind_ms.filter(|_| self.reminders < MOST_REMINDERS);
        // Missed reminders count as one.
        self.remind_at_ms = next.map(|ms| now_ms.saturating_add(ms));
        self.reminders
    }
}

/// Returns true if `subject` or `role` is among those that are asked, or anyone is. The name of a role
/// means its holders, and an admin, who holds every role; a word for the starter means nobody of that
/// name; any other entry is a subject, or the [`person`] behind it, in any case.
pub fn names(by: &[String], subject: &str, role: Role) -> bool {
    by.is_empty()
        || by.iter().any(|who| match who.parse::<Role>() {
            Ok(asked) => role.holds(asked),
            Err(_) if is_starter(who) => false,
            Err(_) => is_same_subject(who, subject) || is_same_subject(who, &person(subject)),
        })
}

/// Returns true if the client that started the run is among those that are asked.
pub fn names_starter(by: &[String]) -> bool {
    by.iter().any(|who| is_starter(who))
}

fn is_starter(who: &str) -> bool {
    STARTER.contains(&who)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        operator::{Prompt, says_no},
        protocol::{RunId, TaskId},
    };

    fn prompt(attempt: u32) -> Prompt {
        Prompt {
            task: TaskId::new(1, 1, 1),
            run: RunId::new(1, 1),
            agent: "ship".into(),
            attempt,
            system: None,
            addendum: None,
            prompt: "Ship it?".into(),
            input: Json::null(),
            output_schema: None,
            summary: None,
            idempotency_key: None,
            inquiry: None,
            labels: Default::default(),
            session: None,
            worker: None,
        }
    }

    fn inquiry(by: &[&str], required: u32) -> Inquiry {
        let by = by.iter().map(|who| (*who).to_owned()).collect();
        let asking = Asking { by, required: Some(required), remind_ms: Some(10) };
        Inquiry::new(&prompt(1), &asking, 0)
    }

    #[test]
    fn the_revision_is_of_what_is_shown() {
        let asking = Asking::default();
        let of = |prompt: &Prompt, now| Inquiry::new(prompt, &asking, now).revision;
        assert_eq!(of(&prompt(1), 0), of(&prompt(1), 99), "the time is not shown");
        assert_ne!(of(&prompt(1), 0), of(&prompt(2), 0));
        let other = Prompt { prompt: "Ship them?".into(), ..prompt(1) };
        assert_ne!(of(&prompt(1), 0), of(&other, 0));
        assert_ne!(of(&prompt(1), 0), inquiry(&[], 2).revision);
    }

    #[test]
    fn a_role_is_its_holders_and_a_subject_is_one_alone() {
        assert!(inquiry(&[], 1).asks("anybody", Role::Operator));
        let approvers = inquiry(&["approver"], 1);
        assert!(approvers.asks("x", Role::Approver));
        assert!(approvers.asks("x", Role::Admin), "an admin holds every role");
        assert!(!approvers.asks("x", Role::Operator));
        let ann = inquiry(&["ann"], 1);
        assert!(ann.asks("ann", Role::Observer));
        assert!(!ann.asks("admin", Role::Admin));
    }

    #[test]
    fn a_person_who_is_called_starter_is_not_the_starter() {
        for word in STARTER {
            let asked = inquiry(&[word], 1);
            assert!(asked.asks_starter() && !asked.asks(word, Role::Admin), "{word}");
        }
        assert!(!inquiry(&["ann"], 1).asks_starter());
    }

    #[test]
    fn one_person_with_two_unnamed_tokens_has_answered_once() {
        let mut two = inquiry(&[], 2);
        let by = "admin/approver#0a1b2c3d4e5f".to_owned();
        two.answers.push(GivenAnswer { by, at_ms: 1, output: Json::null() });
        assert!(two.has_heard("admin/approver#5f4e3d2c1b0a"));
        assert!(!two.has_heard("ann"));
        assert!(inquiry(&["admin/approver"], 1).asks("admin/approver#0a1b", Role::Observer));
    }

    #[test]
    fn the_case_of_a_name_makes_nobody_else_of_a_person() {
        let mut two = inquiry(&["Ada"], 2);
        assert!(two.asks("ada", Role::Observer) && two.asks("ADA", Role::Observer));
        assert!(!two.asks("adam", Role::Observer));
        two.answers.push(GivenAnswer { by: "Ada".into(), at_ms: 1, output: Json::null() });
        assert!(two.has_heard("ada"));
        let one_token = inquiry(&["admin/approver#0a1b"], 1);
        assert!(!one_token.asks("admin/approver#2c3d", Role::Observer), "it names one of them");
    }

    #[test]
    fn reminders_end_and_missed_ones_are_one() {
        let mut inquiry = inquiry(&[], 1);
        assert_eq!(inquiry.remind_at_ms, Some(10));
        assert_eq!(inquiry.remind(1_000), 1);
        assert_eq!(inquiry.remind_at_ms, Some(1_010));
        let last = (0..MOST_REMINDERS - 1).map(|_| inquiry.remind(2_000)).last();
        assert_eq!((last, inquiry.remind_at_ms), (Some(MOST_REMINDERS), None));
    }

    #[test]
    fn a_no_is_false_or_not_approved() {
        for (text, no) in [
            ("false", true),
            (r#"{"approved":false,"note":"x"}"#, true),
            (r#"{"approved":true}"#, false),
            ("null", false),
            (r#"{"ok":false}"#, false),
        ] {
            assert_eq!(says_no(&Json::parse(text).unwrap()), no, "{text}");
        }
    }
}
