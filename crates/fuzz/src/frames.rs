//! Frames of a socket, before and after hello.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use ed25519_dalek::SigningKey;
use tenure_kit::host::Doors;
use tenure_mesh::MeshConfig;
use tenure_mesh::conn::frames::{self, Incoming, Supply};
use tenure_mesh::conn::identity::House;
use tenure_proto::codec::Codec;
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, Head, Response};
use tenure_proto::hello::{HelloParams, HelloResult};
use tenure_proto::method::StoreHealth;

/// A frame of a socket that speaks JSON.
pub(crate) fn json(bytes: &[u8]) {
    read(Codec::Json, bytes);
}

/// A frame of a socket that speaks MessagePack.
pub(crate) fn msgpack(bytes: &[u8]) {
    read(Codec::MsgPack, bytes);
}

/// Reads a frame as a broker would, before and after hello, and as a client would.
fn read(codec: Codec, bytes: &[u8]) {
    let incoming = frames::read(codec, codec.is_binary(), bytes, WALL, &HOUSE, &mut Fixed);
    if let Incoming::Refused(_, error) = &incoming {
        // An answer must not be as long as what it answers.
        assert!(error.message.len() <= 4_096, "a refusal of {} bytes", error.message.len());
    }
    if let Incoming::Garbled(text) = &incoming {
        assert!(text.len() <= 4_096, "a notice of {} bytes", text.len());
    }
    let head = Head::decode(codec, bytes);
    if let Ok(Head { event: Some(name), .. }) = &head {
        // What a client reads comes from a broker that it need not trust.
        let _ = EventBody::decode(codec, name, bytes);
    }
    assert!(
        head.is_ok() || matches!(incoming, Incoming::Garbled(_)),
        "a frame whose head does not read was taken for a request: {incoming:?}"
    );
    let _ = frame::params::<HelloParams>(codec, bytes);
    let _ = codec.decode::<Response<HelloResult>>(bytes);
}

const WALL: u64 = 1_800_000_000_000;

struct Fixed;

impl Supply for Fixed {
    fn entropy(&mut self) -> Option<u128> {
        Some(7)
    }

    fn store(&self) -> StoreHealth {
        StoreHealth { kind: "memory".to_owned(), lag_ms: Default::default() }
    }
}

static HOUSE: LazyLock<House> = LazyLock::new(|| {
    let config = Arc::new(MeshConfig::default());
    let key = SigningKey::from_bytes(&[4; 32]);
    House {
        broker_id: House::id_of(&key),
        version: "0.0.0".to_owned(),
        cluster: "cluster-1".parse().unwrap_or_else(|_| unreachable!()),
        key,
        secure: false,
        relay: None,
        doors: Doors::loopback(7400, &[], &[]),
        rooms: BTreeMap::from([("default".parse().unwrap_or_else(|_| unreachable!()), config.clone())]),
        config,
    }
});
