//! What a frame is taken for, and what it asks of the shell.

use ed25519_dalek::SigningKey;
use tenure_kit::host::Doors;
use tenure_proto::ids::MessageId;

use super::*;
use crate::config::MeshConfig;

const WALL: u64 = 1_800_000_000_000;

fn house() -> House {
    let key = SigningKey::from_bytes(&[7; 32]);
    House {
        secure: false,
        relay: None,
        broker_id: House::id_of(&key),
        version: "1".to_owned(),
        cluster: "c".parse().unwrap(),
        key,
        doors: Doors::loopback(7400, &[], &[]),
        rooms: Default::default(),
        config: MeshConfig::default().into(),
    }
}

/// Gives what it has, and counts how often it was asked.
#[derive(Default)]
struct Shell {
    entropy: Option<u128>,
    drawn: u32,
}

impl Supply for Shell {
    fn entropy(&mut self) -> Option<u128> {
        self.drawn += 1;
        self.entropy
    }

    fn store(&self) -> StoreHealth {
        StoreHealth { kind: "memory".to_owned(), lag_ms: U53::saturating(3) }
    }
}

fn json(text: &str, shell: &mut Shell) -> Incoming {
    read(Codec::Json, false, text.as_bytes(), WALL, &house(), shell)
}

const SEND: &str =
    r#"{"type":"req","id":"1","method":"send","params":{"clientMessageId":"m","to":"topic:t","body":"hi"}}"#;

#[test]
fn randomness_is_drawn_for_a_message_and_for_nothing_else() {
    let mut shell = Shell { entropy: Some(5), drawn: 0 };
    let ping = r#"{"type":"req","id":"1","method":"ping"}"#;
    assert!(matches!(json(ping, &mut shell), Incoming::Call(_, Call::Ping)));
    assert_eq!(shell.drawn, 0);
    let Incoming::Call(_, Call::Send(prepared)) = json(SEND, &mut shell) else { panic!("no send") };
    assert_eq!(prepared.envelope.id, MessageId::from_parts(WALL, 5));
    assert_eq!(shell.drawn, 1);
}

#[test]
fn a_message_that_cannot_be_named_is_refused() {
    let Incoming::Refused(_, error) = json(SEND, &mut Shell::default()) else { panic!("accepted") };
    assert_eq!(error.code, ErrorCode::Internal);
}

#[test]
fn the_kind_of_a_message_is_its_codecs() {
    let ping = br#"{"type":"req","id":"1","method":"ping"}"#;
    let Incoming::Garbled(help) = read(Codec::Json, true, ping, WALL, &house(), &mut Shell::default()) else {
        panic!("taken")
    };
    assert!(help.contains("text messages"), "{help}");
    assert!(check_kind(Codec::MsgPack, false).unwrap_err().contains("binary messages"));
}

#[test]
fn health_carries_what_the_shell_says_of_the_store() {
    let health = r#"{"type":"req","id":"1","method":"health"}"#;
    let Incoming::Call(_, Call::Health(store)) = json(health, &mut Shell::default()) else {
        panic!("refused")
    };
    assert_eq!((store.kind.as_str(), store.lag_ms.get()), ("memory", 3));
}

#[test]
fn an_unknown_method_is_refused_by_name_and_not_at_length() {
    let long = format!(r#"{{"type":"req","id":"1","method":"{}"}}"#, "x".repeat(5_000));
    let Incoming::Refused(_, error) = json(&long, &mut Shell::default()) else { panic!("called") };
    assert_eq!(error.code, ErrorCode::UnknownMethod);
    assert!(error.message.len() < 700, "{}", error.message.len());
}
