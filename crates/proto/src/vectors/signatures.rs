//! `signatures.json`: the lines that are signed, their signatures, and signatures that must not hold.

use serde_json::{Value, json};

use super::{MEMBER, SESSION, STRANGER, key, key_pair};
use crate::canonical::{Attested, Proof, member_key, session_key, sign};
use crate::ids::{MemberKey, SessionKey};
use crate::name::{Cap, MeshName};
use crate::noise::NoiseKey;
use crate::text;

const NONCE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
const EXPIRES_AT: u64 = 1_700_000_000_000;

/// The order of the group of Ed25519, little-endian: added to the second half of a signature it makes another
/// that a careless verifier takes for good.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

pub(super) fn signatures() -> Value {
    json!({
        "about": "Ed25519 over one line of text. `line` is what the other fields say; `valid` is whether `signature` \
                  is, by strict verification, that of `member` (attestations) or of `session` (proofs, noiseKeys).",
        "keys": {"member": key_pair(MEMBER), "session": key_pair(SESSION), "stranger": key_pair(STRANGER)},
        "attestations": attestations(),
        "proofs": proofs(),
        "noiseKeys": noise_keys(),
    })
}

/// A case of an attestation: what is said, and who signed what.
struct Vouch {
    name: &'static str,
    caps: Option<Vec<Cap>>,
    said: (MeshName, SessionKey, u64),
    signer: u8,
    signed: Option<String>,
}

impl Vouch {
    fn good(name: &'static str, caps: Option<&[&str]>) -> Vouch {
        let caps = caps.map(|caps| caps.iter().map(|cap| cap.parse().expect("a cap")).collect());
        Vouch {
            name,
            caps,
            said: (mesh("default"), session_key(&key(SESSION)), EXPIRES_AT),
            signer: MEMBER,
            signed: None,
        }
    }

    fn entry(self) -> Value {
        let member = member_key(&key(MEMBER));
        let (mesh, session, expires_at) = &self.said;
        let caps = self.caps.as_deref();
        let line = Attested { mesh, member: &member, session, expires_at: *expires_at, caps }.line();
        let signature = sign(&key(self.signer), self.signed.as_ref().unwrap_or(&line));
        let valid = self.signer == MEMBER && self.signed.is_none();
        let mut entry = json!({
            "name": self.name, "mesh": mesh, "member": member, "session": session, "expiresAt": expires_at,
            "line": line, "signature": signature, "valid": valid,
        });
        if let Some(caps) = caps {
            entry["caps"] = json!(caps);
        }
        entry
    }
}

fn attestations() -> Vec<Value> {
    let good = Vouch::good("caps absent: everything", None);
    let (mesh_name, session, expires_at) = &good.said;
    let member = member_key(&key(MEMBER));
    let line = |caps: Option<&[Cap]>| {
        Attested { mesh: mesh_name, member: &member, session, expires_at: *expires_at, caps }.line()
    };
    let everything = Some(line(None));
    let nothing = Some(line(Some(&[])));
    let cases = vec![
        Vouch::good("caps empty: nothing", Some(&[])),
        Vouch::good("one cap", Some(&["send"])),
        Vouch::good("caps sorted", Some(&["read", "send"])),
        Vouch::good("caps unsorted sign as sorted", Some(&["send", "admin", "read"])),
        Vouch { signed: everything.clone(), ..Vouch::good("caps empty, signed as absent", Some(&[])) },
        Vouch { signed: nothing, ..Vouch::good("caps absent, signed as empty", None) },
        Vouch { signed: everything.clone(), ..Vouch::good("caps added after signing", Some(&["admin"])) },
        Vouch {
            said: (mesh("other"), *session, EXPIRES_AT),
            signed: everything.clone(),
            ..Vouch::good("for another mesh", None)
        },
        Vouch {
            said: (mesh("default"), session_key(&key(STRANGER)), EXPIRES_AT),
            signed: everything.clone(),
            ..Vouch::good("for another session", None)
        },
        Vouch {
            said: (mesh("default"), *session, EXPIRES_AT + 1),
            signed: everything,
            ..Vouch::good("expiry moved", None)
        },
        Vouch { signer: STRANGER, ..Vouch::good("by the wrong key", None) },
        Vouch { signer: SESSION, ..Vouch::good("by the session itself", None) },
    ];
    let cases = std::iter::once(good).chain(cases);
    cases.map(Vouch::entry).collect()
}

fn proofs() -> Vec<Value> {
    let good = ("default", NONCE, "broker-1", "127.0.0.1:7400");
    let session = session_key(&key(SESSION));
    let member = member_key(&key(MEMBER));
    let line = proof_line(good, &member, &session);
    let signature = sign(&key(SESSION), &line);
    let entry = |name: &str, said: (&str, &str, &str, &str), signature: &str, valid: bool| {
        proof_entry(name, said, (&member, &session), signature, valid)
    };
    let (mesh, nonce, broker, host) = good;
    let other_nonce = text::b64url(&[7; 32]);
    let mut entries = vec![
        entry("a session of a member", good, &signature, true),
        entry(
            "a public host",
            (mesh, nonce, broker, "mesh.example.org"),
            &sign(&key(SESSION), &line.replace(host, "mesh.example.org")),
            true,
        ),
        entry("wrong host", (mesh, nonce, broker, "mesh.example.org"), &signature, false),
        entry("wrong nonce", (mesh, &other_nonce, broker, host), &signature, false),
        entry("wrong broker", (mesh, nonce, "broker-2", host), &signature, false),
        entry("wrong mesh", ("other", nonce, broker, host), &signature, false),
        entry("by the wrong key", good, &sign(&key(STRANGER), &line), false),
        entry("by the member instead of the session", good, &sign(&key(MEMBER), &line), false),
        entry(
            "an attestation's line",
            good,
            &sign(&key(SESSION), &line.replace("tenure-hello", "tenure-attest")),
            false,
        ),
    ];
    entries.extend(misspelt(&signature).into_iter().map(|(name, text)| entry(name, good, &text, false)));
    let own = session_key(&key(MEMBER));
    let line = proof_line(good, &member, &own);
    entries.push(proof_entry(
        "a member's own session",
        good,
        (&member, &own),
        &sign(&key(MEMBER), &line),
        true,
    ));
    entries
}

/// What a session signs for an X25519 key of its own.
fn noise_keys() -> Vec<Value> {
    let (mesh_name, member, session) =
        (mesh("default"), member_key(&key(MEMBER)), session_key(&key(SESSION)));
    let (ours, other) = ([9; 32], [8; 32]);
    let line =
        |mesh: &MeshName, key: &[u8; 32]| NoiseKey { mesh, member: &member, session: &session, key }.line();
    let good = line(&mesh_name, &ours);
    let entry = |name: &str, mesh: &MeshName, noise: &[u8; 32], signer: u8, valid: bool| {
        json!({
            "name": name, "mesh": mesh, "member": member, "session": session, "key": text::hex(noise),
            "line": line(mesh, noise), "signature": sign(&key(signer), &good), "valid": valid,
        })
    };
    vec![
        entry("a session's key", &mesh_name, &ours, SESSION, true),
        entry("another key", &mesh_name, &other, SESSION, false),
        entry("another mesh", &mesh("other"), &ours, SESSION, false),
        entry("by the member instead of the session", &mesh_name, &ours, MEMBER, false),
        entry("by the wrong key", &mesh_name, &ours, STRANGER, false),
    ]
}

/// Spellings near `signature` that are not signatures.
fn misspelt(signature: &str) -> Vec<(&'static str, String)> {
    let bytes = text::unb64url(signature).expect("a signature");
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        text::b64url(&bytes)
    };
    // 64 bytes leave four unused bits in the last of 86 letters; here they are not zero.
    let last =
        signature.chars().last().and_then(|letter| char::from_u32(u32::from(letter) + 1)).expect("a letter");
    let loose = format!("{}{last}", &signature[..85]);
    vec![
        ("empty", String::new()),
        ("short", text::b64url(&bytes[..63])),
        ("long", text::b64url(&[bytes.as_slice(), &[0]].concat())),
        ("first bit flipped", flipped(0)),
        ("last bit flipped", flipped(63)),
        ("malleable: the order of the group added", malleable(&bytes)),
        ("padded", format!("{signature}==")),
        ("unused bits set", loose),
        ("hex", text::hex(&bytes)),
        ("not base64url", "!".repeat(86)),
        ("all zero", text::b64url(&[0; 64])),
    ]
}

fn malleable(bytes: &[u8]) -> String {
    let mut bytes = bytes.to_vec();
    let mut carry = 0u16;
    for (byte, order) in bytes[32..].iter_mut().zip(ORDER) {
        carry += u16::from(*byte) + u16::from(order);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    text::b64url(&bytes)
}

fn proof_entry(
    name: &str,
    said: (&str, &str, &str, &str),
    (member, session): (&MemberKey, &SessionKey),
    signature: &str,
    valid: bool,
) -> Value {
    let (mesh, nonce, broker, host) = said;
    json!({
        "name": name, "mesh": mesh, "member": member, "session": session, "nonce": nonce, "broker": broker,
        "host": host, "line": proof_line(said, member, session), "signature": signature, "valid": valid,
    })
}

fn proof_line(said: (&str, &str, &str, &str), member: &MemberKey, session: &SessionKey) -> String {
    let (mesh_name, nonce, broker, host) = said;
    Proof { mesh: &mesh(mesh_name), member, session, nonce, broker, host }.line()
}

fn mesh(name: &str) -> MeshName {
    name.parse().expect("a mesh")
}
