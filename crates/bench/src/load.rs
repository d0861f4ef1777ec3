//! The load of `accept`: senders that each have one send outstanding at a time, spread over a few sockets.
//!
//! A frame is built once and patched: the request's id, which is the sender's number on its socket, and the
//! message's id, a fresh ULID. One thread does it all, answers read together are followed by sends written
//! together, and nothing is decoded but the place where an answer says which request it answers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tenure_client::proto::codec::Codec;
use tenure_client::proto::message::{Address, Priority, SendParams};
use tokio::task::JoinSet;

use crate::ids::{Dice, ULID, sender_key, spell, wall_ms};
use crate::sample::{Sample, Times, Window};
use crate::wire::{self, ID_AT, Wire, find, framed, id_of, request};

/// Sockets that senders are spread over, at most.
pub const SOCKETS: usize = 64;
/// Digits of a request's id.
const DIGITS: usize = 8;
/// Bytes of a client frame's head with a payload of 126 bytes to 64 KiB.
const FRAME_HEAD: usize = 8;
/// How long the last answers may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is sent, but for its ids.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Vec<u8>,
    client_id_at: usize,
}

impl Template {
    /// A send of `body` characters to `topic`.
    pub fn new(topic: &str, body: usize) -> Result<Template> {
        let placeholder = "Z".repeat(ULID);
        let params = SendParams {
            to: Address::Topic(topic.parse().map_err(|_| anyhow!("{topic} is no name of a topic"))?),
            body: Some(Dice::new(0).text(body)),
            body_b64: None,
            client_message_id: placeholder.parse().map_err(|_| anyhow!("no id of a message"))?,
            priority: Priority::default(),
            key: None,
            reply_to: None,
            meta: None,
            content_type: None,
            ttl_ms: None,
            delay_ms: None,
            fallback: Default::default(),
            fingerprint: None,
        };
        let payload = request(&"0".repeat(DIGITS), "send", params)?;
        if !(126..=0xffff).contains(&payload.len()) {
            bail!("a body of {body} bytes does not fit the frames of this load");
        }
        let bytes = framed(&payload);
        let client_id_at = find(&bytes, placeholder.as_bytes()).context("the frame lost its id")?;
        Ok(Template { bytes, client_id_at })
    }

    /// Bytes of a request without its WebSocket head.
    pub fn payload_len(&self) -> usize {
        self.bytes.len() - FRAME_HEAD
    }

    fn write(&self, slot: usize, dice: &mut Dice, now_ms: u64, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&self.bytes);
        let frame = &mut out[from..];
        let mut number = slot;
        for digit in frame[FRAME_HEAD + ID_AT..FRAME_HEAD + ID_AT + DIGITS].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        spell(now_ms, dice.entropy(), &mut frame[self.client_id_at..]);
    }
}

/// Where the load goes.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A broker at this address.
    Broker(&'a str),
    /// A bare server at this address and path, which answers with the beginning of what it was sent.
    Echo(&'a str, &'a str),
}

/// Lets `senders` send for a while; `begun` and `ended` are called when counting begins and ends.
pub fn drive(
    target: Target<'_>,
    template: &Template,
    senders: usize,
    (warm_up, length): (Duration, Duration),
    mut begun: impl FnMut() -> Result<()>,
    mut ended: impl FnMut() -> Result<()>,
) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let sockets = senders.min(SOCKETS);
        let mut wires = Vec::with_capacity(sockets);
        for index in 0..sockets {
            wires.push(match target {
                Target::Broker(address) => {
                    Wire::join(address, &sender_key(index), &format!("load-{index}")).await?
                }
                Target::Echo(address, path) => Wire::open(address, path).await?,
            });
        }
        let window = Window::after(warm_up, length);
        let mut tasks = JoinSet::new();
        for (index, wire) in wires.into_iter().enumerate() {
            let slots = senders / sockets + usize::from(index < senders % sockets);
            tasks.spawn(send(wire, template.clone(), slots, index as u64, window));
        }
        tokio::time::sleep_until(window.from.into()).await;
        begun()?;
        tokio::time::sleep_until(window.until.into()).await;
        ended()?;
        let mut times = Times::default();
        let answers = async {
            while let Some(task) = tasks.join_next().await {
                times.merge(task??);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(PATIENCE, answers).await.context("answers are missing")??;
        Ok(Sample::new(window, times))
    })
}

async fn send(mut wire: Wire, template: Template, slots: usize, seed: u64, window: Window) -> Result<Times> {
    let (mut dice, mut times, mut out) = (Dice::new(seed), Times::default(), Vec::new());
    let now = Instant::now();
    let mut sent = vec![now; slots];
    for slot in 0..slots {
        template.write(slot, &mut dice, wall_ms(), &mut out);
    }
    wire.write(&out).await?;
    let mut outstanding = slots;
    while outstanding > 0 {
        wire.fill().await?;
        let (now, now_ms) = (Instant::now(), wall_ms());
        out.clear();
        while let Some(frame) = wire.next_message()? {
            let Some(id) = id_of(frame, DIGITS) else { continue };
            let slot = id.iter().fold(0, |number, digit| number * 10 + usize::from(digit.wrapping_sub(b'0')));
            if let Some(refusal) = wire::refusal(frame, DIGITS) {
                bail!("a send was refused: {refusal}");
            }
            let sent = sent.get_mut(slot).context("an answer to a request that nobody made")?;
            if window.has(now) {
                times.add(now - *sent);
            }
            if now < window.until {
                *sent = now;
                template.write(slot, &mut dice, now_ms, &mut out);
            } else {
                outstanding -= 1;
            }
        }
        if !out.is_empty() {
            wire.write(&out).await?;
        }
    }
    Ok(times)
}

/// Bytes of the broker's answer to such a send: what a bare server has to answer to be compared with it.
pub fn answer_len(topic: &str) -> Result<usize> {
    use tenure_client::proto::frame::Response;
    use tenure_client::proto::message::SendResult;
    use tenure_client::proto::{MessageId, U53};
    let id = "0".repeat(DIGITS).parse().map_err(|_| anyhow!("no id of a request"))?;
    let result = SendResult {
        id: MessageId::from_parts(wall_ms(), 1),
        log: format!("topic/{topic}/0"),
        seq: U53::saturating(100_000),
        duplicate: false,
        recipient: None,
        first_seen_at: None,
        history_available: None,
    };
    Ok(Codec::MsgPack.encode(&Response::new(id, Ok(result))).len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_client::proto::frame::{Head, params};

    #[test]
    fn a_patched_frame_is_a_send_with_a_fresh_id() {
        let template = Template::new("load", 512).unwrap();
        let (mut dice, mut out) = (Dice::new(3), Vec::new());
        template.write(1234, &mut dice, 1_800_000_000_000, &mut out);
        template.write(1234, &mut dice, 1_800_000_000_000, &mut out);
        let (first, second) = out.split_at(out.len() / 2);
        let read = |frame: &[u8]| {
            let head = Head::decode(Codec::MsgPack, &frame[FRAME_HEAD..]).unwrap();
            assert_eq!((head.id.unwrap().as_str(), head.method.unwrap().as_str()), ("00001234", "send"));
            params::<SendParams>(Codec::MsgPack, &frame[FRAME_HEAD..]).unwrap()
        };
        let (first, second) = (read(first), read(second));
        assert_eq!(first.body.as_ref().map(String::len), Some(512));
        assert_ne!(first.client_message_id, second.client_message_id);
        assert_eq!(SendParams { client_message_id: first.client_message_id.clone(), ..second }, first);
    }
}
