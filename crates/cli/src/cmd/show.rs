//! How a message looks: a line for people, an object for programs, or just what it says.

use clap::Args;
use serde_json::{Value, json};
use tenure_client::proto::log::LogName;
use tenure_client::proto::message::{Bytes, Message, Priority};
use tenure_client::proto::text;

use crate::output::{Colour, Paint, line, safe, spelled};
use crate::span;

/// How messages are printed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Format {
    /// Print one JSON object a line, with everything there is to know
    #[arg(long)]
    pub(crate) json: bool,
    /// Print what each message says and nothing else, byte by byte: tenure sub jobs --raw > jobs.txt
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

/// Prints messages in one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    format: Format,
    paint: Paint,
}

impl Format {
    pub(crate) fn show(self) -> Show {
        Show { format: self, paint: Paint::stdout() }
    }
}

impl Show {
    /// One message as one line, without its end. `facts` are added to the object.
    pub(crate) fn line(&self, message: &Message, facts: Value) -> Vec<u8> {
        if self.format.raw {
            return bytes(message).to_vec();
        }
        if self.format.json {
            let mut object = json!(message);
            if let (Value::Object(object), Value::Object(facts)) = (&mut object, facts) {
                object.extend(facts);
            }
            return spelled(&object.to_string()).into_owned().into_bytes();
        }
        let age = span::short(span::since(message.sent_at.get()));
        let head = match message.log.parse() {
            Ok(LogName::Topic(_, partition)) => {
                let key = message.key.as_deref().map(|key| format!(" {}", safe(key))).unwrap_or_default();
                format!("{partition}/{}{key}", message.seq.get())
            }
            _ => self.priority(message.priority),
        };
        let from = self.paint.paint(Colour::Strong, &safe(&message.from.name));
        let age = self.paint.paint(Colour::Dim, &age);
        format!("{head}  {from}  {age}  {}", said(message)).into_bytes()
    }

    fn priority(&self, priority: Priority) -> String {
        let colour = match priority {
            Priority::Now => Colour::Bad,
            Priority::Next => Colour::Good,
            Priority::Low => Colour::Dim,
        };
        self.paint.paint(colour, &format!("{:<4}", priority.as_str()))
    }
}

/// What a message says, all of it, on one line.
pub(crate) fn said(message: &Message) -> String {
    match (&message.body, &message.body_b64) {
        (Some(text), _) => line(text),
        (None, Some(Bytes(bytes))) => format!("base64:{}", text::b64(bytes)),
        (None, None) => String::new(),
    }
}

fn bytes(message: &Message) -> &[u8] {
    match (&message.body, &message.body_b64) {
        (Some(text), _) => text.as_bytes(),
        (None, Some(Bytes(bytes))) => bytes,
        (None, None) => &[],
    }
}
