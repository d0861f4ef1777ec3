//! What the document says of values that occur in many places.

use std::borrow::Cow;

use tenure_mesh::access::pattern::PATTERN_BYTES;
use tenure_mesh::access::setting::{ALIASES, Range, SETTINGS};
use tenure_proto::limits::NAME_BYTES;
use tenure_proto::number::U53;
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A public key.
pub(super) const KEY: &str = "^[0-9a-f]{64}$";
/// A name of ours.
pub(super) const NAME: &str = "^(?!dead$)[a-z0-9][a-z0-9._-]{0,63}$";
/// The name of an invite, whatever its maker drew.
pub(super) const ANY_GRANT: &str = "^[!-~]{1,128}$";
/// The name of an invite or a token, without what would have to be escaped in a URL.
const GRANT: &str = "^[A-Za-z0-9_-]{1,128}$";
/// A line of a person's, for a row.
const LABEL: &str = r"^[^\x00-\x1F\x7F-\x9F\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]{0,128}$";
/// A log.
const LOG: &str = "^(inbox/[sm]/[0-9a-f]{64}|topic/(?!dead/)[a-z0-9][a-z0-9._-]{0,63}/(0|[1-9][0-9]{0,2}))$";
/// Who is banned: a key, or an address or network. Addresses of IPv6 by where their `::` is, if they have one.
pub(super) const SUBJECT: &str = concat!(
    "^((member|session):[0-9a-f]{64}|address:(",
    r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(/(3[0-2]|[12]?[0-9]))?",
    "|(",
    "([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,7}:",
    "|([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}",
    "|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}",
    "|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}",
    "|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}",
    "|[0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}",
    "|:(:[0-9A-Fa-f]{1,4}){1,7}",
    "|::",
    ")(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?",
    "))$"
);

/// Names kinds of values for the document: routes and types say which they take.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $schema:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub(crate) enum $name {}

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    $schema.into()
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($name))
                }
            }
        )*
    };
}

kinds! {
    /// A public key.
    Key: text(KEY);
    /// The name of a mesh.
    MeshPart: text(NAME);
    /// The name of a topic.
    TopicPart: text(NAME);
    /// The name of an invite or a token.
    Grant: text(GRANT);
    /// A line of a person's.
    Label: text(LABEL);
    /// A log.
    Log: text(LOG);
    /// Who is banned.
    Subject: text(SUBJECT);
    /// A whole number that every language can hold.
    Whole: whole(0, U53::MAX.get()).schema_type(Type::Integer);
    /// Settings to change, each as its range says; `null` takes one back.
    SettingValues: settings();
}

fn text(pattern: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern))
}

fn whole(least: u64, most: u64) -> ObjectBuilder {
    ObjectBuilder::new().minimum(Some(least)).maximum(Some(most))
}

fn settings() -> ObjectBuilder {
    let empty = ObjectBuilder::new().schema_type(Type::Object);
    let all = SETTINGS.iter().fold(empty, |all, setting| {
        let (kind, schema) = match setting.range {
            Range::Number(least, most) => (Type::Integer, whole(least, most)),
            Range::Text { capitals, others } => {
                let letters = if capitals { "A-Za-z" } else { "a-z" };
                // A dash between others would be a span.
                let others = others.replace('-', "");
                let pattern = format!("^[{letters}0-9{others}-]{{0,{NAME_BYTES}}}$");
                (Type::String, ObjectBuilder::new().pattern(Some(pattern)))
            }
            Range::Pattern => (Type::String, ObjectBuilder::new().max_length(Some(PATTERN_BYTES))),
        };
        let kinds = SchemaType::from_iter([kind, Type::Null]);
        let schema = schema.schema_type(kinds).description(Some(setting.about)).build();
        let aliases = ALIASES.iter().filter(|(_, name)| *name == setting.name);
        let all = aliases.fold(all, |all, (alias, _)| all.property(*alias, schema.clone()));
        all.property(setting.name, schema)
    });
    all.additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::string::string_regex;
    use tenure_mesh::input::Banned;
    use tenure_proto::log::LogName;

    use super::super::document as whole_document;
    use super::*;

    #[test]
    fn the_document_says_what_each_setting_may_be() {
        let schema = &whole_document()["components"]["schemas"]["SettingValues"];
        assert_eq!(
            schema["properties"].as_object().map(|all| all.len()),
            Some(SETTINGS.len() + ALIASES.len())
        );
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["maxStreamsPerService"]["maximum"], 2048);
        assert_eq!(schema["properties"]["serviceNames"]["pattern"], "^[a-z0-9._*?-]{0,64}$");
    }

    proptest! {
        #[test]
        fn whatever_looks_as_the_document_says_may_be_banned(
            subject in string_regex(SUBJECT.trim_matches(['^', '$'])).unwrap(),
        ) {
            prop_assert!(subject.parse::<Banned>().is_ok(), "{subject}");
        }

        #[test]
        fn whatever_looks_like_a_log_is_one(log in string_regex(&LOG.trim_matches(['^', '$']).replace("(?!dead/)", "")).unwrap()) {
            prop_assert_eq!(log.parse::<LogName>().is_ok(), !log.starts_with("topic/dead/"));
        }
    }
}
