//! The limit of open files of this process, and the number of connections that fit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::door::Limits;

/// Files that are not connections: the database, its readers, pipes of child processes.
const BESIDE: u64 = 512;
/// However few files are allowed, so many connections are tried.
const LEAST: u64 = 64;

/// Lets this process have as many files open as the system allows it, and says how many
/// connections it serves: those that were asked for, as far as files last, and a note for whoever
/// started it where they do not.
pub fn connections(asked: Option<usize>) -> (usize, Option<String>) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let files = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    fitting(asked, files)
}

fn fitting(asked: Option<usize>, files: Option<u64>) -> (usize, Option<String>) {
    let wanted = asked.unwrap_or(Limits::default().connections);
    // No limit at all is no number.
    let Some(files) = files else { return (wanted, None) };
    let fit = usize::try_from(files.saturating_sub(BESIDE).max(LEAST)).unwrap_or(usize::MAX);
    if wanted <= fit {
        return (wanted, None);
    }
    let note = format!(
        "  connections {fit} of {wanted}: the system allows {files} open files (`ulimit -Hn`)"
    );
    (fit, Some(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_as_files_allow_and_no_more_than_asked() {
        assert_eq!(fitting(None, Some(1 << 20)), (8_192, None));
        assert_eq!(fitting(Some(100), Some(1_024)), (100, None));
        let (fit, note) = fitting(None, Some(1_024));
        assert_eq!(fit, 512);
        assert!(note.unwrap().contains("ulimit -Hn"));
        assert_eq!(fitting(None, Some(10)).0, 64);
        assert_eq!(fitting(Some(20_000), None), (20_000, None));
    }

    #[test]
    fn this_process_may_open_what_the_system_allows() {
        connections(None);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
