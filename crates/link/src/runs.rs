//! Runs from the client's side: calls to agents whose answers stream back, through any number of sockets.
//!
//! Who calls is in `caller`: chunks come out in order, each once, with a word where some are missing, and the end once.
//! Who is called is in `callee`: a run is handed to the application once, its chunks and its end are sent until the broker
//! has them. What both say to the application is here.

pub(super) mod callee;
pub(super) mod caller;

use serde_json::Value;
use tenure_proto::WireError;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::RunId;
use tenure_proto::message::Delivery;
use tenure_proto::run::{RunEnd, RunEndStatus, RunStartResult};

use crate::delivery::SubEnd;

/// A call as its caller knows it; the broker's name for the run comes with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallHandle(pub u64);

/// Something for the caller of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum CallItem {
    /// The broker has it; told once.
    Started(RunStartResult),
    /// A piece of the answer.
    Chunk {
        /// Its number, from 1 on.
        seq: u64,
        /// What it says.
        data: Value,
        /// Whether pieces before it are gone for good.
        gap: bool,
    },
    /// It is over; told once, last.
    Ended(CallEnd),
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEnd {
    /// The run has ended.
    Run {
        /// How.
        end: RunEnd,
        /// Whether pieces before the end are gone for good.
        gap: bool,
    },
    /// The broker did not start it, or does not know it any more.
    Refused(WireError),
    /// The session is over. The run goes on: the same key finds it again.
    Session(SubEnd),
}

/// A run that this session answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServedHandle(pub u64);

/// Something about a run that this session answers.
#[derive(Clone, Debug, PartialEq)]
pub enum ServedItem {
    /// It came; once for each run.
    Came(RunId, Box<Delivery>),
    /// The broker has the chunk of this number.
    Taken(u64),
    /// Its caller wants it stopped.
    Cancelled,
    /// It ended without us, and nothing that we say of it counts any more; told once, last.
    Over(WireError),
    /// The broker has its end; told once, last.
    Ended,
}

/// What the chunks of one run that have no answer yet may cost together.
pub const CHUNK_WINDOW: usize = 256 * 1024;
/// What the smallest chunk costs: so many of them are under way at most.
const CHUNK_COST: usize = CHUNK_WINDOW / 64;

/// A piece of an answer, weighed.
#[derive(Clone, Debug)]
pub struct Piece {
    data: Value,
    bytes: usize,
}

impl Piece {
    /// Weighs it.
    pub fn new(data: Value) -> Piece {
        Piece { bytes: json_bytes(&data), data }
    }

    /// What it takes of [`CHUNK_WINDOW`] until it is answered. A large one takes all of it, and goes alone.
    pub fn cost(&self) -> usize {
        self.bytes.clamp(CHUNK_COST, CHUNK_WINDOW)
    }
}

/// How long a value is when it is spelled in JSON.
fn json_bytes(value: &Value) -> usize {
    // A value is always spelled; were it not, it would be too large for anybody.
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

/// The end of a run whose answer is more than a broker takes.
fn end_too_large(max_payload: usize) -> RunEnd {
    let message = format!("the answer is more than the {max_payload} bytes that the broker takes");
    RunEnd {
        status: RunEndStatus::Error,
        result: None,
        error: Some(WireError::new(ErrorCode::TooLarge, message)),
    }
}
