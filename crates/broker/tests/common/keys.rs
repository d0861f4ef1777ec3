//! Who somebody is: keys, and the lines that they sign, spelled out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use ed25519_dalek::{Signer, SigningKey};
use serde_json::{Value, json};

/// A member's key, a session's key, a process and its name.
#[derive(Clone)]
pub(crate) struct Who {
    pub(crate) mesh: String,
    pub(crate) member: SigningKey,
    pub(crate) session: SigningKey,
    pub(crate) instance: String,
    pub(crate) name: String,
}

/// A key that nobody else in this test process has.
pub(crate) fn key() -> SigningKey {
    static LAST: AtomicU64 = AtomicU64::new(1);
    let mut seed = [7; 32];
    // The number goes through the key derivation's hash, so neighbours are not neighbours as keys.
    seed[..8].copy_from_slice(&LAST.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    SigningKey::from_bytes(&seed)
}

pub(crate) fn hex(key: &SigningKey) -> String {
    HEXLOWER.encode(key.verifying_key().as_bytes())
}

pub(crate) fn sign(key: &SigningKey, line: &str) -> String {
    BASE64URL_NOPAD.encode(&key.sign(line.as_bytes()).to_bytes())
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

impl Who {
    /// A session with its own key and its own member.
    pub(crate) fn new(name: &str) -> Who {
        Who::of(&key(), name)
    }

    /// A new session of `member`.
    pub(crate) fn of(member: &SigningKey, name: &str) -> Who {
        let session = key();
        let instance = format!("i-{}", &hex(&session)[..12]);
        Who { mesh: "default".to_owned(), member: member.clone(), session, instance, name: name.to_owned() }
    }

    /// A daemon: the session key is the member key.
    pub(crate) fn daemon(name: &str) -> Who {
        let mut who = Who::new(name);
        who.session = who.member.clone();
        who
    }

    /// The same session in another process.
    pub(crate) fn as_process(&self, instance: &str) -> Who {
        Who { instance: instance.to_owned(), ..self.clone() }
    }

    pub(crate) fn id(&self) -> String {
        hex(&self.session)
    }

    /// What the session key signs.
    pub(crate) fn proof(&self, nonce: &str, broker: &str, host: &str) -> String {
        let (mesh, member, session) = (&self.mesh, hex(&self.member), self.id());
        sign(&self.session, &format!("tenure-hello.v1|{mesh}|{member}|{session}|{nonce}|{broker}|{host}"))
    }

    /// What the member key signs; `caps` as they are joined on the line, `*` for absent.
    pub(crate) fn attested(&self, expires_at: u64, caps: &str) -> String {
        let (mesh, member, session) = (&self.mesh, hex(&self.member), self.id());
        sign(&self.member, &format!("tenure-attest.v1|{mesh}|{member}|{session}|{expires_at}|{caps}"))
    }

    /// Good params of `hello` for a challenge.
    pub(crate) fn hello(&self, challenge: &Value, host: &str) -> Value {
        let text = |field: &str| challenge[field].as_str().expect("a text in the challenge");
        let mut hello = json!({
            "protocol": {"min": 1, "max": 1},
            "client": {"name": "hostile", "version": "0.0.1", "instanceId": self.instance},
            "mesh": self.mesh,
            "member": hex(&self.member),
            "session": self.id(),
            "proof": self.proof(text("nonce"), text("broker"), host),
            "profile": {"name": self.name},
        });
        if hex(&self.member) != self.id() {
            let expires_at = unix_ms() + 60_000;
            let signature = self.attested(expires_at, "*");
            hello["attestation"] = json!({"expiresAt": expires_at, "signature": signature});
        }
        hello
    }
}
