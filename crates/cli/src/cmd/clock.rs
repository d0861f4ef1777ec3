//! `tenure clock`: whether the broker believes its wall clock.

use clap::{Args as ClapArgs, ValueEnum};
use hyper::Method;
use serde_json::Value;

use super::administer::Administer;
use crate::exit::Failure;
use crate::output::{line, println};

/// Say whether the broker believes its wall clock, or confirm that it is right.
///
/// A broker that starts more than a day from when its store last ran, or whose clock jumps by more than an hour, lets nothing
/// expire and prunes nothing until the clock has been steady for an hour, or you confirm it.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure clock
  date && tenure clock confirm")]
pub(crate) struct Args {
    /// What to do besides looking
    act: Option<Act>,
    #[command(flatten)]
    on: Administer,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Act {
    /// Say that the clock is right: what is past its time goes from now on
    Confirm,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (method, path) = match args.act {
        None => (Method::GET, "/v1/admin/clock"),
        Some(Act::Confirm) => (Method::POST, "/v1/admin/clock/confirm"),
    };
    let clock = args.on.call(method, path, None)?;
    let text = match &clock["reason"] {
        _ if args.on.json => clock.to_string(),
        Value::String(reason) => line(reason),
        _ => "the wall clock is believed".to_owned(),
    };
    println(&text);
    Ok(())
}
