//! The document that says what there is (OpenAPI 3.1).
//!
//! Routes and their own types describe themselves; types of the protocol are taken from its schemas as they stand in
//! `schemas/`, so that there is one truth.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tenure_proto::error::ErrorCode;
use tenure_proto::limits::{
    CONTENT_TYPE_BYTES, DELAY_MAX_MS, KEY_BYTES, REPLY_TO_BYTES, RUN_TIMEOUT_MAX_MS, TTL_MAX_MS,
};
use tenure_proto::number::U53;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, Schema};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use super::problem::status;

/// The protocol's own schemas, as generated.
const METHODS: &str = include_str!("../../../../schemas/methods.json");

/// What any request may be told instead of being done: the statuses of all codes, and those of HTTP itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusals;

impl IntoResponses for Refusals {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let http = [
            StatusCode::METHOD_NOT_ALLOWED,
            StatusCode::REQUEST_TIMEOUT,
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            StatusCode::UNPROCESSABLE_ENTITY,
            StatusCode::INSUFFICIENT_STORAGE,
        ];
        let all: BTreeSet<StatusCode> = ErrorCode::ALL.iter().map(|code| status(*code)).chain(http).collect();
        let response = |status: StatusCode| {
            let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            let reason = status.canonical_reason().unwrap_or("Refused");
            let response = ResponseBuilder::new()
                .description(reason)
                .content("application/problem+json", content)
                .build();
            (status.as_str().to_owned(), RefOr::T(response))
        };
        all.into_iter().map(response).collect()
    }
}

/// Names a type of the protocol's where a route speaks of it.
macro_rules! wire_types {
    ($($name:ident),+ $(,)?) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the protocol.")]
            #[derive(Clone, Copy, Debug)]
            pub(super) enum $name {}

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    Schema::default().into()
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($name))
                }
            }
        )+

        /// All of them.
        const WIRE_TYPES: &[&str] = &[$(stringify!($name)),+];
    };
}

wire_types!(
    Base64,
    ContentType,
    DelayMs,
    Fallback,
    HistoryResult,
    IdempotencyKey,
    LogName,
    MeshName,
    Message,
    MessageName,
    Meta,
    Natural,
    PageLimit,
    PartitionKey,
    Peer,
    Priority,
    ProfilePatch,
    ReplyTo,
    RowStatus,
    RunStartParams,
    RunStartResult,
    ServiceRenewParams,
    ServiceRenewResult,
    ServicesListResult,
    SessionKey,
    Target,
    TtlMs,
    TopicName,
);

/// Texts and numbers that the protocol's schemas describe where they stand, and not by a name.
fn plain(name: &str) -> Option<Value> {
    let name_of = "[a-z0-9][a-z0-9._-]{0,63}";
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let not_dead = json!({"enum": ["dead"]});
    Some(match name {
        "MeshName" | "TopicName" => {
            json!({"type": "string", "pattern": format!("^{name_of}$"), "not": not_dead})
        }
        "SessionKey" => text("^[0-9a-f]{64}$"),
        "MessageName" => text("^(?!run:)[ -~]{1,128}$"),
        // A header has no space at its ends.
        "IdempotencyKey" => text("^(?!run:)[!-~]([ -~]{0,126}[!-~])?$"),
        // An address, or the display name of one who is here.
        "Target" => text(&format!(
            "^((session|member):[0-9a-f]{{64}}|topic:(?!dead$){name_of}|(?!session:|member:|topic:)[\\s\\S]{{1,200}})$"
        )),
        "LogName" => {
            text(&format!("^(inbox/[sm]/[0-9a-f]{{64}}|topic/(?!dead/){name_of}/(0|[1-9][0-9]{{0,8}}))$"))
        }
        "Base64" => text("^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"),
        "Natural" => json!({"type": "integer", "minimum": 0, "maximum": U53::MAX}),
        "PageLimit" => json!({"type": "integer", "minimum": 1, "maximum": 256}),
        "TtlMs" => json!({"type": "integer", "minimum": 1, "maximum": TTL_MAX_MS}),
        "DelayMs" => json!({"type": "integer", "minimum": 0, "maximum": DELAY_MAX_MS}),
        // Bytes, which a schema cannot count.
        "PartitionKey" => json!({"type": "string", "maxLength": KEY_BYTES}),
        "ReplyTo" => json!({"type": "string", "maxLength": REPLY_TO_BYTES}),
        "ContentType" => json!({"type": "string", "maxLength": CONTENT_TYPE_BYTES}),
        "RowStatus" => json!({"type": "string", "enum": STATUSES}),
        // Whatever has one canonical form in all languages.
        "Json" => {
            let whole = U53::MAX.get();
            let inside = json!({"$ref": "#/$defs/Json"});
            json!({"anyOf": [
                {"type": ["null", "boolean", "string"]},
                {"type": "number", "minimum": -(whole as i64), "maximum": whole},
                {"type": "array", "items": inside},
                {"type": "object", "additionalProperties": inside},
            ]})
        }
        "Meta" => json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/Json"}}),
        _ => return None,
    })
}

/// Where a row of the outbox stands.
const STATUSES: [&str; 5] = ["pending", "inflight", "done", "dead", "aborted"];

/// What a field's own schema cannot say of a message to be sent: which fields go together.
fn together(schemas: &mut Map<String, Value>) {
    let body = |this: &str, other: &str| json!({"required": [this], "properties": {this: {"type": "string"}, other: {"type": "null"}}});
    let one_body = json!([body("body", "bodyB64"), body("bodyB64", "body")]);
    if let Some(Value::Object(send)) = schemas.get_mut("SendRequest") {
        send.insert("oneOf".to_owned(), one_body);
        send.insert(
            "anyOf".to_owned(),
            json!([
                {"properties": {"fallback": {"enum": ["hold", null]}}},
                {"properties": {"to": {"not": {"pattern": "^(member|topic):"}}}},
            ]),
        );
    }
    if let Some(Value::Object(requeue)) = schemas.get_mut("RequeueRequest") {
        let none = |field: &str| json!({"properties": {field: {"type": "null"}}});
        requeue.insert("anyOf".to_owned(), json!([none("body"), none("bodyB64")]));
    }
}

/// Puts the protocol's types where the document only names them, with all that they name in turn.
pub(super) fn complete(document: &mut Value) {
    let Ok(methods) = serde_json::from_str::<Value>(METHODS) else { return };
    let Some(known) = methods["$defs"].as_object() else { return };
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else { return };
    together(schemas);
    let mut wanted: Vec<String> = WIRE_TYPES.iter().map(|name| (*name).to_owned()).collect();
    let mut added = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        if !added.insert(name.clone()) {
            continue;
        }
        let Some(mut schema) = plain(&name).or_else(|| known.get(&name).cloned()) else { continue };
        match name.as_str() {
            "ProfilePatch" => {
                printable(&mut schema);
                nullable(&mut schema);
            }
            "ServiceMetadata" => nullable(&mut schema),
            "RunStartParams" => callable(&mut schema),
            _ => {}
        }
        refer(&mut schema, &mut wanted);
        schemas.insert(name, schema);
    }
}

/// Says of a run what its schema leaves to the rules: whom it may be for, with what, and for how long.
fn callable(schema: &mut Value) {
    schema["properties"]["input"] = json!({"$ref": "#/$defs/Json"});
    schema["properties"]["to"] = json!({"type": "string", "pattern": "^(session|member):[0-9a-f]{64}$"});
    schema["properties"]["timeoutMs"] =
        json!({"type": "integer", "minimum": 1, "maximum": RUN_TIMEOUT_MAX_MS});
}

/// A text without what `proto::text` refuses in a profile: control characters and bidi marks.
const PRINTABLE: &str =
    "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]*$";

/// Says of the texts of a profile which characters they may have.
fn printable(schema: &mut Value) {
    let fields = schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for field in fields {
        let text = if field["type"] == "array" { &mut field["items"] } else { field };
        if text["type"] == "string" {
            text["pattern"] = PRINTABLE.into();
        }
    }
}

/// Lets the fields of a type be null, which is the same as leaving them out.
fn nullable(schema: &mut Value) {
    let fields = schema["properties"].as_object_mut().into_iter().flat_map(Map::values_mut);
    fields.for_each(|field| *field = json!({"anyOf": [field.take(), {"type": "null"}]}));
}

/// Makes references those of this document, and says what they name.
fn refer(schema: &mut Value, named: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            reference(fields, named);
            fields.values_mut().for_each(|field| refer(field, named));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| refer(item, named)),
        _ => {}
    }
}

fn reference(fields: &mut Map<String, Value>, named: &mut Vec<String>) {
    if let Some(Value::String(place)) = fields.get_mut("$ref")
        && let Some(name) = place.strip_prefix("#/$defs/").map(str::to_owned)
    {
        *place = format!("#/components/schemas/{name}");
        named.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;

    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|field| references(field, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 20);
        for place in found {
            let pointer = place.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{place} is nowhere");
        }
    }

    #[test]
    fn types_of_the_protocol_are_the_protocol_s() {
        let document = document();
        let methods: Value = serde_json::from_str(METHODS).unwrap();
        let same =
            |name: &&&str| plain(name).is_none() && !["ProfilePatch", "RunStartParams"].contains(*name);
        for name in WIRE_TYPES.iter().filter(same) {
            let ours = document["components"]["schemas"][name].to_string();
            let theirs = methods["$defs"][name].to_string();
            assert!(methods["$defs"][name].is_object(), "{name} is not in the protocol's schemas");
            assert_eq!(ours.replace("#/components/schemas/", "#/$defs/"), theirs);
        }
    }

    #[test]
    fn no_name_stands_for_two_types() {
        let own = serde_json::to_value(super::super::routes().split_for_parts().1).unwrap();
        let mut done = own.clone();
        complete(&mut done);
        let own = own["components"]["schemas"].as_object().unwrap();
        for (name, schema) in own.iter().filter(|(name, _)| !WIRE_TYPES.contains(&name.as_str())) {
            let kept = &done["components"]["schemas"][name]["description"];
            assert_eq!(kept, &schema["description"], "{name} is also a type of the protocol");
        }
    }

    #[test]
    fn every_operation_says_how_it_refuses() {
        let document = document();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(_, value)| value.is_object())
            {
                let problem = &operation["responses"]["429"]["content"]["application/problem+json"];
                assert!(problem.is_object(), "{method} {path}");
            }
        }
    }
}
