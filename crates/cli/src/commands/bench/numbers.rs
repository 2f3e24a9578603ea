//! Lists of whole numbers as llama-bench takes them.

use std::str::FromStr;

/// Most values of one list: more is a slip of the finger that would run for days.
const MOST: usize = 1024;

/// Values of one option: `1,2,4`, `64-256` (step 1), `64-256+64` or `64-512*2`, or several of them with commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers(pub(crate) Vec<usize>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut values = Vec::new();
        for item in text.split(',') {
            push_range(item, &mut values)?;
        }
        Ok(Self(values))
    }
}

/// Appends the values of `first`, `first-last`, `first-last+step` or `first-last*factor`.
fn push_range(item: &str, values: &mut Vec<usize>) -> Result<(), String> {
    let wrong =
        || format!("{item:?} is neither a number nor first-last, first-last+step or first-last*factor");
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Kept within 32 bits, so that sums of a few of them can't overflow.
        true => text.parse::<u32>().map(|value| value as usize).map_err(|_| wrong()),
        false => Err(wrong()),
    };
    let Some((first, rest)) = item.split_once('-') else {
        values.push(number(item)?);
        return Ok(());
    };
    let (last, by, factor) = match rest.split_once(['+', '*']) {
        Some((last, by)) => (last, number(by)?, rest.contains('*')),
        None => (rest, 1, false),
    };
    let (mut value, last) = (number(first)?, number(last)?);
    if value > last {
        return Err(format!("{item:?} is an empty range; the first number may not be larger than the last"));
    }
    while value <= last {
        if values.len() == MOST {
            return Err(format!("{item:?} makes more than {MOST} values; use a larger step"));
        }
        values.push(value);
        let next = if factor { value.saturating_mul(by) } else { value + by };
        if next <= value {
            return Err(format!("{item:?} never gets to its end; use a step above 0 or a factor above 1"));
        }
        value = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_those_of_llama_bench() {
        let cases: [(&str, &[usize]); 6] = [
            ("512", &[512]),
            ("0,1,2", &[0, 1, 2]),
            ("1-3", &[1, 2, 3]),
            ("64-256+64", &[64, 128, 192, 256]),
            ("64-512*2,9", &[64, 128, 256, 512, 9]),
            ("5-6+4", &[5]),
        ];
        for (text, values) in cases {
            assert_eq!(text.parse(), Ok(Numbers(values.to_vec())), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let cases = [
            "",
            "a",
            "-1",
            "+1",
            "1,",
            "1-",
            "3-1",
            "1-2+0",
            "1-2*1",
            "0-4*2",
            "1-2+3+4",
            "1-4000000000",
            "4294967296",
        ];
        for text in cases {
            assert!(text.parse::<Numbers>().is_err(), "{text:?}");
        }
    }
}
