//! Letters: as somebody means them, and as they are sent.

use tenure_proto::message::{Address, Priority, SendParams};
use tenure_proto::number::U53;

use crate::names::Names;
use crate::rng::Rng;
use crate::scenario::TOPICS;
use crate::seen::{Fallback, Lane, Letter, Member, Slot, To};

/// A letter to somebody, whose body begins like this.
pub(crate) fn some_letter(rng: &mut Rng, names: &Names, topics: bool, mut body: String) -> Letter {
    let kinds = if topics { 10 } else { 6 };
    let to = match rng.below(kinds) {
        0..=4 => To::Session(Slot(rng.below(names.slots()) as u8)),
        5 => To::Member(Member(rng.below(names.members()) as u8)),
        n => To::Topic(TOPICS[n as usize % TOPICS.len()].0.to_owned()),
    };
    let size = if rng.chance(20) { rng.between(4_000, 20_000) } else { rng.between(0, 300) };
    body.push_str(&"x".repeat(size as usize));
    let direct = matches!(to, To::Session(_));
    Letter {
        to,
        body,
        lane: [Lane::Now, Lane::Next, Lane::Next, Lane::Low][rng.below(4) as usize],
        fallback: if direct {
            [Fallback::Hold, Fallback::Hold, Fallback::Member, Fallback::Fail][rng.below(4) as usize]
        } else {
            Fallback::Hold
        },
        ttl_ms: rng.chance(60).then(|| rng.between(20_000, 120_000)),
        delay_ms: rng.chance(60).then(|| rng.between(10, 15_000)),
    }
}

/// A letter as it is sent.
pub(crate) fn params_of(names: &Names, id: &str, letter: &Letter) -> Option<SendParams> {
    use tenure_proto::message::Fallback as Wire;
    let to = match &letter.to {
        To::Session(slot) => Address::Session(names.session_key(*slot)?),
        To::Member(member) => Address::Member(names.member_key(*member)?),
        To::Topic(topic) => Address::Topic(topic.parse().ok()?),
    };
    Some(SendParams {
        to,
        body: Some(letter.body.clone()),
        body_b64: None,
        client_message_id: id.parse().ok()?,
        priority: match letter.lane {
            Lane::Now => Priority::Now,
            Lane::Next => Priority::Next,
            Lane::Low => Priority::Low,
        },
        key: Some(id.to_owned()),
        reply_to: None,
        meta: None,
        content_type: None,
        ttl_ms: letter.ttl_ms.map(U53::saturating),
        delay_ms: letter.delay_ms.map(U53::saturating),
        fallback: match letter.fallback {
            Fallback::Hold => Wire::Hold,
            Fallback::Member => Wire::Member,
            Fallback::Fail => Wire::Fail,
        },
        fingerprint: None,
    })
}

/// The letter that is sent like this.
pub(crate) fn letter_of(names: &Names, params: &SendParams) -> Option<Letter> {
    use tenure_proto::message::Fallback as Wire;
    Some(Letter {
        to: match &params.to {
            Address::Session(key) => To::Session(names.slot(key)?),
            Address::Member(key) => To::Member(names.voucher(key)?),
            Address::Topic(topic) => To::Topic(topic.to_string()),
        },
        body: params.body.clone()?,
        lane: match params.priority {
            Priority::Now => Lane::Now,
            Priority::Next => Lane::Next,
            Priority::Low => Lane::Low,
        },
        fallback: match params.fallback {
            Wire::Hold => Fallback::Hold,
            Wire::Member => Fallback::Member,
            Wire::Fail => Fallback::Fail,
        },
        ttl_ms: params.ttl_ms.map(U53::get),
        delay_ms: params.delay_ms.map(U53::get),
    })
}
