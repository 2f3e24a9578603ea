//! JSON Schemas in the part of the language that the grammar engine enforces.
//!
//! A schema is rewritten keyword by keyword: what is enforced exactly is kept, annotations go, everything
//! else is refused by name. References within the schema are resolved here. Drafts 4 to 2020-12 become the
//! same form.

mod format;
mod number;
mod pattern;
mod reference;

use crate::GrammarError;
use number::Numbers;
use reference::References;
use serde_json::{Map, Value, json};

/// Longest schema as JSON text.
const MOST_BYTES: usize = 256 << 10;
/// Deepest nesting of the JSON that the schema is, and of schemas over references.
const MOST_DEPTH: usize = 64;
/// Most subschemas and enum values: some steps of the engine take their square.
const MOST_PARTS: usize = 5_000;
/// Largest length or count: the engine's automata grow with it.
const MOST_COUNT: u64 = 100_000;

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Assertions of some draft that can't be enforced while text is written from left to right.
const UNENFORCEABLE: [&str; 21] = [
    "uniqueItems",
    "contentMediaType",
    "contentEncoding",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
    "divisibleBy",
];

/// Rewrites `schema`, as JSON text with the options of the engine.
pub(crate) fn lower(schema: &Value) -> Result<String, GrammarError> {
    check_depth(schema)?;
    if schema.to_string().len() > MOST_BYTES {
        return Err(GrammarError::too_large("bytes of a JSON schema", MOST_BYTES));
    }
    let mut lowering = Lowering::new(schema)?;
    let root = lowering.schema(schema, 0)?;
    lowering.references.check_ends()?;
    lowering.numbers.check(!lowering.definitions.is_empty())?;
    let mut root = match root {
        Value::Object(root) => root,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::invalid("nothing is valid under the schema false")),
    };
    root.insert("$defs".to_owned(), Value::Object(lowering.definitions));
    // One optional space after separators: models that may write any number of them are prone to never stop.
    // Without `\u` escapes every text is written in one way only, so a name that is taken can't come again in
    // disguise.
    root.insert(
        "x-guidance".to_owned(),
        json!({
            "item_separator": ", ?",
            "key_separator": ": ?",
            "whitespace_flexible": false,
            "json_allowed_escapes": "nrbtf\\\"",
        }),
    );
    Ok(Value::Object(root).to_string())
}

/// Looks at the depth without recursion.
fn check_depth(schema: &Value) -> Result<(), GrammarError> {
    let mut open = vec![(schema, 0)];
    while let Some((value, depth)) = open.pop() {
        if depth > MOST_DEPTH {
            return Err(GrammarError::too_large("the depth of a JSON schema", MOST_DEPTH));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(members) => open.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// What becomes of a keyword.
enum Lowered {
    Nothing,
    /// It stays with the other simple assertions.
    Simple(Value),
    /// It stays after them.
    Applied(Value),
    /// Schemas that all hold.
    All(Vec<Value>),
}

struct Lowering<'s> {
    references: References<'s>,
    /// Rewritten schemas that references point to.
    definitions: Map<String, Value>,
    numbers: Numbers,
    /// Subschemas and values so far.
    parts: usize,
}

impl<'s> Lowering<'s> {
    fn new(root: &'s Value) -> Result<Self, GrammarError> {
        let references = References::new(root)?;
        Ok(Self { references, definitions: Map::new(), numbers: Numbers::default(), parts: 0 })
    }

    fn count(&mut self, parts: usize) -> Result<(), GrammarError> {
        self.parts += parts;
        if self.parts > MOST_PARTS {
            return Err(GrammarError::too_large("subschemas and enum values of a JSON schema", MOST_PARTS));
        }
        Ok(())
    }

    fn schema(&mut self, schema: &'s Value, depth: usize) -> Result<Value, GrammarError> {
        self.count(1)?;
        if depth > MOST_DEPTH {
            return Err(GrammarError::too_large("the depth of JSON schemas over references", MOST_DEPTH));
        }
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(keywords) => self.keywords(schema, keywords, depth),
            _ => Err(GrammarError::invalid(format!("a schema is an object or a boolean, not {schema}"))),
        }
    }

    /// A schema for a part of what the current one is for.
    fn child(&mut self, schema: &'s Value, depth: usize) -> Result<Value, GrammarError> {
        let place = self.references.enter(None);
        let lowered = self.schema(schema, depth + 1);
        self.references.enter(place);
        lowered
    }

    fn keywords(
        &mut self,
        schema: &'s Value,
        keywords: &'s Map<String, Value>,
        depth: usize,
    ) -> Result<Value, GrammarError> {
        self.references.check_identity(schema, keywords)?;
        if self.references.draft().ref_hides_siblings() && keywords.contains_key("$ref") {
            return Ok(json!({"$ref": self.reference(&keywords["$ref"], depth)?}));
        }
        let mut simple = Map::new();
        let mut applied = Map::new();
        let mut all = Vec::new();
        for (keyword, value) in keywords {
            match self.keyword(keyword, value, depth)? {
                Lowered::Simple(value) => drop(simple.insert(keyword.clone(), value)),
                Lowered::Applied(value) => drop(applied.insert(keyword.clone(), value)),
                Lowered::All(schemas) => all.extend(schemas),
                Lowered::Nothing => {}
            }
        }
        self.items(keywords, &mut simple, depth)?;
        self.numbers.rewrite(keywords, &mut simple)?;
        check_least_properties(&simple)?;
        if !all.is_empty() {
            applied.insert("allOf".to_owned(), all.into());
        }
        // Simple assertions first: the engine intersects the others with them one after the other.
        simple.extend(applied);
        Ok(Value::Object(simple))
    }

    fn keyword(&mut self, keyword: &str, value: &'s Value, depth: usize) -> Result<Lowered, GrammarError> {
        Ok(match keyword {
            "type" => Lowered::Simple(types(value)?),
            "properties" | "patternProperties" => Lowered::Simple(self.named(keyword, value, depth)?),
            "additionalProperties" => Lowered::Simple(self.child(value, depth)?),
            "required" => Lowered::Simple(strings(keyword, value)?),
            "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
                Lowered::Simple(count(keyword, value)?)
            }
            "pattern" => Lowered::Simple(pattern(value)?),
            // Next to a pattern it is a second one.
            "format" => Lowered::All(format(value)?.into_iter().collect()),
            "allOf" => Lowered::All(self.list(keyword, value, depth)?),
            "anyOf" | "oneOf" => Lowered::Applied(self.list(keyword, value, depth)?.into()),
            "$ref" => Lowered::Applied(self.reference(value, depth)?.into()),
            "const" => Lowered::Applied(self.value(value)?),
            "enum" => Lowered::Applied(self.values(value)?),
            "uniqueItems" if *value == Value::Bool(false) => Lowered::Nothing,
            "contentMediaType" | "contentEncoding" if !self.references.draft().asserts_content() => {
                Lowered::Nothing
            }
            _ if UNENFORCEABLE.contains(&keyword) => return Err(unenforceable(keyword)),
            // Drafts say differently what the keywords for items mean together, and bounds of numbers belong
            // together too. Identifiers and annotations assert nothing; neither do unknown keywords, by the
            // standard.
            _ => Lowered::Nothing,
        })
    }

    fn reference(&mut self, reference: &Value, depth: usize) -> Result<String, GrammarError> {
        let Some(text) = reference.as_str() else {
            return Err(GrammarError::invalid(format!("$ref is a string, not {reference}")));
        };
        let (target, number, is_new) = self.references.resolve(text)?;
        let name = format!("d{number}");
        if is_new {
            let place = self.references.enter(Some(number));
            let lowered = self.schema(target, depth + 1)?;
            self.references.enter(place);
            self.definitions.insert(name.clone(), lowered);
        }
        Ok(format!("#/$defs/{name}"))
    }

    fn named(&mut self, keyword: &str, value: &'s Value, depth: usize) -> Result<Value, GrammarError> {
        let Value::Object(schemas) = value else {
            return Err(GrammarError::invalid(format!("{keyword} is an object, not {value}")));
        };
        let mut lowered = Map::new();
        for (name, schema) in schemas {
            let name = if keyword == "patternProperties" { pattern::lower(name)? } else { name.clone() };
            let schema = self.child(schema, depth)?;
            if lowered.insert(name, schema).is_some() {
                return Err(GrammarError::unsupported(keyword, "two patterns mean the same"));
            }
        }
        Ok(Value::Object(lowered))
    }

    fn list(&mut self, keyword: &str, value: &'s Value, depth: usize) -> Result<Vec<Value>, GrammarError> {
        let schemas = value.as_array().filter(|schemas| !schemas.is_empty());
        let schemas =
            schemas.ok_or_else(|| GrammarError::invalid(format!("{keyword} is a list of schemas")))?;
        schemas.iter().map(|schema| self.schema(schema, depth + 1)).collect()
    }

    /// Writes the array keywords as 2020-12 has them.
    fn items(
        &mut self,
        keywords: &'s Map<String, Value>,
        simple: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), GrammarError> {
        let (first, rest) = match (keywords.get("items"), self.references.draft().has_prefix_items()) {
            (items @ Some(Value::Array(_)), _) if !keywords.contains_key("prefixItems") => {
                (items, keywords.get("additionalItems"))
            }
            (Some(Value::Array(_)), _) => {
                return Err(GrammarError::invalid("items is a list next to prefixItems"));
            }
            (items, true) => (keywords.get("prefixItems"), items),
            (items, false) => (None, items),
        };
        if let Some(first) = first {
            // An empty list was valid in old drafts and says nothing.
            if first.as_array().is_none_or(|schemas| !schemas.is_empty()) {
                let place = self.references.enter(None);
                let first = self.list("prefixItems", first, depth);
                self.references.enter(place);
                simple.insert("prefixItems".to_owned(), first?.into());
            }
        }
        if let Some(rest) = rest {
            simple.insert("items".to_owned(), self.child(rest, depth)?);
        }
        Ok(())
    }

    fn values(&mut self, values: &Value) -> Result<Value, GrammarError> {
        let Value::Array(values) = values else {
            return Err(GrammarError::invalid(format!("enum is a list, not {values}")));
        };
        values.iter().map(|value| self.value(value)).collect()
    }

    /// Checks that a value can be written as it is.
    fn value(&mut self, value: &Value) -> Result<Value, GrammarError> {
        self.count(1)?;
        match value {
            Value::Number(number) => number::check_exact("const", number)?,
            Value::String(text) if text.contains(has_no_escape) => {
                return Err(GrammarError::unsupported(
                    "const",
                    "it has a control character without a short escape",
                ));
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.value(item).map(drop))?,
            Value::Object(members) => members.values().try_for_each(|member| self.value(member).map(drop))?,
            _ => {}
        }
        Ok(value.clone())
    }
}

/// JSON can write it as `\u` and four digits alone, which is not among the escapes that are allowed; the
/// engine would leave it out of a literal.
fn has_no_escape(character: char) -> bool {
    character.is_ascii_control() && !"\n\r\t\x08\x0c".contains(character)
}

fn unenforceable(keyword: &str) -> GrammarError {
    GrammarError::unsupported(
        keyword,
        "it can't be decided token by token; leave it out and check the result for it",
    )
}

fn types(value: &Value) -> Result<Value, GrammarError> {
    let known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    let valid = match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        name => known(name),
    };
    let error =
        || GrammarError::invalid(format!("type is one of {}, or some, not {value}", TYPES.join(", ")));
    valid.then(|| value.clone()).ok_or_else(error)
}

fn strings(keyword: &str, value: &Value) -> Result<Value, GrammarError> {
    match value {
        Value::Array(items) if items.iter().all(Value::is_string) => Ok(value.clone()),
        _ => Err(GrammarError::invalid(format!("{keyword} is a list of strings, not {value}"))),
    }
}

fn count(keyword: &str, value: &Value) -> Result<Value, GrammarError> {
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let whole =
        whole.ok_or_else(|| GrammarError::invalid(format!("{keyword} is a whole number, not {value}")))?;
    if whole > MOST_COUNT as f64 {
        return Err(GrammarError::too_large(keyword, MOST_COUNT as usize));
    }
    Ok(Value::from(whole as u64))
}

fn pattern(value: &Value) -> Result<Value, GrammarError> {
    let text =
        value.as_str().ok_or_else(|| GrammarError::invalid(format!("pattern is a string, not {value}")))?;
    pattern::lower(text).map(Value::from)
}

fn format(value: &Value) -> Result<Option<Value>, GrammarError> {
    let name =
        value.as_str().ok_or_else(|| GrammarError::invalid(format!("format is a string, not {value}")))?;
    format::lower(name)
}

/// Names of additional properties may repeat in the text and count once, so at most one of them can be
/// demanded.
fn check_least_properties(simple: &Map<String, Value>) -> Result<(), GrammarError> {
    let least = simple.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    let required = simple.get("required").and_then(Value::as_array);
    let mut names: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if least > names.len() as u64 + 1 {
        let reason = "more than one property beyond the required ones; name them in required";
        return Err(GrammarError::unsupported("minProperties", reason));
    }
    Ok(())
}
