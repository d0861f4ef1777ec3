//! The load: clients that each have one request outstanding, on a connection that they keep. One thread does it all,
//! and a request is built once and patched.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use tokio::task::JoinSet;

use super::TARGET;
use crate::http::{Http, request};
use crate::ids::{Dice, ULID, spell, wall_ms};
use crate::sample::{Sample, Times, Window};
use crate::wire::find;

/// Drives so many clients; `begin` and `end` are called when counting begins and ends.
pub(super) fn drive(
    socket: &Path,
    clients: usize,
    body: usize,
    (warm_up, length): (Duration, Duration),
    begin: impl FnOnce() -> Result<()>,
    end: impl FnOnce() -> Result<()>,
) -> Result<Sample> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connections = Vec::new();
        for _ in 0..clients {
            connections.push(Http::connect(socket).await.context("reach the daemon")?);
        }
        let window = Window::after(warm_up, length);
        let mut working = JoinSet::new();
        for (number, http) in connections.into_iter().enumerate() {
            working.spawn(client(http, Dice::new(number as u64), body, window));
        }
        tokio::time::sleep_until(window.from.into()).await;
        begin()?;
        tokio::time::sleep_until(window.until.into()).await;
        end()?;
        let mut times = Times::default();
        while let Some(ended) = working.join_next().await {
            times.merge(ended.map_err(|error| anyhow!("a client broke: {error}"))??);
        }
        Ok(Sample::new(window, times))
    })
}

async fn client(mut http: Http, mut dice: Dice, body: usize, window: Window) -> Result<Times> {
    let placeholder = "Z".repeat(ULID);
    let text = json!({"to": TARGET, "body": dice.text(body), "clientMessageId": placeholder}).to_string();
    let mut bytes = request("localhost", ("POST", "/v1/send"), &[], text.as_bytes());
    let at = find(&bytes, placeholder.as_bytes()).context("the request lost its id")?;
    let mut times = Times::default();
    loop {
        let asked = Instant::now();
        if asked >= window.until {
            return Ok(times);
        }
        spell(wall_ms(), dice.entropy(), &mut bytes[at..]);
        let answered = http.send(&bytes).await.context("post to the daemon")?;
        ensure!(answered.status == 202, "answered {}: {}", answered.status, answered.json());
        let now = Instant::now();
        if window.has(now) {
            times.add(now - asked);
        }
    }
}
