//! `tenure demo`.

use clap::Args as ClapArgs;

use crate::exit::Failure;

/// See three sessions live through twenty broken connections.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args) -> Result<(), Failure> {
    Err(Failure::Failed("being built".to_owned()))
}
