//! The styles and scripts of the pages: part of the program, named by their content, cached for ever.

use std::sync::LazyLock;

use axum::{
    extract::Path,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

use crate::door::{Code, Problem};

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// An asset: its name, type and text.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const ASSETS: [Asset; 11] = [
    Asset { name: "tokens.css", kind: CSS, text: include_str!("assets/tokens.css") },
    Asset { name: "base.css", kind: CSS, text: include_str!("assets/base.css") },
    Asset { name: "components.css", kind: CSS, text: include_str!("assets/components.css") },
    Asset { name: "live.js", kind: JS, text: include_str!("assets/live.js") },
    Asset { name: "keys.js", kind: JS, text: include_str!("assets/keys.js") },
    Asset { name: "tree.js", kind: JS, text: include_str!("assets/tree.js") },
    Asset { name: "timeline.js", kind: JS, text: include_str!("assets/timeline.js") },
    Asset { name: "graph.js", kind: JS, text: include_str!("assets/graph.js") },
    Asset { name: "away.js", kind: JS, text: include_str!("assets/away.js") },
    Asset { name: "sign_in.js", kind: JS, text: include_str!("assets/sign_in.js") },
    Asset { name: "moon.svg", kind: SVG, text: include_str!("assets/moon.svg") },
];

/// The names with the hash of their content: `base-1f2e3d4c.css`.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let name = |asset: &Asset| {
        let hash = blake3::hash(asset.text.as_bytes()).to_hex();
        let (stem, extension) = asset.name.split_once('.').expect("an asset has an extension");
        format!("{stem}-{}.{extension}", &hash[..12])
    };
    ASSETS.iter().map(name).collect()
});

/// Returns the path of an asset.
pub(super) fn path(name: &str) -> String {
    let at = ASSETS.iter().position(|asset| asset.name == name);
    let at = at.expect("pages name assets that exist");
    format!("/ui/assets/{}", NAMES[at])
}

/// Serves an asset. Its content never changes, since its name is its content.
pub(super) async fn get(Path(file): Path<String>) -> Result<Response, Problem> {
    let found = NAMES.iter().zip(&ASSETS).find(|(name, _)| **name == file);
    let Some((_, asset)) = found else {
        return Err(Problem::new(Code::NotFound, "there is no such asset; reload the page"));
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    Ok((headers, asset.text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_weighs_less_than_sixty_kilobytes_of_script_and_style() {
        let weight: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(weight <= 60_000, "{weight}");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere_and_no_script_writes_markup_unchecked() {
        for asset in &ASSETS {
            for elsewhere in ["@import", "url(", "innerHTML", "eval(", "document.write"] {
                assert!(!asset.text.contains(elsewhere), "{}: {elsewhere}", asset.name);
            }
            let links = asset.text.matches("http").count();
            let names = asset.text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(links, names, "{}", asset.name);
            assert!(asset.text.lines().count() <= 400, "{}", asset.name);
        }
    }

    #[test]
    fn the_name_of_an_asset_is_its_content() {
        let path = path("live.js");
        let hash = blake3::hash(include_bytes!("assets/live.js")).to_hex();
        assert_eq!(path, format!("/ui/assets/live-{}.js", &hash[..12]));
    }
}
