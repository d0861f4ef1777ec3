//! A child process whose lines are read as they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use serde_json::Value;
use tokio::sync::mpsc;

use super::patience;

/// Has the process group that `leader` leads killed when this test's process ends, however that ends (`+`), or not any more
/// (`-`): a number that was waited for may be somebody else's.
fn tell_reaper(what: char, leader: u32) {
    // It outlives this process, which is what it is for: nobody waits for it.
    static REAPER: OnceLock<Mutex<Child>> = OnceLock::new();
    let reaper = REAPER.get_or_init(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.arg("reap").process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
        Mutex::new(command.stdin(Stdio::piped()).spawn().expect("start the reaper"))
    });
    let mut reaper = reaper.lock().unwrap_or_else(PoisonError::into_inner);
    let stdin = reaper.stdin.as_mut().expect("stdin");
    let _ = stdin.write_all(format!("{what}{leader}\n").as_bytes());
}

/// A process that prints one JSON object a line. It is killed when dropped.
pub(crate) struct Proc {
    name: String,
    child: Child,
    lines: mpsc::UnboundedReceiver<Value>,
    seen: Vec<Value>,
    /// How many of `seen` have been waited for.
    read: usize,
    stderr: Arc<Mutex<String>>,
    /// Reads stderr to its end.
    reader: Option<JoinHandle<()>>,
}

impl Proc {
    pub(crate) fn spawn(name: &str, mut command: Command) -> Proc {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().expect("start a process");
        tell_reaper('+', child.id());
        let (stdout, mut errors) =
            (child.stdout.take().expect("stdout"), child.stderr.take().expect("stderr"));
        let (told, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if told.send(value).is_err() {
                    return;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(String::new()));
        let log = stderr.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = errors.read(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                log.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Proc { name: name.to_owned(), child, lines, seen: Vec::new(), read: 0, stderr, reader: Some(reader) }
    }

    /// Waits for a line that is like this, after those that were waited for before.
    pub(crate) async fn until(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = tokio::time::timeout(patience(), async {
            loop {
                while let Some(line) = self.seen.get(self.read) {
                    self.read += 1;
                    if is(line) {
                        return Some(line.clone());
                    }
                }
                self.seen.push(self.lines.recv().await?);
            }
        })
        .await;
        match found {
            Ok(Some(line)) => line,
            Ok(None) => panic!("{} ended before {what}:\n{}", self.name, self.story()),
            Err(_) => panic!("{} waited in vain for {what}:\n{}", self.name, self.story()),
        }
    }

    pub(crate) async fn attached(&mut self) -> Value {
        self.until("attached", |line| line["event"] == "attached").await
    }

    /// Waits until it is told that `name` did this.
    pub(crate) async fn sees(&mut self, kind: &str, name: &str) -> Value {
        let is = |line: &Value| line["data"]["kind"] == kind && line["data"]["peer"]["name"] == name;
        self.until(&format!("{kind} {name}"), is).await
    }

    /// Everything it has printed, as far as it has been read.
    pub(crate) fn seen(&mut self) -> &[Value] {
        while let Ok(line) = self.lines.try_recv() {
            self.seen.push(line);
        }
        &self.seen
    }

    /// Its lines of this event.
    pub(crate) fn events(&mut self, event: &str) -> Vec<Value> {
        self.seen().iter().filter(|line| line["event"] == event).cloned().collect()
    }

    /// What it was told of the peer called `name`, in order.
    pub(crate) fn kinds_of(&mut self, name: &str) -> Vec<String> {
        let of = |line: &&Value| line["data"]["peer"]["name"] == name;
        let kind = |line: &Value| line["data"]["kind"].as_str().unwrap_or_default().to_owned();
        self.seen().iter().filter(of).map(kind).collect()
    }

    /// Sends it a signal, such as STOP or CONT.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status().expect("run kill");
        assert!(sent.success(), "kill -{signal} {}", self.name);
    }

    /// Waits until it has ended; a signal's death has no code.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let read_out = async {
            while let Some(line) = self.lines.recv().await {
                self.seen.push(line)
            }
        };
        let ended = tokio::time::timeout(patience(), read_out).await;
        assert!(ended.is_ok(), "{} does not end:\n{}", self.name, self.story());
        tell_reaper('-', self.child.id());
        let code = self.child.wait().expect("its exit status").code();
        // Its last words may still be in the pipe.
        self.reader.take().map(JoinHandle::join);
        code
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn story(&self) -> String {
        let lines: Vec<String> = self.seen.iter().map(Value::to_string).collect();
        format!("{}\nstderr: {}", lines.join("\n"), self.stderr())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        tell_reaper('-', self.child.id());
        let _ = self.child.wait();
    }
}
