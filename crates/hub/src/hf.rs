//! The protocol of the Hugging Face Hub: `resolve` for files, `api/models` for listings.

use serde::Deserialize;

use crate::digest::is_sha256;
use crate::http::{Http, MAX_REDIRECTS, header, status_error};
use crate::part::Expected;
use crate::reference::is_relative_file;
use crate::{HubConfig, HubError, Result};

/// Largest listing read, in bytes.
const MAX_LISTING: u64 = 16 << 20;

/// Quantisations in the order of preference when a repository has several.
const PREFERRED: [&str; 8] = ["q4_k_m", "q4_k_s", "q4_0", "q4_1", "q5_k_m", "q6_k", "q8_0", "iq4_xs"];

#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// Address of a file.
pub(crate) fn file_url(config: &HubConfig, owner: &str, repo: &str, revision: &str, file: &str) -> String {
    let (revision, file) = (encode(revision, false), encode(file, true));
    format!("{}/{owner}/{repo}/resolve/{revision}/{file}", config.hf_endpoint)
}

/// Asks the hub which file of a repository to take when none is named.
pub(crate) fn choose_remote(
    http: &Http,
    config: &HubConfig,
    owner: &str,
    repo: &str,
    revision: &str,
) -> Result<String> {
    let url =
        format!("{}/api/models/{owner}/{repo}/revision/{}", config.hf_endpoint, encode(revision, false));
    let response = http.get(&url, config.hf_token.as_ref(), None)?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(status_error(status, &format!("{owner}/{repo}@{revision}"), &url));
    }
    let body = response.into_body().into_with_config().limit(MAX_LISTING).reader();
    let listing: Listing = serde_json::from_reader(body).map_err(|error| HubError::Protocol {
        url,
        reason: format!("the listing is not readable: {error}"),
    })?;
    let names: Vec<&str> = listing.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
    choose(&names).map(str::to_owned).ok_or_else(|| HubError::NothingToChoose {
        repo: format!("{owner}/{repo}"),
        files: summarise(&names),
    })
}

/// The file to take among `names`: a GGUF in one part, no projector, preferably Q4_K_M.
pub(crate) fn choose<'a>(names: &[&'a str]) -> Option<&'a str> {
    let mut candidates: Vec<(String, &'a str)> = names
        .iter()
        .filter(|name| is_relative_file(name))
        .map(|name| (name.to_ascii_lowercase(), *name))
        .filter(|(lower, _)| lower.ends_with(".gguf") && !lower.contains("mmproj") && !is_split(lower))
        .collect();
    candidates.sort();
    PREFERRED
        .iter()
        .find_map(|quant| candidates.iter().find(|(lower, _)| lower.contains(quant)))
        .or(candidates.first())
        .map(|(_, name)| *name)
}

/// Whether a name ends in `-NNNNN-of-NNNNN.gguf`, one part of several.
fn is_split(lower: &str) -> bool {
    let stem = lower.strip_suffix(".gguf").unwrap_or(lower);
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    stem.rsplit_once("-of-").is_some_and(|(head, count)| {
        number(count) && head.rsplit_once('-').is_some_and(|(_, index)| number(index))
    })
}

fn summarise(names: &[&str]) -> String {
    match names {
        [] => "it lists no files".to_owned(),
        _ => {
            let shown: Vec<&str> =
                names.iter().copied().filter(|name| is_relative_file(name)).take(8).collect();
            format!("it has {} files: {} …", names.len(), shown.join(", "))
        }
    }
}

/// Size and digest of a file as the hub states them; unknown where it does not.
pub(crate) fn head(http: &Http, config: &HubConfig, url: &str, what: &str) -> Result<Expected> {
    let mut url = url.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        // A redirect may leave the hub; only the hub sees the token.
        let inside = url.strip_prefix(&config.hf_endpoint).is_some_and(|rest| rest.starts_with('/'));
        let response = http.head(&url, config.hf_token.as_ref().filter(|_| inside))?;
        let status = response.status().as_u16();
        let linked = header(&response, "x-linked-etag");
        if status >= 400 && status != 405 {
            return Err(status_error(status, what, &url));
        }
        if (300..400).contains(&status) && linked.is_none() {
            // Renamed repositories redirect within the hub; elsewhere the headers wanted are not found.
            match header(&response, "location").filter(|location| location.starts_with('/')) {
                Some(location) if !location.starts_with("//") => {
                    url = format!("{}{location}", origin(&url));
                    continue;
                }
                _ => return Ok(Expected::default()),
            }
        }
        let etag = linked.or_else(|| header(&response, "etag").filter(|_| status == 200));
        let sha256 = etag.map(|etag| etag.trim_matches('"').to_owned()).filter(|etag| is_sha256(etag));
        let bytes = header(&response, "x-linked-size").and_then(|size| size.parse().ok());
        return Ok(Expected { sha256, bytes });
    }
    Err(HubError::Protocol { url, reason: "it redirects without end".into() })
}

/// Scheme and authority of an address.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    &url[..end]
}

/// Percent-encodes all but unreserved characters (RFC 3986, section 2.3), and `/` where it separates.
fn encode(text: &str, keep_slash: bool) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keep_slash && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// Name of a file of the hub for messages.
pub(crate) fn what(owner: &str, repo: &str, file: &str, revision: &str) -> String {
    format!("{owner}/{repo}/{file}@{revision}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_prefers_q4_k_m_in_one_file() {
        let names = [
            "README.md",
            "m-Q8_0.gguf",
            "m-q4_k_m-00001-of-00002.gguf",
            "m-Q4_K_M.gguf",
            "a-mmproj-Q4_K_M.gguf",
        ];
        assert_eq!(choose(&names), Some("m-Q4_K_M.gguf"));
        assert_eq!(choose(&["b-F16.gguf", "a-F16.gguf"]), Some("a-F16.gguf"));
        assert_eq!(choose(&["../x-Q4_K_M.gguf", "model.safetensors"]), None);
    }

    #[test]
    fn addresses_are_encoded() {
        let config = HubConfig::new("/x");
        let url = file_url(&config, "o", "r", "refs/pr/1", "sub dir/é?.gguf");
        assert!(url.ends_with("/o/r/resolve/refs%2Fpr%2F1/sub%20dir/%C3%A9%3F.gguf"));
        assert_eq!(origin("http://h:1/a/b"), "http://h:1");
    }
}
