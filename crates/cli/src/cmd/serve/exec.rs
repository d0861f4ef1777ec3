//! One run of the command: a process group of its own, the input on its standard input, its lines as pieces of the answer.
//!
//! What it promises: what the command wrote to its standard output is sent before the run ends well, however long that takes;
//! the run's own time, and the lease of who answers, bound it. What cannot be sent ends the run with an error.

use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_client::proto::error::{ErrorCode, WireError};
use tenure_client::{Run, RunError};
use tenure_daemon::group::Group;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use crate::reaper::Reaper;

/// Bytes of a line that are one piece; a longer line is several.
const LINE: usize = 64 * 1024;
/// Bytes of its last words on standard error that are kept.
const TAIL: usize = 4 * 1024;
/// How long it has between being told to end and being killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long what it has left behind may hold its output open without a word.
const QUIET: Duration = Duration::from_secs(1);
/// How long what it has left behind may go on speaking.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// Runs `command` to its end and gives what that means: all that it said, if that is at most `most` bytes of JSON. Dropped before that, it and everything that it has started are
/// killed; so they are if this process is, by `reaper`.
pub(super) async fn answer(
    run: Run,
    command: &str,
    most: usize,
    reaper: Option<&Arc<Reaper>>,
) -> Result<Value, RunError> {
    let failed = |error: std::io::Error| RunError::failed(format!("the command cannot be run: {error}"));
    let mut child = spawn(&run, command).map_err(failed)?;
    // Dropped after the group, and before the child: until then its number is nobody else's.
    let _watched = reaper.and_then(|reaper| Some(reaper.watch(child.id()?)));
    let group = Group::of(&child);
    let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let ended = group.ended().shared();
    let mut tail = Vec::new();
    let mut beside = Box::pin(async {
        tokio::join!(feed(input, &run.input), listen(errors, &mut tail));
    });
    let mut beside_over = false;
    let work = async {
        let mut mouth = Mouth { run: &run, whole: Whole::new(most) };
        relay(output, &mut mouth, &group, ended.clone()).await?;
        // It has closed its output, and may go on.
        ended.clone().await;
        Ok(mouth.whole.result())
    };
    tokio::pin!(work);
    let done = loop {
        // All are cancel-safe: `work` and `beside` keep their progress where they are, and `cancelled` only waits.
        tokio::select! {
            done = &mut work => break done,
            () = &mut beside, if !beside_over => beside_over = true,
            () = run.cancelled() => {
                group.tell(Signal::TERM);
                let _ = tokio::time::timeout(GRACE, ended.clone()).await;
                break Err(RunError::Cancelled);
            }
        }
    };
    group.tell(Signal::KILL);
    if !beside_over {
        // What it said last is in the pipe; somebody who has left the group may keep that open.
        let _ = tokio::time::timeout(QUIET, &mut beside).await;
    }
    drop(beside);
    let result = done?;
    verdict(child.wait().await.map_err(failed)?, result, &tail)
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

/// Sends its lines, all of them. While the broker is behind it waits, and so does the command in the end. When the command
/// has ended and what it has left behind says nothing, or does not stop speaking, that is killed, and the rest is sent.
async fn relay(
    output: Option<impl AsyncRead + Unpin>,
    mouth: &mut Mouth<'_>,
    group: &Group,
    ended: impl Future<Output = ()> + Clone,
) -> Result<(), RunError> {
    let Some(output) = output else { return Ok(()) };
    let mut output = BufReader::new(output);
    let (mut line, mut over, mut killed) = (Vec::new(), None, false);
    loop {
        let silence = async {
            ended.clone().await;
            over.get_or_insert_with(|| Instant::now() + AFTERWARDS);
            tokio::time::sleep(QUIET).await;
        };
        // Both are cancel-safe; what is there is read before anybody is found to be silent.
        let bytes = tokio::select! {
            biased;
            bytes = output.fill_buf() => bytes.map_err(|error| {
                RunError::failed(format!("the output of the command cannot be read: {error}"))
            })?,
            () = silence => {
                if std::mem::replace(&mut killed, true) {
                    // Whoever still holds it is none of the group.
                    return mouth.last(&line).await;
                }
                group.tell(Signal::KILL);
                continue;
            }
        };
        if bytes.is_empty() {
            return mouth.last(&line).await;
        }
        if over.is_some_and(|over| Instant::now() >= over) {
            group.tell(Signal::KILL);
            let text = "the command has ended, and something that it had started went on speaking: its output is cut off";
            return Err(RunError::failed(text));
        }
        let room = bytes.len().min(LINE - line.len());
        let taken = bytes[..room].iter().position(|byte| *byte == b'\n').map_or(room, |at| at + 1);
        line.extend_from_slice(&bytes[..taken]);
        output.consume(taken);
        let whole = line.last() == Some(&b'\n');
        if !whole && line.len() < LINE {
            continue;
        }
        // A piece of a longer line ends with a whole character, if it is text.
        let end = if whole { line.len() } else { whole_characters(&line) };
        let rest = line.split_off(end);
        if whole {
            line.pop();
        }
        let began = Instant::now();
        mouth.say(&line).await?;
        // That the broker is behind is not its fault.
        over = over.map(|over| over + began.elapsed());
        line = rest;
    }
}

/// What says the pieces of an answer, and remembers them.
struct Mouth<'a> {
    run: &'a Run,
    whole: Whole,
}

impl Mouth<'_> {
    async fn say(&mut self, line: &[u8]) -> Result<(), RunError> {
        let piece = String::from_utf8_lossy(line).into_owned();
        self.whole.add(&piece);
        Ok(self.run.chunk(piece).await?)
    }

    /// Sends what stands behind the last line, if anything does.
    async fn last(&mut self, line: &[u8]) -> Result<(), RunError> {
        if line.is_empty() { Ok(()) } else { self.say(line).await }
    }
}

/// All pieces of an answer, one a line, as long as they are not too much for a result.
struct Whole {
    text: Option<String>,
    pieces: u64,
    most: usize,
}

impl Whole {
    fn new(most: usize) -> Whole {
        Whole { text: Some(String::new()), pieces: 0, most }
    }

    fn add(&mut self, piece: &str) {
        let room = self.most;
        self.text = self.text.take().filter(|text| text.len() + 1 + piece.len() <= room);
        if let Some(text) = &mut self.text {
            if self.pieces > 0 {
                text.push('\n');
            }
            text.push_str(piece);
        }
        self.pieces += 1;
    }

    /// The result of the run; null when nothing was said, or too much.
    fn result(self) -> Value {
        let text = self.text.filter(|_| self.pieces > 0).map(Value::String);
        // As JSON it is longer.
        text.filter(|text| text.to_string().len() <= self.most).unwrap_or(Value::Null)
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
fn verdict(status: ExitStatus, result: Value, tail: &[u8]) -> Result<Value, RunError> {
    if status.success() {
        return Ok(result);
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
    fn a_result_is_all_that_was_said_or_nothing() {
        let result = |most, pieces: &[&str]| {
            let mut whole = Whole::new(most);
            pieces.iter().for_each(|piece| whole.add(piece));
            whole.result()
        };
        assert_eq!(result(16, &["a", "", "b"]), json!("a\n\nb"));
        assert_eq!(result(16, &[""]), json!(""));
        assert_eq!(result(16, &[]), Value::Null);
        assert_eq!(result(16, &["12345678901234"]), json!("12345678901234"));
        assert_eq!(result(16, &["123456789012345"]), Value::Null, "its quotes count");
        assert_eq!(result(16, &["\u{1}\u{1}\u{1}"]), Value::Null, "and how it is spelled");
        assert_eq!(result(4, &["12345", "1"]), Value::Null, "there is no half of it");
    }

    #[test]
    fn a_character_is_not_torn() {
        assert_eq!(whole_characters("aä".as_bytes()), 3);
        assert_eq!(whole_characters(&"aä".as_bytes()[..2]), 1);
        assert_eq!(whole_characters(b"a\xff"), 2, "what is no text is passed on");
        assert_eq!(whole_characters(&"ä".as_bytes()[..1]), 1);
    }
}
