//! Bounds and multiples of numbers.

use crate::GrammarError;
use serde_json::{Map, Number, Value};
use std::collections::BTreeSet;

/// Below this every integer is a float; the engine calculates with floats.
const FIRST_ROUNDED: f64 = 9_007_199_254_740_992.0;
/// Most digits after the decimal point that the engine handles exactly.
const MOST_FRACTION_DIGITS: usize = 15;

/// Writes the keywords for numbers in the engine's form, and remembers what can't go together.
#[derive(Default)]
pub(super) struct Numbers {
    /// Whole numbers that are exclusive bounds.
    exclusive: BTreeSet<i64>,
    /// Whole parts of bounds that are not whole.
    fractional: BTreeSet<i64>,
    /// All `multipleOf`, as coefficient and digits after the decimal point.
    multiples: BTreeSet<(u64, u32)>,
    /// How often there is a `multipleOf`.
    occurrences: usize,
}

impl Numbers {
    pub(super) fn rewrite(
        &mut self,
        keywords: &Map<String, Value>,
        simple: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        for (inclusive, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
            // In draft 4 the exclusive one is a flag of the other.
            let is_flagged = keywords.get(exclusive) == Some(&Value::Bool(true));
            if let Some(bound) = keywords.get(inclusive) {
                self.bound(if is_flagged { exclusive } else { inclusive }, bound, simple)?;
            }
            match keywords.get(exclusive) {
                None | Some(Value::Bool(_)) => {}
                Some(bound) => self.bound(exclusive, bound, simple)?,
            }
        }
        if let Some(multiple) = keywords.get("multipleOf") {
            self.multiples.insert(decimal(multiple)?);
            self.occurrences += 1;
            simple.insert("multipleOf".to_owned(), multiple.clone());
        }
        Ok(())
    }

    fn bound(
        &mut self,
        keyword: &str,
        bound: &Value,
        simple: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        let Value::Number(number) = bound else {
            return Err(GrammarError::invalid(format!("{keyword} is a number, not {bound}")));
        };
        check_exact(keyword, number)?;
        let value = number.as_f64().unwrap_or_default();
        if value.fract() != 0.0 {
            self.fractional.insert(value as i64);
        } else if keyword.starts_with("exclusive") {
            self.exclusive.insert(value as i64);
        }
        simple.insert(keyword.to_owned(), bound.clone());
        Ok(())
    }

    /// Refuses what would be enforced only nearly.
    pub(super) fn check(&self, has_references: bool) -> Result<(), GrammarError> {
        // Between 0 and 0.5 the engine would allow 0 itself.
        if let Some(bound) = self.exclusive.intersection(&self.fractional).next() {
            let reason = format!(
                "{bound} is excluded and another bound is less than 1 away; use a bound like {bound}.001"
            );
            return Err(GrammarError::unsupported("exclusiveMinimum/exclusiveMaximum", reason));
        }
        // Where schemas are intersected, the engine multiplies two common multiples in 32 bits.
        let digits = self.multiples.iter().map(|(_, digits)| *digits).max().unwrap_or(0);
        let scaled = self.multiples.iter().map(|(coefficient, own)| coefficient * 10_u64.pow(digits - own));
        let common = scaled
            .fold(1_u64, |common, number| least_common_multiple(common, number).min(u64::from(u32::MAX)));
        let is_alone = self.occurrences <= 1 && !has_references;
        if common > u64::from(u16::MAX) && !is_alone {
            return Err(GrammarError::unsupported("multipleOf", "the numbers have too many digits together"));
        }
        Ok(())
    }
}

/// Refuses numbers that the engine would round.
pub(super) fn check_exact(keyword: &str, number: &Number) -> Result<(), GrammarError> {
    let value = number.as_f64().unwrap_or(f64::INFINITY);
    let text = value.to_string();
    let fraction_digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    if value.abs() >= FIRST_ROUNDED || fraction_digits > MOST_FRACTION_DIGITS {
        return Err(GrammarError::unsupported(keyword, format!("{number} has too many digits")));
    }
    Ok(())
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one, other);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    one / divisor * other
}

/// A `multipleOf` as coefficient and digits after the decimal point.
fn decimal(multiple: &Value) -> Result<(u64, u32), GrammarError> {
    let number = multiple.as_f64().filter(|number| *number > 0.0);
    let number =
        number.ok_or_else(|| GrammarError::invalid(format!("multipleOf is above 0, not {multiple}")))?;
    let text = number.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let coefficient =
        format!("{whole}{fraction}").parse::<u64>().ok().filter(|value| *value <= u64::from(u32::MAX));
    // The engine multiplies by ten until nothing is left behind the point; that must lead to the same number.
    let mut scaled = number;
    (0..fraction.len()).for_each(|_| scaled *= 10.0);
    match coefficient {
        Some(coefficient) if fraction.len() <= 9 && scaled == coefficient as f64 => {
            Ok((coefficient, fraction.len() as u32))
        }
        _ => {
            Err(GrammarError::unsupported("multipleOf", format!("{multiple} is not a short decimal number")))
        }
    }
}
