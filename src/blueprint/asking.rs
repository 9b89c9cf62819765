//! Whom a task for people asks: what of it can never be answered.

use std::collections::BTreeSet;

use crate::{
    flow::{Asking, STARTER},
    token::Role,
};

/// The most answerers that a task names or needs.
pub const MOST_ANSWERERS: u32 = 50;
/// The shortest time between two reminders, in milliseconds.
pub const SHORTEST_REMINDER_MS: u64 = 1_000;

/// Returns the reason why nobody could ever answer: the key, and what is wrong with it.
pub fn complaint(asking: &Asking) -> Option<(&'static str, String)> {
    if asking.by.len() > MOST_ANSWERERS as usize {
        return Some(("by", format!("more than {MOST_ANSWERERS} are named")));
    }
    if asking.by.iter().any(String::is_empty) {
        return Some(("by", "one of them has no name".to_owned()));
    }
    let is_wrong = |who: &&String| who.starts_with("starter:") && !STARTER.contains(&who.as_str());
    if let Some(wrong) = asking.by.iter().find(is_wrong) {
        return Some(("by", format!("{wrong:?} is none of {}", STARTER.join(", "))));
    }
    if asking.remind_ms.is_some_and(|ms| ms < SHORTEST_REMINDER_MS) {
        return Some(("remind", "a second is the shortest time between two reminders".to_owned()));
    }
    let required = asking.required.unwrap_or(1);
    let any_role = asking.by.iter().any(|who| who.parse::<Role>().is_ok());
    // The case of a name makes nobody else of a person.
    let people: BTreeSet<String> = asking.by.iter().map(|who| who.to_ascii_lowercase()).collect();
    if !people.is_empty() && !any_role && (people.len() as u64) < u64::from(required) {
        let what = format!("{required} must answer, and `by` names only {}", people.len());
        return Some(("required", what));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking(by: &[&str], required: u32) -> Asking {
        let by = by.iter().map(|who| (*who).to_owned()).collect();
        Asking { by, required: Some(required), remind_ms: None }
    }

    #[test]
    fn as_many_as_are_required_must_be_able_to_answer() {
        assert_eq!(complaint(&asking(&["ann", "bob"], 2)), None);
        assert_eq!(complaint(&asking(&["approver"], 3)), None, "a role is any number of people");
        assert_eq!(complaint(&asking(&[], 3)), None);
        for twice in [["ann", "ann"], ["ann", "Ann"]] {
            let (key, _) = complaint(&asking(&twice, 2)).unwrap();
            assert_eq!(key, "required", "{twice:?}");
        }
        assert_eq!(complaint(&asking(&["starter:model", "starter:roots", "starter"], 1)), None);
        let (key, what) = complaint(&asking(&["starter:modle"], 1)).unwrap();
        assert!(key == "by" && what.contains("starter:model"), "{what}");
        let hasty = Asking { remind_ms: Some(10), ..Asking::default() };
        assert_eq!(complaint(&hasty).unwrap().0, "remind");
    }
}
