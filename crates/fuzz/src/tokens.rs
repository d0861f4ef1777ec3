//! What is signed and carried as text: resume tokens, invites and their links, tickets of the relay.

use ed25519_dalek::SigningKey;
use tenure_proto::invite::{Invite, InviteLink};
use tenure_proto::ticket::RelayTicket;
use tenure_proto::token::ResumeToken;

/// The key that signs the seeds, as in `vectors/tokens.json`.
pub(crate) fn broker_key() -> SigningKey {
    SigningKey::from_bytes(&[4; 32])
}

/// A resume token.
pub(crate) fn resume(bytes: &[u8]) {
    let key = broker_key();
    let text = String::from_utf8_lossy(bytes);
    if let Ok(token) = ResumeToken::verify(&text, &key.verifying_key().to_bytes()) {
        let again = ResumeToken::verify(&token.issue(&key), &key.verifying_key().to_bytes());
        assert_eq!(again.as_ref(), Ok(&token), "a token reads back as itself");
    }
}

/// An invite, or the link that carries one.
pub(crate) fn invite(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = Invite::read(&text);
    if let Ok(verified) = Invite::verify(&text) {
        assert_eq!(read.as_ref().ok(), Some(&verified), "what verifies reads as the same");
    }
    if let Ok(link) = InviteLink::read(&text) {
        let written = InviteLink::write(&link.broker, &link.invite);
        let again = InviteLink::read(&written);
        let again = again.as_ref().map(|link| (link.broker.as_str(), link.invite.as_str()));
        assert_eq!(again.ok(), Some((link.broker.as_str(), link.invite.as_str())), "{written:?}");
    }
}

/// A ticket of the relay.
pub(crate) fn ticket(bytes: &[u8]) {
    let key = broker_key();
    let text = String::from_utf8_lossy(bytes);
    let public = key.verifying_key().to_bytes();
    if let Ok(ticket) = RelayTicket::verify(&text, &public, 1, 0) {
        assert_eq!(RelayTicket::verify(&ticket.issue(&key), &public, 1, 0).as_ref(), Ok(&ticket));
    }
}
