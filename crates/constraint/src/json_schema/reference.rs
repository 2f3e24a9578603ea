//! References within a schema.

use crate::GrammarError;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// A version of JSON Schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Draft4,
    Draft6,
    Draft7,
    Draft201909,
    Draft202012,
}

impl Draft {
    fn of(schema: &Map<String, Value>) -> Result<Option<Self>, GrammarError> {
        let Some(uri) = schema.get("$schema").and_then(Value::as_str) else { return Ok(None) };
        let name = uri.trim_end_matches('#').trim_start_matches("https://").trim_start_matches("http://");
        match name {
            "json-schema.org/draft/2020-12/schema" | "json-schema.org/schema" => Ok(Some(Self::Draft202012)),
            "json-schema.org/draft/2019-09/schema" => Ok(Some(Self::Draft201909)),
            "json-schema.org/draft-07/schema" => Ok(Some(Self::Draft7)),
            "json-schema.org/draft-06/schema" => Ok(Some(Self::Draft6)),
            "json-schema.org/draft-04/schema" => Ok(Some(Self::Draft4)),
            _ => {
                Err(GrammarError::unsupported("$schema", format!("{uri} is none of the drafts 4 to 2020-12")))
            }
        }
    }

    /// `prefixItems` exists, and `items` is for what comes after.
    pub(super) fn has_prefix_items(self) -> bool {
        self == Self::Draft202012
    }

    /// Keywords next to `$ref` mean nothing.
    pub(super) fn ref_hides_siblings(self) -> bool {
        self <= Self::Draft7
    }

    /// Validators may check the keywords for the content of strings.
    pub(super) fn asserts_content(self) -> bool {
        matches!(self, Self::Draft6 | Self::Draft7)
    }

    fn identifier(self) -> &'static str {
        if self == Self::Draft4 { "id" } else { "$id" }
    }
}

/// Finds what `$ref` points to.
pub(super) struct References<'s> {
    root: &'s Value,
    draft: Draft,
    /// The address of the schema itself, without a fragment.
    base: &'s str,
    anchors: HashMap<&'s str, &'s Value>,
    /// Numbers of targets so far, by where they are.
    numbers: HashMap<*const Value, usize>,
    /// For each target, those that hold for the same value as it does.
    in_place: Vec<Vec<usize>>,
    /// The target whose value is meant now.
    place: Option<usize>,
}

impl<'s> References<'s> {
    pub(super) fn new(root: &'s Value) -> Result<Self, GrammarError> {
        let declared = root.as_object().map(Draft::of).transpose()?.flatten();
        let draft = declared.unwrap_or(Draft::Draft202012);
        let base =
            root.get(draft.identifier()).and_then(Value::as_str).unwrap_or_default().trim_end_matches('#');
        let mut references = Self {
            root,
            draft,
            base,
            anchors: HashMap::new(),
            numbers: HashMap::new(),
            in_place: Vec::new(),
            place: None,
        };
        references.collect_anchors()?;
        Ok(references)
    }

    pub(super) fn draft(&self) -> Draft {
        self.draft
    }

    fn collect_anchors(&mut self) -> Result<(), GrammarError> {
        let mut open = vec![self.root];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(members) if !self.is_other_resource(value, members) => {
                    let values = members
                        .iter()
                        .filter(|(name, _)| !["const", "enum", "default"].contains(&name.as_str()));
                    open.extend(values.map(|(_, value)| value));
                    for anchor in ["$anchor", "$dynamicAnchor"] {
                        let Some(name) = members.get(anchor).and_then(Value::as_str) else { continue };
                        let earlier = self.anchors.insert(name, value);
                        if earlier.is_some_and(|earlier| !std::ptr::eq(earlier, value)) {
                            return Err(GrammarError::unsupported(anchor, format!("{name} is there twice")));
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_other_resource(&self, schema: &Value, keywords: &Map<String, Value>) -> bool {
        !std::ptr::eq(schema, self.root)
            && keywords.get(self.draft.identifier()).is_some_and(Value::is_string)
    }

    /// Refuses schemas within the schema that have an address or draft of their own: references mean other
    /// things in them.
    pub(super) fn check_identity(
        &self,
        schema: &Value,
        keywords: &Map<String, Value>,
    ) -> Result<(), GrammarError> {
        let refused =
            |keyword: &str| Err(GrammarError::unsupported(keyword, "only the whole schema may have one"));
        if self.is_other_resource(schema, keywords) {
            return refused(self.draft.identifier());
        }
        match Draft::of(keywords)? {
            Some(draft) if draft != self.draft => refused("$schema"),
            _ => Ok(()),
        }
    }

    /// The schema that `reference` points to, its number among the targets, and whether it is a new one.
    pub(super) fn resolve(&mut self, reference: &str) -> Result<(&'s Value, usize, bool), GrammarError> {
        let local = reference.strip_prefix(self.base).unwrap_or(reference);
        let fragment = if local.is_empty() { Some("") } else { local.strip_prefix('#') };
        let Some(fragment) = fragment.and_then(percent_decoded) else {
            let reason = format!("{reference} is not within the schema; copy what it points to into $defs");
            return Err(GrammarError::unsupported("$ref", reason));
        };
        let target = match fragment.strip_prefix('/') {
            Some(pointer) => self.follow(pointer, reference)?,
            None if fragment.is_empty() => self.root,
            None => self.anchors.get(fragment.as_str()).copied().ok_or_else(|| missing(reference))?,
        };
        let next = self.numbers.len();
        let number = *self.numbers.entry(std::ptr::from_ref(target)).or_insert(next);
        if number == next {
            self.in_place.push(Vec::new());
        }
        if let Some(place) = self.place {
            self.in_place[place].push(number);
        }
        Ok((target, number, number == next))
    }

    /// From now on the value of target `place` is meant, or of none; returns what was before.
    pub(super) fn enter(&mut self, place: Option<usize>) -> Option<usize> {
        std::mem::replace(&mut self.place, place)
    }

    /// Refuses schemas that hold if they hold.
    pub(super) fn check_ends(&self) -> Result<(), GrammarError> {
        let mut left: Vec<usize> = vec![0; self.in_place.len()];
        self.in_place.iter().flatten().for_each(|&target| left[target] += 1);
        let mut open: Vec<usize> = (0..left.len()).filter(|&target| left[target] == 0).collect();
        let mut ends = 0;
        while let Some(target) = open.pop() {
            ends += 1;
            for &next in &self.in_place[target] {
                left[next] -= 1;
                if left[next] == 0 {
                    open.push(next);
                }
            }
        }
        if ends < left.len() {
            return Err(GrammarError::unsupported("$ref", "a schema refers to itself for the same value"));
        }
        Ok(())
    }

    /// Follows a JSON pointer (RFC 6901) without its first slash.
    fn follow(&self, pointer: &str, reference: &str) -> Result<&'s Value, GrammarError> {
        let mut value = self.root;
        for step in pointer.split('/') {
            let step = step.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(members) => {
                    self.check_identity(value, members)?;
                    members.get(&step)
                }
                Value::Array(items) => step.parse().ok().and_then(|place: usize| items.get(place)),
                _ => None,
            }
            .ok_or_else(|| missing(reference))?;
        }
        Ok(value)
    }
}

fn missing(reference: &str) -> GrammarError {
    GrammarError::invalid(format!("$ref {reference} points to nothing"))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            let value = |digit: u8| char::from(digit).to_digit(16);
            bytes.push((value(digits[0])? * 16 + value(digits[1])?) as u8);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}
