//! One way to say a thing, in either codec.
//!
//! Serde's derived types hear more than an object with named fields: a struct also reads from an array by
//! position, and from MessagePack its fields and enum variants read from numbers; maps and free JSON keep the
//! last of two equal keys; a float that is no number becomes `null`. Other languages hear none of that. This
//! wrapper around a codec's deserializer refuses it, for every type and at every depth, so that no frame is good
//! here and bad there.
//!
//! What it leaves alone: fields that nobody reads. They are stepped over, not looked into.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

/// A deserializer that refuses what only some implementations would understand.
pub(super) struct Strict<D>(pub(super) D);

/// What the type being read has asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Anything that its visitor accepts.
    Any,
    /// An object with named fields.
    Object,
    /// The name of a field or variant.
    Name,
    /// Whatever the one field of a wrapper accepts.
    Wrapper,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Strict<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Listener { visitor, asked: Asked::Any })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Listener { visitor, asked: Asked::Object })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Listener { visitor, asked: Asked::Name })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_any(Variant(visitor))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_option(Listener { visitor, asked: Asked::Any })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_newtype_struct(name, Listener { visitor, asked: Asked::Wrapper })
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_ignored_any(visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }

    // Both codecs describe themselves, so that asking for anything gives what is there.
    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map
    }
}

/// Passes on what was heard, unless it is not what was asked for.
struct Listener<V> {
    visitor: V,
    asked: Asked,
}

/// Numbers and booleans: never the name of anything.
macro_rules! not_a_name {
    ($($method:ident($type:ty) $unexpected:ident as $as:ty;)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            match self.asked {
                Asked::Name => Err(E::invalid_type(Unexpected::$unexpected(<$as>::from(value)), &self.visitor)),
                _ => self.visitor.$method(value),
            }
        }
    )*};
}

/// Texts and bytes.
macro_rules! passed_on {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Listener<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    not_a_name! {
        visit_bool(bool) Bool as bool;
        visit_i64(i64) Signed as i64;
        visit_u64(u64) Unsigned as u64;
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        if !value.is_finite() {
            return Err(E::invalid_value(Unexpected::Float(value), &"a finite number"));
        }
        self.visitor.visit_f64(value)
    }

    passed_on! {
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Strict(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        match self.asked {
            Asked::Wrapper => self.visitor.visit_newtype_struct(Strict(deserializer)),
            // MessagePack's extension types come this way, unasked.
            _ => Err(D::Error::invalid_type(Unexpected::NewtypeStruct, &self.visitor)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        match self.asked {
            Asked::Object => Err(A::Error::invalid_type(Unexpected::Seq, &self.visitor)),
            _ => self.visitor.visit_seq(Items(access)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        // A struct sees to its own fields being there once.
        let seen = (self.asked != Asked::Object).then(BTreeSet::new);
        self.visitor.visit_map(Fields { access, seen })
    }
}

/// Reads an enum from the text that names its variant. No type of ours has variants that carry more.
struct Variant<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Variant<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<V::Value, E> {
        self.0.visit_enum(name.into_deserializer())
    }
}

/// A seed that goes on strictly.
struct Within<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Within<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Strict(deserializer))
    }
}

/// The items of an array.
struct Items<A>(A);

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Items<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Within(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

/// The fields of an object; with `seen`, each key may stand there once.
struct Fields<A> {
    access: A,
    seen: Option<BTreeSet<String>>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Fields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let Some(seen) = &mut self.seen else { return self.access.next_key_seed(Within(seed)) };
        let Some(key) = self.access.next_key::<String>()? else { return Ok(None) };
        if !seen.insert(key.clone()) {
            return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
        }
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.access.next_value_seed(Within(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.access.size_hint()
    }
}
