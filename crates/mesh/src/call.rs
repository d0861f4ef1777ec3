//! Calls: what sessions ask for, one for each method, and how they are read.
//!
//! All of it is generated from the table of methods ([`tenure_proto::with_methods!`]); only params that are `prepared` are
//! written out here.

use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::frame;
use tenure_proto::ids::MessageId;
use tenure_proto::method::{Method, StoreHealth};
use tenure_proto::wire::*;

use crate::conn::frames::Supply;
use crate::conn::identity::House;
use crate::messages::prepare::{Prepared, prepare};
use crate::runs::run;
use crate::runs::start::{self, Start};

/// Where params are prepared: what a frame's connection knows.
pub struct Desk<'a, S> {
    /// The wall clock, Unix milliseconds.
    pub wall: u64,
    /// The broker.
    pub house: &'a House,
    /// What only a shell can get.
    pub supply: &'a mut S,
}

/// Params that are checked and completed before anybody may act on them.
pub trait Prepare: Sized {
    /// What the mesh gets of them.
    type Call;

    /// Checks and completes them.
    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<Self::Call, WireError>;
}

/// How the params of a row are kept in a [`Call`].
macro_rules! kept {
    ($params:ident) => { $params };
    ($params:ident default) => { $params };
    ($params:ident boxed) => { Box<$params> };
    ($params:ident default boxed) => { Box<$params> };
    ($params:ident prepared) => { <$params as Prepare>::Call };
    ($params:ident default prepared) => { <$params as Prepare>::Call };
}

/// How the params of a row are read, into the variant of [`Call`] that is given.
macro_rules! read {
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident) => {
        Ok($call(frame::params($codec, $bytes)?))
    };
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident default) => {
        Ok($call(frame::params_or_default($codec, $bytes)?))
    };
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident boxed) => {
        Ok($call(Box::new(frame::params($codec, $bytes)?)))
    };
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident default boxed) => {
        Ok($call(Box::new(frame::params_or_default($codec, $bytes)?)))
    };
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident prepared) => {
        frame::params::<$params>($codec, $bytes)?.prepare($desk).map($call)
    };
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident default prepared) => {
        frame::params_or_default::<$params>($codec, $bytes)?.prepare($desk).map($call)
    };
    // Params that ask for nothing must still be an object, and a sound one.
    ($codec:ident $bytes:ident $desk:ident $call:path; $params:ident none) => {
        frame::params_or_default::<$params>($codec, $bytes).map(|_| $call).map_err(Into::into)
    };
}

macro_rules! calls {
    // A variant for each row, without anything for those without params.
    (@enum [$($done:tt)*]) => {
        /// A request that the mesh answers.
        #[derive(Clone, Debug)]
        pub enum Call { $($done)* }
    };
    (@enum [$($done:tt)*] $variant:ident $name:literal ($params:ident none) $result:tt $right:ident $size:ident; $($rest:tt)*) => {
        calls!(@enum [$($done)* #[doc = concat!("`", $name, "`")] $variant,] $($rest)*);
    };
    (@enum [$($done:tt)*] $variant:ident $name:literal ($($params:ident)*) $result:tt $right:ident $size:ident; $($rest:tt)*) => {
        calls!(@enum [$($done)* #[doc = concat!("`", $name, "`")] $variant(kept!($($params)*)),] $($rest)*);
    };
    ($($variant:ident $name:literal ($($params:ident)*) $result:tt $right:ident $size:ident;)*) => {
        calls!(@enum [] $($variant $name ($($params)*) $result $right $size;)*);

        impl Call {
            /// Which method it is of.
            pub const fn method(&self) -> Method {
                match self { $(Call::$variant { .. } => Method::$variant,)* }
            }

            /// Reads the params of a method from its frame.
            pub(crate) fn read(
                method: Method,
                codec: Codec,
                bytes: &[u8],
                desk: &mut Desk<'_, impl Supply>,
            ) -> Result<Call, WireError> {
                match method {
                    Method::Hello => Err(WireError::bad_request("this socket has said hello already")),
                    $(Method::$variant => read!(codec bytes desk Call::$variant; $($params)*),)*
                }
            }
        }
    };
}

tenure_proto::with_methods!(calls);

impl Call {
    /// Roughly the memory that it, or its answer, holds until that has left.
    pub fn weight(&self, max_payload: usize) -> usize {
        match self {
            Call::Send(prepared) => prepared.envelope.weight(),
            Call::RunStart(start) => start.prepared.envelope.weight(),
            Call::RunChunk(params) => run::weight(&params.data),
            Call::RunEnd(params) => run::end_weight(params.result.as_ref(), params.error.as_ref()),
            other => other.method().answer_bytes(max_payload),
        }
    }
}

/// A message is checked, named and hashed.
impl Prepare for SendParams {
    type Call = Box<Prepared>;

    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<Box<Prepared>, WireError> {
        let id = desk.new_id()?;
        prepare(self, id, desk.wall, desk.house.config.max_payload).map(Box::new)
    }
}

/// A run is too, and its input is made canonical.
impl Prepare for RunStartParams {
    type Call = Box<Start>;

    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<Box<Start>, WireError> {
        let id = desk.new_id()?;
        start::prepare(self, id, desk.wall, desk.house.config.max_payload).map(Box::new)
    }
}

/// A piece of an answer is no larger than a message.
impl Prepare for RunChunkParams {
    type Call = RunChunkParams;

    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<RunChunkParams, WireError> {
        start::within("data", json_bytes(&self.data), desk.house.config.max_payload)?;
        Ok(self)
    }
}

/// Nor is its end.
impl Prepare for RunEndParams {
    type Call = Box<RunEndParams>;

    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<Box<RunEndParams>, WireError> {
        start::within("result", json_bytes(&self.result), desk.house.config.max_payload)?;
        start::within("error", json_bytes(&self.error), desk.house.config.max_payload)?;
        Ok(Box::new(self))
    }
}

/// `health` brings along what the shell knows of the store.
impl Prepare for Empty {
    type Call = StoreHealth;

    fn prepare(self, desk: &mut Desk<'_, impl Supply>) -> Result<StoreHealth, WireError> {
        Ok(desk.supply.store())
    }
}

impl<S: Supply> Desk<'_, S> {
    fn new_id(&mut self) -> Result<MessageId, WireError> {
        let none = || WireError::new(ErrorCode::Internal, "the system gave no randomness; try again");
        Ok(MessageId::from_parts(self.wall, self.supply.entropy().ok_or_else(none)?))
    }
}

fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}
