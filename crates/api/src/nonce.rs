//! The nonce that one client puts at the head of its system prompt.

use std::borrow::Cow;

/// How the header line begins.
const HEADER: &str = "x-anthropic-billing-header:";
/// The field whose value differs in every request.
const FIELD: &str = "cch=";

/// A system prompt whose beginning stays the same from request to request.
///
/// A header line at the start of the prompt carries a hash that changes every time, which would leave no
/// prefix to reuse. The value of its `cch=` field becomes `00000`; everything else stays.
pub fn without_nonce(system: &str) -> Cow<'_, str> {
    match nonce(system) {
        Some((start, end)) => Cow::Owned(format!("{}00000{}", &system[..start], &system[end..])),
        None => Cow::Borrowed(system),
    }
}

/// Where the nonce is, in bytes.
fn nonce(system: &str) -> Option<(usize, usize)> {
    let line = system.lines().next().filter(|line| line.starts_with(HEADER))?;
    let fields = line.match_indices(FIELD);
    let start = fields.map(|(at, _)| at).find(|&at| matches!(line.as_bytes()[at - 1], b' ' | b';' | b':'))?
        + FIELD.len();
    let length = line[start..].bytes().take_while(u8::is_ascii_hexdigit).count();
    let ends = line[start + length..].chars().next().is_none_or(|next| next == ';' || next.is_whitespace());
    (length > 0 && ends).then_some((start, start + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_requests_of_one_conversation_begin_alike() {
        let system = |cch| {
            format!("x-anthropic-billing-header: cc_version=2.1.3ab; cc_entrypoint=cli; cch={cch};\nBe kind.")
        };
        assert_eq!(without_nonce(&system("a1b2c")), system("00000"));
        assert_eq!(without_nonce(&system("a1b2c")), without_nonce(&system("ffff0")));
        assert_eq!(
            without_nonce("x-anthropic-billing-header: cch=a1b2c"),
            "x-anthropic-billing-header: cch=00000"
        );
    }

    #[test]
    fn other_prompts_stay_as_they_are() {
        let prompts = [
            "",
            "cch=a1b2c;",
            "Say x-anthropic-billing-header: cch=a1b2c;",
            "x-anthropic-billing-header: a=b\ncch=a1b2c;",
            "x-anthropic-billing-header: xcch=a1b2c;",
            "x-anthropic-billing-header: cch=;",
            "x-anthropic-billing-header: cch=hello;",
            "x-anthropic-billing-header: cch=a1é",
        ];
        for prompt in prompts {
            assert!(matches!(without_nonce(prompt), Cow::Borrowed(same) if same == prompt), "{prompt}");
        }
    }
}
