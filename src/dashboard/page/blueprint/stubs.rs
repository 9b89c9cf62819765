//! The tab Stubs of a blueprint: what an editor needs to know of the library.

use maud::{Markup, html};

use crate::{blueprint::stubs, dashboard::component::text};

/// Returns the tab.
pub(super) fn tab() -> Markup {
    html! {
        p { "With these an editor completes and checks " code { "ctx" } " and " code { "swarm" } ". "
            code { "moonswarm init --stubs" } " writes them beside the blueprints." }
        @for (name, about, words) in [
            (".luals/swarm.lua", "for the Lua language server", stubs::luacats()),
            (".luals/swarm/test.lua", "for the tests of blueprints", stubs::luacats_test()),
        ] {
            details.card {
                summary { code { (name) } span.dim { " " (about) ", " (words.lines().count()) " lines" } }
                p { (text::copy(&words)) }
                pre tabindex="0" { (words) }
            }
        }
    }
}
