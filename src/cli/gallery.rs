//! The gallery: blueprints that people want, each with its tests, as they are in `blueprints/gallery`.

/// A blueprint of the gallery.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    /// Its name, and that of its file.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The source.
    pub source: &'static str,
    /// Its tests.
    pub test: &'static str,
}

macro_rules! gallery {
    ($($name:literal: $about:literal),* $(,)?) => {
        &[$(Example {
            name: $name,
            about: $about,
            source: include_str!(concat!("../../blueprints/gallery/", $name, ".lua")),
            test: include_str!(concat!("../../blueprints/gallery/", $name, "_test.lua")),
        }),*]
    };
}

/// All of them.
pub const GALLERY: &[Example] = gallery! {
    "review-loop": "plan, implement in parallel, review until it passes, ship by a person",
    "research": "fan out over the parts of a question, write one answer",
    "map-reduce": "the same question about every file, summed up in a tree",
    "triage": "sort what comes in; a person decides what is urgent or unclear",
    "nightly-report": "on a schedule, as a table flow: gather, write, send",
    "saga": "bookings that belong together, undone if one fails",
    "tournament": "candidates judged in pairs until one is left",
    "outside-signal": "wait days for a signal, remind, give up",
    "migration": "a long list item by item, with a fresh history now and then",
    "ci-fixer": "run the build, fix what is red, propose the change",
};

/// One by its name.
pub fn example(name: &str) -> Option<&'static Example> {
    GALLERY.iter().find(|example| example.name == name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        cli::compile,
        clock::Clock,
        config::{Config, Layer},
        testkit::{self, Options, Recorder, Snapshots},
    };

    #[test]
    fn every_example_checks_without_a_finding() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("blueprints/gallery");
        for example in GALLERY {
            let path = dir.join(format!("{}.lua", example.name));
            let found =
                compile::compile(&compile::load(&path).unwrap(), &Config::from(Layer::default()));
            assert_eq!(found.findings, [], "{}", example.name);
        }
    }

    #[test]
    fn every_example_passes_its_tests_with_a_crash_after_every_write() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("blueprints/gallery");
        let known = crate::host::builtin_operators();
        let recorder = Recorder::default();
        let coverage = Some(&recorder);
        let options =
            Options { filter: None, crash: true, snapshots: Snapshots::Compare, coverage };
        for example in GALLERY {
            let path = dir.join(format!("{}_test.lua", example.name));
            let report = testkit::run(&path, &known, &options, &Clock::manual(0));
            assert!(report.broken.is_none() && report.tests.len() >= 2, "{report:?}");
            for test in &report.tests {
                assert_eq!(test.problem(), None, "{}: {}", example.name, test.name);
                assert!(test.crashes > 0, "{test:?}");
            }
            for file in recorder.take() {
                let (ran, all) = file.lines();
                assert!(ran * 10 >= all * 9, "{file:?}: {ran} of {all} lines ran");
                let (ran, all) = file.nodes();
                assert_eq!(ran, all, "{file:?}: nodes that never ran");
            }
        }
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_list() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("blueprints/gallery");
        let files = std::fs::read_dir(dir).unwrap();
        let names = files.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        for name in names.filter(|name| !name.ends_with("_test.lua")) {
            assert!(example(name.trim_end_matches(".lua")).is_some(), "{name}");
        }
    }
}
