//! The formats of JSON Schema as patterns.

use crate::GrammarError;
use serde_json::{Value, json};

const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    // The 29th of February: years that divide by 4 and not by 100, or by 400.
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
);
const TIME: &str = concat!(
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?",
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);
const LABEL: &str = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,31}";
const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const ATOM: &str = "[A-Za-z0-9!#$%&'*+=?^_`{|}~-]+";
const PATH: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";

/// The schema that enforces format `name`; `None` if it is not a format of the standard and so an annotation.
pub(super) fn lower(name: &str) -> Result<Option<Value>, GrammarError> {
    let (pattern, most_characters) = match name {
        "date" => (DATE.to_owned(), None),
        "time" => (TIME.to_owned(), None),
        "date-time" => (format!("{DATE}T{TIME}"), None),
        "duration" => (duration(), None),
        "email" => (format!("{ATOM}(?:[.]{ATOM})*@{LABEL}(?:[.]{LABEL})+"), Some(64)),
        "hostname" => (format!("{LABEL}(?:[.]{LABEL})*"), Some(253)),
        "ipv4" => (format!("(?:{BYTE}[.]){{3}}{BYTE}"), None),
        "ipv6" => (ipv6(), None),
        "uuid" => ("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}".to_owned(), None),
        "uri" => (uri(), None),
        "json-pointer" => ("(?:/(?:[^~/]|~[01])*)*".to_owned(), None),
        "idn-email"
        | "idn-hostname"
        | "uri-reference"
        | "iri"
        | "iri-reference"
        | "uri-template"
        | "relative-json-pointer"
        | "regex" => {
            return Err(GrammarError::unsupported(format!("format {name}"), "use a pattern"));
        }
        _ => return Ok(None),
    };
    let mut schema = json!({"pattern": format!("^(?:{pattern})$")});
    if let Some(most) = most_characters {
        schema["maxLength"] = json!(most);
    }
    Ok(Some(schema))
}

/// ISO 8601 as RFC 3339, appendix A, has it.
fn duration() -> String {
    let time = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)";
    let date = "(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)";
    format!("P(?:[0-9]{{1,9}}W|{date}(?:{time})?|{time})")
}

/// RFC 4291: eight groups, of which one or more that are zero may be left out once.
fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let mut forms = vec![format!("(?:{group}:){{7}}{group}"), "::".to_owned()];
    for before in 1..=7 {
        forms.push(format!("(?:{group}:){{{before}}}:"));
        let after = 7 - before;
        if after > 0 {
            forms.push(format!("(?:{group}:){{{before}}}(?::{group}){{1,{after}}}"));
        }
    }
    forms.push(format!(":(?::{group}){{1,7}}"));
    format!("(?:{})", forms.join("|"))
}

/// RFC 3986 with a scheme; of addresses in brackets only IPv6.
fn uri() -> String {
    let user = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@";
    let host = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*";
    let authority = format!(r"(?:{user})?(?:\[{}\]|{host})(?::[0-9]{{0,4}})?", ipv6());
    let tail = format!("(?:{PATH}|[/?])*");
    let path = format!("(?://{authority}(?:/{PATH}*)*|/?{PATH}+(?:/{PATH}*)*|/?)");
    format!("[A-Za-z][A-Za-z0-9+.-]*:{path}(?:[?]{tail})?(?:#{tail})?")
}
