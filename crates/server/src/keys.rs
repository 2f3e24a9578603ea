//! API keys: who may ask.

use std::fmt;

use axum::http::{HeaderMap, header};
use lichen_api::Error;
use sha2::{Digest, Sha256};

/// The keys that are accepted. Only their hashes are kept, so that no key can leak from memory or through timing.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl ApiKeys {
    /// Reads keys from a text: one a line, empty lines and lines that begin with `#` left out.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(hash).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the key that a request carries, from 1; 0 if no keys are asked for.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] without a key or with an unknown one.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<u64, Error> {
        if self.is_empty() {
            return Ok(0);
        }
        let Some(key) = key_of(headers) else {
            return Err(Error::Unauthorized { reason: "an API key is needed" });
        };
        let wanted = hash(key);
        match self.0.iter().position(|known| *known == wanted) {
            Some(index) => Ok(index as u64 + 1),
            None => Err(Error::Unauthorized { reason: "the API key is not known here" }),
        }
    }
}

fn key_of(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION.as_str()).and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    text("x-api-key").or(bearer)
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &str, name: &'static str, value: &str) -> Result<u64, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        ApiKeys::parse(keys).check(&headers)
    }

    #[test]
    fn either_header_is_read_and_keys_are_told_apart() {
        let keys = "# people\nfirst\n\n second \n";
        assert_eq!(check(keys, "authorization", "Bearer first"), Ok(1));
        assert_eq!(check(keys, "authorization", "bearer second"), Ok(2));
        assert_eq!(check(keys, "x-api-key", "second"), Ok(2));
        assert_eq!(check("", "x-api-key", "anything"), Ok(0));
    }

    #[test]
    fn others_stay_out() {
        for (name, value) in [("x-api-key", "third"), ("authorization", "Basic first"), ("accept", "first")] {
            assert_eq!(check("first", name, value).unwrap_err().status(), 401);
        }
        assert_eq!(check("first", "x-api-key", "# people").unwrap_err().status(), 401);
    }
}
