//! Reads one JSON object field by field, so that every refusal names its field.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::Error;

/// The fields of a request body. A field that is `null` counts as absent.
#[derive(Debug, Clone)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Parses a body.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self(map)),
            Ok(_) => Err(Error::invalid("body", "must be a JSON object")),
            Err(error) => Err(Error::invalid("body", format!("is not valid JSON: {error}"))),
        }
    }

    /// The raw value, if present and not `null`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Takes the value out, to avoid a copy of large ones.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is something else.
    pub fn text(&self, name: &str) -> Result<Option<&str>, Error> {
        self.get(name)
            .map(|value| value.as_str().ok_or_else(|| Error::invalid(name, "must be a string")))
            .transpose()
    }

    /// True or false.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is something else.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Error> {
        self.get(name)
            .map(|value| value.as_bool().ok_or_else(|| Error::invalid(name, "must be true or false")))
            .transpose()
    }

    /// A number within a range.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is something else.
    pub fn number(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64().map(|number| number as f32) {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(Error::invalid(
                name,
                format!("must be a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    /// A count: an integer from `least` up.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if it is something else.
    pub fn count(&self, name: &str, least: usize) -> Result<Option<usize>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_u64().and_then(|number| usize::try_from(number).ok()) {
            Some(number) if number >= least => Ok(Some(number)),
            _ => Err(Error::invalid(name, format!("must be an integer of at least {least}"))),
        }
    }

    /// Refuses a field unless its value is harmless: one that asks for nothing.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the field.
    pub fn refuse_unless(&self, name: &str, harmless: impl FnOnce(&Value) -> bool) -> Result<(), Error> {
        match self.get(name) {
            Some(value) if !harmless(value) => {
                Err(Error::invalid(name, "is not supported by this server; leave it out"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a value asks for nothing: empty, false or zero.
pub(crate) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_field() {
        let fields = Fields::parse(br#"{"t": 3, "n": -1, "s": 1, "b": "yes", "z": null}"#).unwrap();
        let names = [
            fields.number("t", 0.0..=2.0).unwrap_err(),
            fields.count("n", 0).unwrap_err(),
            fields.text("s").unwrap_err(),
            fields.flag("b").unwrap_err(),
        ];
        for (error, name) in names.iter().zip(["t", "n", "s", "b"]) {
            assert_eq!(error.body()["error"]["param"], name);
        }
        assert_eq!(fields.text("z").unwrap(), None);
    }

    #[test]
    fn hostile_bodies_are_refused() {
        let deep = "[".repeat(1 << 20);
        for body in ["", "[]", "{", "\u{0}", "{\"a\": 1e999}", deep.as_str()] {
            assert_eq!(Fields::parse(body.as_bytes()).unwrap_err().status(), 400);
        }
    }
}
