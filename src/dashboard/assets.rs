//! The styles and scripts of the pages: part of the program, named by their content, compressed once,
//! cached for ever.

use std::{io::Write as _, sync::LazyLock};

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};

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
const ASSETS: [Asset; 14] = [
    Asset { name: "tokens.css", kind: CSS, text: include_str!("assets/tokens.css") },
    Asset { name: "base.css", kind: CSS, text: include_str!("assets/base.css") },
    Asset { name: "components.css", kind: CSS, text: include_str!("assets/components.css") },
    Asset { name: "copy.js", kind: JS, text: include_str!("assets/copy.js") },
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
    /// The text, compressed for gzip.
    packed: Vec<u8>,
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
        let name = format!("{stem}-{}.{extension}", &hash[..12]);
        served.push(Served { name, packed: packed(&text), text });
    }
    served
});

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    written.expect("memory takes what is written")
}

/// Returns true if a browser takes gzip: it is named, and not with the weight 0.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let all = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|it| it.to_str().ok());
    all.flat_map(|it| it.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().trim_start_matches("q=");
        name.trim().eq_ignore_ascii_case("gzip") && weight.parse().is_ok_and(|it: f32| it > 0.0)
    })
}

/// Returns the path of an asset.
pub(super) fn path(name: &str) -> String {
    let at = ASSETS.iter().position(|asset| asset.name == name);
    let at = at.expect("pages name assets that exist");
    format!("/ui/assets/{}", SERVED[at].name)
}

/// Serves an asset. Its content never changes, since its name is its content.
pub(super) async fn get(Path(file): Path<String>, asked: HeaderMap) -> Result<Response, Problem> {
    let found = SERVED.iter().zip(&ASSETS).find(|(served, _)| served.name == file);
    let Some((served, asset)) = found else {
        return Err(Problem::new(Code::NotFound, "there is no such asset; reload the page"));
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
        (header::VARY, HeaderValue::from_static("accept-encoding")),
    ];
    Ok(match takes_gzip(&asked) {
        true => {
            let gzip = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
            (headers, gzip, served.packed.as_slice()).into_response()
        }
        false => (headers, served.text.as_str()).into_response(),
    })
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
            assert!(asset.text.lines().count() < 200, "{}", asset.name);
        }
    }

    #[test]
    fn a_script_imports_another_by_the_name_under_which_it_is_served() {
        for (name, imported) in
            [("timeline.js", "zoom.js"), ("graph.js", "zoom.js"), ("tree.js", "copy.js")]
        {
            let at = ASSETS.iter().position(|asset| asset.name == name).unwrap();
            let text = &SERVED[at].text;
            let from = path(imported).replace("/ui/assets/", "./");
            assert!(text.contains(&format!("from \"{from}\"")), "{name}: {text}");
        }
        for served in SERVED.iter() {
            for asset in &ASSETS {
                assert!(!served.text.contains(&format!("\"./{}\"", asset.name)), "{}", served.name);
            }
        }
    }

    #[test]
    fn a_browser_that_takes_gzip_gets_less_than_half_of_the_bytes() {
        let sizes = SERVED.iter().map(|it| (it.packed.len(), it.text.len()));
        let (packed, plain) = sizes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert!(packed * 2 < plain, "{packed} of {plain}");
        let takes = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            takes_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)]))
        };
        assert!(takes("gzip") && takes("br;q=1.0, GZIP;q=0.2") && takes("deflate, gzip"));
        assert!(!takes("br") && !takes("gzip;q=0") && !takes("gzip;q=x") && !takes(""));
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn the_help_names_every_key() {
        let keys = ASSETS.iter().find(|asset| asset.name == "keys.js").unwrap().text;
        let (_, help) = keys.split_once("const HELP").unwrap();
        let help = help.split("];").next().unwrap();
        for key in ["Ctrl-K", "j / k", "Enter", "x", "g o", "+ / -", "0", "← / →", "↑ / ↓", "?"]
        {
            assert!(help.contains(&format!("[\"{key}\"")), "{key}");
        }
    }

    #[test]
    fn the_name_of_an_asset_is_its_content() {
        let path = path("live.js");
        let hash = blake3::hash(include_bytes!("assets/live.js")).to_hex();
        assert_eq!(path, format!("/ui/assets/live-{}.js", &hash[..12]));
    }
}
