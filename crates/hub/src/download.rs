//! Transfer of one file over HTTP, resumed where it stopped (RFC 9110, sections 13.1.5 and 14).

use std::io::Read;
use std::path::Path;

use ureq::Body;
use ureq::http::Response;

use crate::digest::CHUNK;
use crate::http::{Http, Resume, header, status_error};
use crate::part::{Arrived, Expected, Part};
use crate::{HubConfig, HubError, Progress, Result, Token};

/// Requests for one file before it is given up even though each brought something.
const MAX_REQUESTS: u32 = 1000;

/// One file to fetch.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) url: &'a str,
    pub(crate) token: Option<&'a Token>,
    /// Name for messages.
    pub(crate) what: &'a str,
    pub(crate) expected: Expected,
}

/// Fetches `job` to `destination`; the caller holds the lock of `destination`.
pub(crate) fn download(
    http: &Http,
    config: &HubConfig,
    job: &Job<'_>,
    destination: &Path,
    progress: &dyn Progress,
) -> Result<Arrived> {
    let mut part = Part::open(destination)?;
    let (mut furthest, mut failures) = (part.length(), 0);
    for _ in 0..MAX_REQUESTS {
        match request(http, config, job, &mut part, progress) {
            Ok(()) => return part.commit(&job.expected, job.what),
            Err(error @ HubError::Interrupted { .. }) => {
                // A part that only repeats what was there before counts as no progress.
                failures = if part.length() > furthest { 0 } else { failures + 1 };
                furthest = furthest.max(part.length());
                if failures >= config.retries {
                    return Err(error);
                }
                progress.message(&format!("{}: transfer stopped, resuming", job.what));
            }
            Err(error) => {
                if part.length() == 0 {
                    part.discard()?;
                }
                return Err(error);
            }
        }
    }
    Err(interrupted(job, &part, "too many requests".into()))
}

/// One request; `Ok` once the part is complete.
fn request(
    http: &Http,
    config: &HubConfig,
    job: &Job<'_>,
    part: &mut Part,
    progress: &dyn Progress,
) -> Result<()> {
    let etag = part.etag();
    // Without a tag or a digest nothing would notice that the content changed in between.
    let resumable = etag.is_some() || job.expected.sha256.is_some();
    if part.length() > 0 && (!resumable || job.expected.bytes.is_some_and(|bytes| bytes < part.length())) {
        part.clear()?;
    }
    if part.length() > 0 && job.expected.bytes == Some(part.length()) {
        return Ok(());
    }
    let resume = (part.length() > 0).then(|| Resume { offset: part.length(), etag });
    let response = http.get(job.url, job.token, resume.as_ref())?;
    let total = match response.status().as_u16() {
        200 => {
            if part.length() > 0 {
                progress.message(&format!("{}: starting again, the server sent the whole file", job.what));
                part.clear()?;
            }
            response.body().content_length()
        }
        206 => Some(resumed_total(&response, job, part)?),
        416 => {
            part.clear()?;
            return Err(interrupted(job, part, "the server has no bytes behind those already here".into()));
        }
        status => return Err(status_error(status, job.what, job.url)),
    };
    check_size(config, job, part, total)?;
    part.set_etag(header(&response, "etag"))?;
    progress.total(total.or(job.expected.bytes), part.length());
    receive(config, job, part, total, response, progress)
}

/// Total size from `Content-Range: bytes FIRST-LAST/TOTAL`, whose FIRST must continue the part.
fn resumed_total(response: &Response<Body>, job: &Job<'_>, part: &mut Part) -> Result<u64> {
    let value = header(response, "content-range").unwrap_or("").to_owned();
    let parsed = value.strip_prefix("bytes ").and_then(|rest| {
        let (range, total) = rest.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        let end = last.checked_add(1)?;
        let total = if total == "*" { end } else { total.parse().ok()? };
        (first == part.length() && end == total).then_some(total)
    });
    match parsed {
        Some(total) => Ok(total),
        None => {
            part.clear()?;
            let reason = format!("`Content-Range: {value}` does not continue the part");
            Err(HubError::Protocol { url: job.url.to_owned(), reason })
        }
    }
}

/// Refuses a size that cannot be right before any byte is taken.
fn check_size(config: &HubConfig, job: &Job<'_>, part: &Part, total: Option<u64>) -> Result<()> {
    let limit = job.expected.bytes.unwrap_or(config.max_file_bytes);
    let wrong = match (total, job.expected.bytes) {
        (Some(total), Some(bytes)) => total != bytes,
        (Some(total), None) => total > limit,
        (None, _) => false,
    };
    if !wrong {
        return Ok(());
    }
    part.discard()?;
    Err(HubError::Size { what: job.what.to_owned(), expected: limit, actual: total.unwrap_or(0) })
}

fn receive(
    config: &HubConfig,
    job: &Job<'_>,
    part: &mut Part,
    total: Option<u64>,
    response: Response<Body>,
    progress: &dyn Progress,
) -> Result<()> {
    let limit = total.or(job.expected.bytes).unwrap_or(config.max_file_bytes);
    let mut reader = response.into_body().into_reader();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(read) => read,
            Err(error) => return Err(interrupted(job, part, error.to_string())),
        };
        if read == 0 {
            break;
        }
        if part.length().saturating_add(read as u64) > limit {
            part.discard()?;
            let actual = part.length().saturating_add(read as u64);
            return Err(HubError::Size { what: job.what.to_owned(), expected: limit, actual });
        }
        part.append(&buffer[..read])?;
        progress.advance(read as u64);
    }
    match total {
        Some(total) if part.length() < total => {
            Err(interrupted(job, part, "the connection was closed".into()))
        }
        _ => Ok(()),
    }
}

fn interrupted(job: &Job<'_>, part: &Part, reason: String) -> HubError {
    HubError::Interrupted { what: job.what.to_owned(), received: part.length(), reason }
}
