//! `tenure status`: how the broker is.

use clap::Args as ClapArgs;
use serde_json::json;

use super::Where;
use crate::exit::Failure;
use crate::output::println;

/// Say how the broker is: exit code 0 when it answers, 5 when it cannot be reached.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    at: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    crate::block_on(async move {
        let (session, events) = args.at.visit("tenure status").await?;
        let health = session.health().await?;
        super::leave(session, events).await;
        // The visitor that asked is not counted.
        let sessions = health.sessions.get().saturating_sub(1);
        if args.json {
            let mut health =
                serde_json::to_value(&health).map_err(|error| Failure::Failed(error.to_string()))?;
            health["sessions"] = json!(sessions);
            println(&health.to_string());
            return Ok(());
        }
        let status = serde_json::to_value(health.status).unwrap_or_default();
        println(&format!("broker    {} at {}", health.broker_id, args.at.broker()));
        println(&format!("status    {}", status.as_str().unwrap_or_default()));
        if let Some(reason) = &health.reason {
            println(&format!("          {}", crate::output::line(reason)));
        }
        println(&format!("up        {}", duration(health.uptime_ms.get())));
        println(&format!("mesh      {} with {sessions} sessions", args.at.mesh()));
        println(&format!("store     {}, {} ms behind", health.store.kind, health.store.lag_ms.get()));
        Ok(())
    })
}

/// Milliseconds as a person says them.
pub(super) fn duration(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}
