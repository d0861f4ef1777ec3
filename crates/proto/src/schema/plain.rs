//! Schemas that every generator understands the same way.
//!
//! What derives produce is correct and rich; generators stumble over the riches. So `null` beside a type goes
//! (the wire reads it as absent, nobody has to send it), alternatives of constants become one `enum`, machine
//! formats become bounds, plain texts and numbers stand where they are used with the words of that place, and a
//! reference stands alone.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

const DEFINITIONS: &str = "#/$defs/";

/// `document`, plain.
pub(super) fn plain(mut document: Value) -> Value {
    simplify(&mut document);
    let definitions = document["$defs"].as_object().cloned().unwrap_or_default();
    refer(&mut document, &definitions);
    keep_reached(&mut document);
    document
}

/// Every definition that `schema` names, below `$defs` too.
pub(super) fn references(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            found.extend(reference(fields).map(str::to_owned));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

fn reference(fields: &Map<String, Value>) -> Option<&str> {
    fields.get("$ref")?.as_str()?.strip_prefix(DEFINITIONS)
}

/// Children first, so that a parent sees them plain.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(simplify);
            without_null(fields);
            constants_to_enum(fields);
            format_to_bounds(fields);
            if let Some(Value::String(words)) = fields.get_mut("description") {
                *words = prose(words);
            }
            // Unknown fields are ignored everywhere.
            if fields.get("additionalProperties") == Some(&json!(false)) {
                fields.remove("additionalProperties");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// Doc comments as prose: lines joined, links to Rust items as mere names.
fn prose(words: &str) -> String {
    let linked = words.replace("[`crate::canonical::", "`").replace("[`", "`").replace("`]", "`");
    let mut text = String::new();
    for line in linked.lines() {
        let breaks = line.is_empty() || line.starts_with("- ") || text.ends_with('\n');
        text.push_str(if text.is_empty() || (breaks && text.ends_with('\n')) {
            ""
        } else if breaks {
            "\n"
        } else {
            " "
        });
        text.push_str(line);
        if line.is_empty() {
            text.push('\n');
        }
    }
    text
}

fn without_null(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            fields.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
        choices.retain(|choice| choice != &json!({"type": "null"}));
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            fields.remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                fields.entry(key).or_insert(value);
            });
        }
    }
    if fields.get("default") == Some(&Value::Null) {
        fields.remove("default");
    }
}

/// `oneOf` texts, each with its own words, as one `enum` whose description has them all.
fn constants_to_enum(fields: &mut Map<String, Value>) {
    let texts = |choice: &Value| {
        let one = choice.get("const").cloned().map(|text| vec![text]);
        one.or_else(|| choice.get("enum").and_then(Value::as_array).cloned())
    };
    let Some(choices) = fields.get("oneOf").and_then(Value::as_array) else {
        if let Some(text) = fields.remove("const") {
            fields.insert("enum".to_owned(), json!([text]));
        }
        return;
    };
    let Some(values) = choices.iter().map(texts).collect::<Option<Vec<_>>>() else { return };
    let mut words = fields.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    for choice in choices {
        if let (Some([text]), Some(about)) = (texts(choice).as_deref(), choice["description"].as_str()) {
            words.push_str(&format!("\n- `{}`: {about}", text.as_str().unwrap_or_default()));
        }
    }
    fields.remove("oneOf");
    fields.insert("type".to_owned(), json!("string"));
    fields.insert("enum".to_owned(), values.into_iter().flatten().collect());
    fields.insert("description".to_owned(), json!(words));
}

/// `uint32` and its like mean something to Rust only.
fn format_to_bounds(fields: &mut Map<String, Value>) {
    let maximum = match fields.get("format").and_then(Value::as_str) {
        Some("uint16") => json!(u16::MAX),
        Some("uint32") => json!(u32::MAX),
        Some("uint64") => Value::Null,
        _ => return,
    };
    fields.remove("format");
    if !maximum.is_null() {
        fields.entry("maximum").or_insert(maximum);
    }
}

/// Puts plain texts and numbers where they are used; leaves other references with nothing beside them.
fn refer(schema: &mut Value, definitions: &Map<String, Value>) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::Object(target)) = reference(fields).and_then(|name| definitions.get(name)) {
                if is_scalar(target) {
                    fields.remove("$ref");
                    for (key, value) in target.iter().filter(|(key, _)| *key != "description") {
                        fields.entry(key.clone()).or_insert_with(|| value.clone());
                    }
                } else {
                    fields.retain(|key, _| key == "$ref");
                }
            }
            fields.values_mut().for_each(|field| refer(field, definitions));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, definitions)),
        _ => {}
    }
}

fn is_scalar(target: &Map<String, Value>) -> bool {
    let kind = target.get("type").and_then(Value::as_str);
    matches!(kind, Some("string" | "integer")) && !target.contains_key("enum")
}

/// Drops definitions that nothing leads to any more.
fn keep_reached(document: &mut Value) {
    let Some(Value::Object(definitions)) = document.as_object_mut().and_then(|root| root.remove("$defs"))
    else {
        return;
    };
    let mut reached = BTreeSet::new();
    let mut waiting = Vec::new();
    references(document, &mut waiting);
    while let Some(name) = waiting.pop() {
        if let Some(definition) = definitions.get(&name)
            && reached.insert(name)
        {
            references(definition, &mut waiting);
        }
    }
    let kept = definitions.into_iter().filter(|(name, _)| reached.contains(name)).collect();
    document["$defs"] = Value::Object(kept);
}
