//! One socket of which many requests are under way at once: the bare client where answers are awaited one by one.
//!
//! Whoever asks encodes its frame; the task that owns the socket puts the request's number into it, writes together what
//! waits together, and hands answers to those who asked.

use anyhow::{Context, Result, anyhow};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use tenure_bench::wire::{ID_AT, Wire, framed, id_of, refusal};

/// Digits of a request's number.
pub(crate) const DIGITS: usize = 8;
/// Requests that may wait to be written.
const QUEUE: usize = 8_192;
/// Requests that are written together, at most.
const TOGETHER: usize = 1_024;

/// Whoever wants something, and what.
struct Want {
    frame: Vec<u8>,
    number_at: usize,
    answer: oneshot::Sender<Result<()>>,
}

/// A socket that is shared; it ends with this.
pub(crate) struct Pipe {
    wants: mpsc::Sender<Want>,
    _task: JoinSet<()>,
}

impl Pipe {
    /// Takes `wire` over, which must have said hello where that is needed.
    pub(crate) fn new(wire: Wire) -> Pipe {
        let (wants, wanted) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn(run(wire, wanted));
        Pipe { wants, _task: task }
    }

    /// Sends `payload`, a request whose id is [`DIGITS`] characters, and waits for the answer to say yes.
    pub(crate) async fn ask(&self, payload: &[u8]) -> Result<()> {
        let frame = framed(payload);
        let number_at = frame.len() - payload.len() + ID_AT;
        let (answer, answered) = oneshot::channel();
        let want = Want { frame, number_at, answer };
        self.wants.send(want).await.ok().context("the socket is gone")?;
        answered.await.context("the socket is gone")?
    }
}

/// Requests that wait for their answers, by number; numbers are used again.
#[derive(Default)]
struct Open {
    slots: Vec<Option<oneshot::Sender<Result<()>>>>,
    free: Vec<usize>,
}

impl Open {
    fn take_in(&mut self, answer: oneshot::Sender<Result<()>>) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(answer);
                slot
            }
            None => {
                self.slots.push(Some(answer));
                self.slots.len() - 1
            }
        }
    }

    fn answer(&mut self, frame: &[u8]) {
        let Some(id) = id_of(frame, DIGITS) else { return };
        let slot = id.iter().fold(0, |number, digit| number * 10 + usize::from(digit.wrapping_sub(b'0')));
        let Some(answer) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot);
        // Whoever asked may have gone home.
        let _ = answer.send(match refusal(frame, DIGITS) {
            Some(refusal) => Err(anyhow!("refused: {refusal}")),
            None => Ok(()),
        });
    }
}

async fn run(mut wire: Wire, mut wanted: mpsc::Receiver<Want>) {
    let (mut open, mut wants, mut out) = (Open::default(), Vec::new(), Vec::new());
    loop {
        // Both are cancel-safe: `recv_many` takes nothing that it does not give, and `fill` reads in one step.
        tokio::select! {
            count = wanted.recv_many(&mut wants, TOGETHER) => {
                if count == 0 {
                    return;
                }
                out.clear();
                for Want { mut frame, number_at, answer } in wants.drain(..) {
                    let mut number = open.take_in(answer);
                    for digit in frame[number_at..number_at + DIGITS].iter_mut().rev() {
                        *digit = b'0' + (number % 10) as u8;
                        number /= 10;
                    }
                    out.extend_from_slice(&frame);
                }
                if wire.write(&out).await.is_err() {
                    return;
                }
            }
            filled = wire.fill() => {
                if filled.is_err() {
                    return;
                }
                loop {
                    match wire.next_message() {
                        Ok(Some(frame)) => open.answer(frame),
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
        }
    }
}
