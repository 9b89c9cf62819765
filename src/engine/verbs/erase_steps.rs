//! The commits of an erasure: how much goes with each.

use crate::{protocol::RunId, store::Trace};

/// The number of runs, and of other rows, that are removed in one commit.
const RUNS_AT_ONCE: usize = 32;
const ROWS_AT_ONCE: usize = 256;
/// The number of those rows that are found by a scan of a table, and of runs that go with their
/// sources: the one writer commits nothing else meanwhile.
const SCANS_AT_ONCE: usize = 8;

/// Returns the runs and the sources of each commit: a source with the last run that has it, and after
/// all of them those that no run has.
pub(crate) fn steps<'a>(
    runs: &[(RunId, Option<String>)],
    sources: &[&'a Trace],
) -> Vec<(Vec<RunId>, Vec<&'a Trace>)> {
    let at_once = if sources.is_empty() { RUNS_AT_ONCE } else { SCANS_AT_ONCE };
    let ids = |some: &[(RunId, Option<String>)]| some.iter().map(|(run, _)| *run).collect();
    let mut steps: Vec<(Vec<RunId>, Vec<&Trace>)> =
        runs.chunks(at_once).map(|some| (ids(some), Vec::new())).collect();
    let mut left = Vec::new();
    for source in sources {
        let Trace::Blueprint { hash, .. } = source else { continue };
        match runs.iter().rposition(|(_, of)| of.as_ref() == Some(hash)) {
            Some(at) => steps[at / at_once].1.push(*source),
            None => left.push(*source),
        }
    }
    steps.extend(left.chunks(SCANS_AT_ONCE).map(|some| (Vec::new(), some.to_vec())));
    steps
}

/// Returns the rows of each commit, in their order.
pub(crate) fn portions<'a>(rows: impl IntoIterator<Item = &'a Trace>) -> Vec<Vec<&'a Trace>> {
    let (mut portions, mut scans) = (Vec::<Vec<_>>::new(), 0);
    for row in rows {
        let scan = usize::from(matches!(row, Trace::Sums(_) | Trace::Session(_)));
        match portions.last_mut() {
            Some(last) if last.len() < ROWS_AT_ONCE && scans + scan <= SCANS_AT_ONCE => {
                last.push(row);
                scans += scan;
            }
            Some(_) | None => {
                portions.push(vec![row]);
                scans = scan;
            }
        }
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_goes_with_the_last_run_that_has_it_and_few_go_at_once() {
        let source = |hash: String| Trace::Blueprint { name: "it".to_owned(), hash };
        let run = |n: u64, hash: String| (RunId::new(n, 1_000), Some(hash));
        let shared = |n: u64| run(n, "shared".to_owned());
        let alone: Vec<_> = (1..=100).map(shared).collect();
        assert_eq!(steps(&alone, &[]).len(), 4, "32 runs at once");
        let owned = (1..=20).map(|n| run(n, n.to_string()));
        let runs: Vec<_> = owned.chain((21..=30).map(shared)).collect();
        let mut sources: Vec<Trace> = (1..=20).map(|n| source(n.to_string())).collect();
        sources.push(source("shared".to_owned()));
        sources.extend((0..9).map(|n| source(format!("left {n}"))));
        let named: Vec<&Trace> = sources.iter().collect();
        let steps = steps(&runs, &named);
        let sizes: Vec<_> = steps.iter().map(|(runs, with)| (runs.len(), with.len())).collect();
        assert_eq!(sizes, [(8, 8), (8, 8), (8, 4), (6, 1), (0, 8), (0, 1)]);
        let all: Vec<&Trace> = steps.iter().flat_map(|(_, with)| with).copied().collect();
        assert_eq!(all, named);
        assert_eq!(steps[3].1, [&source("shared".to_owned())]);
    }

    #[test]
    fn rows_that_need_a_scan_are_erased_a_few_at_a_time() {
        let sums = |n: usize| Trace::Sums(n.to_string());
        let session = |n: usize| Trace::Session(n.to_string());
        let token = |n: usize| Trace::Token(n.to_string());
        let sizes = |rows: &[Trace]| -> Vec<usize> {
            let portions = portions(rows);
            assert!(
                portions.iter().flatten().copied().eq(rows),
                "each row once, in the same order"
            );
            portions.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        let tokens: Vec<Trace> = (0..600).map(token).collect();
        assert_eq!(sizes(&tokens), [256, 256, 88]);
        let scans: Vec<Trace> = (0..9).map(sums).chain((0..8).map(session)).collect();
        assert_eq!(sizes(&scans), [8, 8, 1]);
        let mixed: Vec<Trace> = (0..100).flat_map(|n| [token(n), sums(n), token(n)]).collect();
        assert!(sizes(&mixed).iter().all(|size| *size <= 3 * 8 + 1), "{:?}", sizes(&mixed));
        let after: Vec<Trace> = (0..8).map(sums).chain((0..300).map(token)).collect();
        assert_eq!(sizes(&after), [256, 52]);
    }
}
