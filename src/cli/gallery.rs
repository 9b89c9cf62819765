//! Tests of the gallery: its blueprints check, and pass their tests.

use std::path::Path;

use crate::{
    blueprint::gallery::{GALLERY, example},
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
    let options = Options { filter: None, crash: true, snapshots: Snapshots::Compare, coverage };
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
