//! JSON Schema of everything on the wire, for programs that generate types: `schemas/*.json`.
//!
//! A file's root names its types as the properties of one object, so that `Methods["send"]["params"]` is a type
//! in TypeScript and each definition a class in Python. Params are described as a client may send them (what has
//! a default is optional), results and events as a broker sends them (what is always there is required); a
//! definition that stands on both sides takes the wider form.
//!
//! The schemas are kept plain on purpose (see `schema/plain.rs`). They say no more than generators understand; the rules
//! beyond shapes are in the docs and held by the vectors.

mod plain;

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::close::{Closing, Reason};
use crate::error::{ErrorCode, WireError};
use crate::event::{HealthEvent, Notice, PresenceEvent, Receipt, Resync, Shutdown, Tick};
use crate::hello::Challenge;
use crate::ids::RequestId;
use crate::message::Delivery;
use crate::method::Method;
use crate::number::U53;
use crate::run::RunEvent;
use crate::service::ServiceEvent;
use crate::subscribe::SubscriptionEvent;
use crate::wire::*;

/// Every schema: the name of its file, and the document.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("close.json", close()),
        ("error.json", error()),
        ("events.json", events()),
        ("frame.json", frame()),
        ("hello.json", hello()),
        ("methods.json", methods()),
    ]
}

/// Gathers the definitions of one file.
struct Book {
    sent_by_clients: SchemaGenerator,
    sent_by_brokers: SchemaGenerator,
    entries: Map<String, Value>,
}

impl Book {
    fn new() -> Book {
        let settings = SchemaSettings::draft2020_12;
        Book {
            sent_by_clients: settings().for_deserialize().into_generator(),
            sent_by_brokers: settings().for_serialize().into_generator(),
            entries: Map::new(),
        }
    }

    fn client<T: JsonSchema>(&mut self) -> Value {
        self.sent_by_clients.subschema_for::<T>().to_value()
    }

    fn broker<T: JsonSchema>(&mut self) -> Value {
        self.sent_by_brokers.subschema_for::<T>().to_value()
    }

    fn add(&mut self, name: &str, schema: Value) {
        self.entries.insert(name.to_owned(), schema);
    }

    /// The document: an object with every entry, and the definitions that they reach.
    fn finish(self, title: &str, description: &str) -> Value {
        let names: Vec<String> = self.entries.keys().cloned().collect();
        let properties = self.entries.clone();
        self.document(json!({
            "title": title,
            "description": description,
            "type": "object",
            "properties": properties,
            "required": names,
        }))
    }

    /// The document with `root` at its top.
    fn document(mut self, mut root: Value) -> Value {
        let mut definitions = self.sent_by_brokers.take_definitions(true);
        definitions.extend(self.sent_by_clients.take_definitions(true));
        root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        root["$defs"] = Value::Object(definitions);
        plain::plain(root)
    }
}

fn hello() -> Value {
    let mut book = Book::new();
    let challenge = book.broker::<Challenge>();
    book.add("challenge", challenge);
    let (params, result) = method_types(&mut book, Method::Hello);
    book.add("params", params);
    book.add("result", result);
    book.finish("Hello", "The handshake: the broker's challenge, the params of `hello`, and its result.")
}

fn close() -> Value {
    let mut book = Book::new();
    let closing = book.broker::<Closing>();
    book.add("closing", closing);
    let reason = book.broker::<Reason>();
    book.add("reason", reason);
    book.finish("Close", "Why sockets close: the `closing` event, and the reasons known to this version.")
}

fn error() -> Value {
    let mut book = Book::new();
    let error = book.broker::<WireError>();
    book.add("error", error);
    let code = book.broker::<ErrorCode>();
    book.add("code", code);
    book.finish("Errors", "The `error` of a response, and the codes known to this version.")
}

fn events() -> Value {
    let mut book = Book::new();
    for (name, data) in [
        ("challenge", book.broker::<Challenge>()),
        ("closing", book.broker::<Closing>()),
        ("message", book.broker::<Delivery>()),
        ("receipt", book.broker::<Receipt>()),
        ("presence", book.broker::<PresenceEvent>()),
        ("service", book.broker::<ServiceEvent>()),
        ("health", book.broker::<HealthEvent>()),
        ("run", book.broker::<RunEvent>()),
        ("subscription", book.broker::<SubscriptionEvent>()),
        ("tick", book.broker::<Tick>()),
        ("shutdown", book.broker::<Shutdown>()),
        ("resync", book.broker::<Resync>()),
        ("notice", book.broker::<Notice>()),
    ] {
        book.add(name, data);
    }
    book.finish("Events", "The `data` of every event, by the event's name.")
}

fn methods() -> Value {
    let mut book = Book::new();
    for &method in Method::ALL.iter().filter(|method| **method != Method::Hello) {
        let name = method.as_str();
        let (params, result) = method_types(&mut book, method);
        let entry = json!({
            "description": format!("`{name}`: what it takes and what it answers."),
            "type": "object",
            "properties": {"params": params, "result": result},
            "required": ["params", "result"],
        });
        let definition = format!("{}Method", pascal(name));
        book.add(name, json!({"$ref": format!("#/$defs/{definition}")}));
        book.sent_by_brokers.definitions_mut().insert(definition, entry);
    }
    book.finish("Methods", "The `params` and `result` of every method but `hello`, by the method's name.")
}

/// `presence.list` as `PresenceList`.
fn pascal(name: &str) -> String {
    let upper_first = |word: &str| {
        word.chars().take(1).map(|c| c.to_ascii_uppercase()).chain(word.chars().skip(1)).collect::<String>()
    };
    name.split('.').map(upper_first).collect()
}

macro_rules! method_types {
    ($($variant:ident $name:literal ($params:ident $($how:ident)*) ($result:ident $($made:ident)*) $right:ident $size:ident;)*) => {
        fn method_types(book: &mut Book, method: Method) -> (Value, Value) {
            match method {
                Method::Hello => pair::<HelloParams, HelloResult>(book),
                $(Method::$variant => pair::<$params, $result>(book),)*
            }
        }
    };
}

crate::with_methods!(method_types);

fn pair<P: JsonSchema, R: JsonSchema>(book: &mut Book) -> (Value, Value) {
    (book.client::<P>(), book.broker::<R>())
}

fn frame() -> Value {
    let mut book = Book::new();
    let (id, seq, error) = (book.broker::<RequestId>(), book.broker::<U53>(), book.broker::<WireError>());
    let payload = |what: &str| json!({"type": "object", "description": what});
    let shape = |description: &str, kind: &str, required: &[&str], mut properties: Value| {
        properties["type"] = json!({"type": "string", "enum": [kind]});
        json!({"type": "object", "description": description, "properties": properties, "required": required})
    };
    let definitions = [
        (
            "Request",
            shape(
                "A request.",
                "req",
                &["type", "id", "method", "params"],
                json!({
                    "id": id, "method": {"type": "string", "description": "What to do."},
                    "params": payload("See methods.json and hello.json; absent reads as `{}` where a method needs none."),
                }),
            ),
        ),
        (
            "Success",
            shape(
                "A response to a request that was done.",
                "res",
                &["type", "id", "ok", "result"],
                json!({
                    "id": id, "ok": {"type": "boolean", "enum": [true]},
                    "result": payload("See methods.json and hello.json."),
                }),
            ),
        ),
        (
            "Failure",
            shape(
                "A response to a request that was not done.",
                "res",
                &["type", "id", "ok", "error"],
                json!({
                    "id": id, "ok": {"type": "boolean", "enum": [false]}, "error": error,
                }),
            ),
        ),
        (
            "Event",
            shape(
                "Something that happened.",
                "event",
                &["type", "event", "data"],
                json!({
                    "event": {"type": "string", "description": "What happened."}, "seq": seq,
                    "data": payload("See events.json."),
                }),
            ),
        ),
    ];
    book.sent_by_brokers
        .definitions_mut()
        .extend(definitions.map(|(name, schema)| (name.to_owned(), schema)));
    let one_of: Vec<Value> = ["Request", "Success", "Failure", "Event"]
        .map(|name| json!({"$ref": format!("#/$defs/{name}")}))
        .into();
    book.document(json!({
        "title": "Frame",
        "description": "One WebSocket message. Unknown fields are ignored; `null` reads as absent.",
        "oneOf": one_of,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventBody;

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
    }

    #[test]
    fn every_event_and_method_has_its_entry() {
        let mut names = EventBody::NAMES.to_vec();
        names.sort_unstable();
        assert_eq!(keys(&events()["properties"]), names);
        let mut names: Vec<_> = Method::ALL.iter().map(|m| m.as_str()).filter(|n| *n != "hello").collect();
        names.sort_unstable();
        assert_eq!(keys(&methods()["properties"]), names);
    }

    #[test]
    fn defaults_are_optional_for_clients_and_certain_from_brokers() {
        let hello = hello();
        let required = |name: &str| hello["$defs"][name]["required"].clone();
        assert!(!required("HelloParams").as_array().unwrap().contains(&json!("inbox")));
        assert!(!required("Profile").as_array().unwrap().contains(&json!("status")));
        assert!(required("HelloParams").as_array().unwrap().contains(&json!("profile")));
        assert!(required("Peer").as_array().unwrap().contains(&json!("tags")));
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_definition_is_reached_and_described() {
        for (file, schema) in schemas() {
            let mut references = Vec::new();
            plain::references(&schema, &mut references);
            for name in keys(&schema["$defs"]) {
                assert!(references.iter().any(|r| r == name), "{file}: nothing refers to {name}");
                assert!(schema["$defs"][name]["description"].is_string(), "{file}: {name} says nothing");
            }
            for name in references {
                assert!(schema["$defs"][&name].is_object(), "{file}: {name} is missing");
            }
        }
    }
}
