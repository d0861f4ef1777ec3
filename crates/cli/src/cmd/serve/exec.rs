//! One run of the command: a process group of its own, the input on its standard input, its lines as pieces of the answer.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::{Run, RunError};
use tenure_daemon::group::Group;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

/// Bytes of a line that are one piece; a longer line is several.
const LINE: usize = 64 * 1024;
/// Bytes of its last words on standard error that are kept.
const TAIL: usize = 4 * 1024;
/// How long it has between being told to end and being killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long what is left of its output may take once its group is dead.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs `command` to its end and gives what that means. Dropped before that, it and everything that it has started are
/// killed.
pub(super) async fn answer(run: Run, command: &str) -> Result<Value, RunError> {
    let failed = |error: std::io::Error| RunError::failed(format!("the command cannot be run: {error}"));
    let mut child = spawn(&run, command).map_err(failed)?;
    let group = Group::of(&child);
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut tail = Vec::new();
    let last_words = &mut tail;
    let mut speech = Box::pin(async {
        let (input, output, errors) = pipes;
        tokio::join!(feed(input, &run.input), relay(output, &run), listen(errors, last_words)).1
    });
    let over = group.ended();
    tokio::pin!(over);
    let mut spoken = None;
    let cancelled = loop {
        tokio::select! {
            () = &mut over => break false,
            // It has closed its ends, and may go on; unless the run is over and there is nobody to speak to.
            said = &mut speech, if spoken.is_none() => {
                let stop = said.is_err();
                spoken = Some(said);
                if stop {
                    break false;
                }
            }
            () = run.cancelled() => {
                group.tell(Signal::TERM);
                let _ = tokio::time::timeout(GRACE, &mut over).await;
                break true;
            }
        }
    };
    drop(group);
    if spoken.is_none() {
        // Of one that is cancelled nobody waits for more.
        let patience = if cancelled { Duration::ZERO } else { LAST_WORDS };
        spoken = tokio::time::timeout(patience, &mut speech).await.ok();
    }
    drop(speech);
    let status = child.wait().await.map_err(failed)?;
    match spoken {
        _ if cancelled => Err(RunError::Cancelled),
        Some(Err(error)) => Err(error),
        _ => verdict(status, &tail),
    }
}

fn spawn(run: &Run, command: &str) -> std::io::Result<Child> {
    Command::new("sh")
        .args(["-c", command])
        .env("TENURE_RUN_ID", run.id.to_string())
        .env("TENURE_FROM", format!("session:{}", run.from.session))
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Gives it the input, if it wants it.
async fn feed(stdin: Option<ChildStdin>, input: &Value) {
    let Some(mut stdin) = stdin else { return };
    let text = match input {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let _ = stdin.write_all(text.as_bytes()).await;
}

/// Sends its lines. While the broker is behind it waits, and so does the command in the end.
async fn relay(output: Option<impl AsyncRead + Unpin>, run: &Run) -> Result<(), RunError> {
    let Some(output) = output else { return Ok(()) };
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        let room = (LINE - line.len()) as u64;
        let read = (&mut output).take(room).read_until(b'\n', &mut line).await.unwrap_or(0);
        if read == 0 && line.is_empty() {
            return Ok(());
        }
        let whole = line.last() == Some(&b'\n');
        // A piece of a longer line ends with a whole character, if it is text.
        let end = if whole || read == 0 { line.len() } else { whole_characters(&line) };
        let rest = line.split_off(end);
        if whole {
            line.pop();
        }
        run.chunk(String::from_utf8_lossy(&line).into_owned()).await?;
        line = rest;
    }
}

/// The length of `bytes` without the beginning of a character at its end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// Reads to the end and keeps the last of it.
async fn listen(errors: Option<impl AsyncRead + Unpin>, tail: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(read @ 1..) = errors.read(&mut buffer).await {
        tail.extend_from_slice(&buffer[..read]);
        tail.drain(..tail.len().saturating_sub(TAIL));
    }
}

/// What the end of the command means.
fn verdict(status: ExitStatus, tail: &[u8]) -> Result<Value, RunError> {
    if status.success() {
        return Ok(Value::Null);
    }
    let stderr = String::from_utf8_lossy(tail);
    let mut message = match status.code() {
        Some(code) => format!("the command ended with code {code}"),
        None => format!("the command was ended by a {status}"),
    };
    if let Some(last) = stderr.lines().rfind(|line| !line.trim().is_empty()) {
        message += &format!(": {last}");
    }
    let details = json!({"exitCode": status.code(), "stderr": stderr});
    Err(RunError::Failed(WireError::new(ErrorCode::Internal, message).with_details(details)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_is_not_torn() {
        assert_eq!(whole_characters("aä".as_bytes()), 3);
        assert_eq!(whole_characters(&"aä".as_bytes()[..2]), 1);
        assert_eq!(whole_characters(b"a\xff"), 2, "what is no text is passed on");
        assert_eq!(whole_characters(&"ä".as_bytes()[..1]), 1);
    }
}
