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

/// An asset stands after those that it imports.
const ASSETS: [Asset; 13] = [
    Asset { name: "tokens.css", kind: CSS, text: include_str!("assets/tokens.css") },
    Asset { name: "base.css", kind: CSS, text: include_str!("assets/base.css") },
    Asset { name: "components.css", kind: CSS, text: include_str!("assets/components.css") },
    Asset { name: "live.js", kind: JS, text: include_str!("assets/live.js") },
    Asset { name: "keys.js", kind: JS, text: include_str!("assets/keys.js") },
    Asset { name: "tree.js", kind: JS, text: include_str!("assets/tree.js") },
    Asset { name: "zoom.js", kind: JS, text: include_str!("assets/zoom.js") },
    Asset { name: "timeline.js", kind: JS, text: include_str!("assets/timeline.js") },
    Asset { name: "graph.js", kind: JS, text: include_str!("assets/graph.js") },
    Asset { name: "away.js", kind: JS, text: include_str!("assets/away.js") },
    Asset { name: "times.js", kind: JS, text: include_str!("assets/times.js") },
    Asset { name: "sign_in.js", kind: JS, text: include_str!("assets/sign_in.js") },
    Asset { name: "moon.svg", kind: SVG, text: include_str!("assets/moon.svg") },
];

/// An asset as it is served.
struct Served {
    /// Its name with the hash of its text: `base-1f2e3d4c.css`.
    name: String,
    /// Its text; what it imports has the name that it is served under.
    text: String,
}

static SERVED: LazyLock<Vec<Served>> = LazyLock::new(|| {
    let mut served: Vec<Served> = Vec::with_capacity(ASSETS.len());
    for asset in &ASSETS {
        let mut text = asset.text.to_owned();
        for (earlier, it) in ASSETS.iter().zip(&served) {
            text = text.replace(&format!("\"./{}\"", earlier.name), &format!("\"./{}\"", it.name));
        }
        let hash = blake3::hash(text.as_bytes()).to_hex();
        let (stem, extension) = asset.name.split_once('.').expect("an asset has an extension");
        served.push(Served { name: format!("{stem}-{}.{extension}", &hash[..12]), text });
    }
    served
});

/// Returns the path of an asset.
pub(super) fn path(name: &str) -> String {
    let at = ASSETS.iter().position(|asset| asset.name == name);
    let at = at.expect("pages name assets that exist");
    format!("/ui/assets/{}", SERVED[at].name)
}

/// Serves an asset. Its content never changes, since its name is its content.
pub(super) async fn get(Path(file): Path<String>) -> Result<Response, Problem> {
    let found = SERVED.iter().zip(&ASSETS).find(|(served, _)| served.name == file);
    let Some((served, asset)) = found else {
        return Err(Problem::new(Code::NotFound, "there is no such asset; reload the page"));
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    Ok((headers, served.text.as_str()).into_response())
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
    fn a_script_imports_another_by_the_name_under_which_it_is_served() {
        let zoom = path("zoom.js").replace("/ui/assets/", "./");
        for name in ["timeline.js", "graph.js"] {
            let at = ASSETS.iter().position(|asset| asset.name == name).unwrap();
            let text = &SERVED[at].text;
            assert!(text.contains(&format!("from \"{zoom}\"")), "{name}: {text}");
        }
        for served in SERVED.iter() {
            assert!(
                !served.text.contains(".js\";") || served.text.contains(&zoom),
                "{}",
                served.name
            );
        }
    }

    #[test]
    fn the_name_of_an_asset_is_its_content() {
        let path = path("live.js");
        let hash = blake3::hash(include_bytes!("assets/live.js")).to_hex();
        assert_eq!(path, format!("/ui/assets/live-{}.js", &hash[..12]));
    }
}
