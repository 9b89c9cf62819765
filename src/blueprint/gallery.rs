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
    "welcome": "a first run that needs nobody but you: in parallel, then a question to a person, then a file",
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
