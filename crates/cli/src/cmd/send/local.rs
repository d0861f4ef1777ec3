//! One message through the daemon: it is on this machine's disk when the daemon answers, and everything after that can
//! be waited for.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_client::Body;
use tenure_client::proto::ids::MessageId;
use tenure_client::proto::text;

use super::super::names::Target;
use super::super::way::Through;
use super::{Args, Wait, spinner};
use crate::exit::Failure;
use crate::local::{Answer, escaped};
use crate::output::{println, safe, sentence};
use crate::signals::Signals;

/// How long between two looks: at first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));
/// How long a daemon may be too busy to take a message.
const BUSY: Duration = Duration::from_secs(10);

/// Hands the message over, and waits as long as was asked for.
pub(super) async fn send(
    through: &Through,
    args: &Args,
    body: Body,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let id = match &args.id {
        Some(id) => id.to_string(),
        None => mint()?,
    };
    let request = request(through, args, body, &id);
    let doubt = format!("it may have been taken: send it again with --id {id}, and it is sent once");
    // The request is not resumed after a signal, so it need not be cancel-safe: with its id it can be made again.
    let answer = tokio::select! {
        answer = hand_over(through, &request) => answer.map_err(|failure| match failure {
            Failure::Unreachable(why) => Failure::Unreachable(format!("{why}; {doubt}")),
            other => other,
        })?,
        () = signals.recv() => {
            return Err(Failure::Failed(format!("stopped before the daemon had answered; {doubt}")));
        }
    };
    if !answer.status.is_success() {
        return Err(refused(&answer));
    }
    if answer.body["status"] == "done" {
        eprintln!("it was sent before and is not sent again");
    }
    let Some(wait) = args.wait else {
        println(&if args.json { answer.body.to_string() } else { id });
        return Ok(());
    };
    let spinner = spinner(match wait {
        Wait::Accepted => "on disk here; waiting for the broker",
        Wait::Delivered => "on disk here; waiting until it is settled",
    });
    let since = Instant::now();
    let late = async {
        match args.timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    // `fate` only asks, and is not resumed, so it need not be cancel-safe; the others only wait.
    let outcome = tokio::select! {
        fate = fate(through, &id, wait) => fate,
        () = signals.recv() => {
            Err(Failure::Failed(format!("stopped waiting; {id} stays queued here and is sent: tenure outbox show {id}")))
        }
        () = late => {
            Err(Failure::Late(format!("not in time; {id} stays queued here and is sent: tenure outbox show {id}")))
        }
    };
    spinner.finish_and_clear();
    tell(args, wait, &id, outcome, since.elapsed())
}

/// Hands the message over; again, if the daemon is too busy: it has an id, so it is one message however often it is tried.
async fn hand_over(through: &Through, request: &Value) -> Result<Answer, Failure> {
    let (since, mut pause) = (Instant::now(), LOOK.0);
    loop {
        let answer = through.local.call(Method::POST, "/v1/send", Some(request)).await?;
        if answer.status != StatusCode::TOO_MANY_REQUESTS || since.elapsed() >= BUSY {
            return Ok(answer);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK.1);
    }
}

/// Prints what became of it: whatever did, its id, because it is on the disk.
fn tell(
    args: &Args,
    wait: Wait,
    id: &str,
    outcome: Result<Value, Failure>,
    took: Duration,
) -> Result<(), Failure> {
    println(&match (&outcome, args.json) {
        (Ok(fate), true) => fate.to_string(),
        (Ok(fate), false) => fate["brokerMessageId"].as_str().unwrap_or(id).to_owned(),
        (Err(_), true) => json!({"clientMessageId": id}).to_string(),
        (Err(_), false) => id.to_owned(),
    });
    let fate = outcome?;
    if wait == Wait::Accepted {
        return Ok(());
    }
    let reason = fate["reason"].as_str().filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {}", sentence(reason))).unwrap_or_default();
    match fate["delivery"].as_str() {
        Some("delivered") => {
            eprintln!("delivered after {:.1} s", took.as_secs_f64());
            Ok(())
        }
        Some("dead") => Err(Failure::Failed(format!("it is a dead letter{reason}"))),
        Some("expired") => Err(Failure::Failed("it has expired".to_owned())),
        _ => Err(Failure::Failed("the broker has it no more, and cannot say what became of it".to_owned())),
    }
}

/// Looks until the message has got as far as was asked for, or never will.
async fn fate(through: &Through, id: &str, wait: Wait) -> Result<Value, Failure> {
    let delivery = wait == Wait::Delivered;
    let path = format!("/v1/sent/{}?delivery={delivery}{}", escaped(id), through.and_mesh());
    let mut pause = LOOK.0;
    loop {
        let answer = through.local.call(Method::GET, &path, None).await.map_err(|failure| match failure {
            Failure::Unreachable(why) => {
                Failure::Unreachable(format!("{why}; {id} is on disk and sent when the daemon runs again"))
            }
            other => other,
        })?;
        // That it is too busy to say where the message is says nothing of the message.
        let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status);
        let fate = if busy && answer.body["retryable"] == true { Value::Null } else { answer.good()? };
        let row = &fate["id"];
        match fate["status"].as_str() {
            Some("dead") => {
                let why = sentence(fate["lastError"].as_str().unwrap_or("no reason is known"));
                return Err(Failure::Refused(format!(
                    "{why}; it is dead: see `tenure outbox show '#{row}'`"
                )));
            }
            Some("aborted") => {
                return Err(Failure::Failed(format!("it was taken back: see `tenure outbox show '#{row}'`")));
            }
            Some("done") if !delivery => return Ok(fate),
            Some("done") if fate["delivery"].as_str().is_some_and(|state| state != "accepted") => {
                return Ok(fate);
            }
            _ => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK.1);
    }
}

fn request(through: &Through, args: &Args, body: Body, id: &str) -> Value {
    let to = match &args.to {
        Target::Address(address) => address.to_string(),
        Target::Name(name) => name.clone(),
    };
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut request = json!({
        "to": to,
        "clientMessageId": id,
        "priority": args.priority.value(),
        "fallback": args.fallback.value(),
    });
    let (key, value) = match body {
        Body::Text(text) => ("body", text),
        Body::Bytes(bytes) => ("bodyB64", text::b64(&bytes)),
    };
    request[key] = json!(value);
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            request[key] = value;
        }
    };
    set("mesh", through.mesh.as_ref().map(|mesh| json!(mesh)));
    set("key", args.key.as_ref().map(|key| json!(key)));
    set("replyTo", args.reply_to.as_ref().map(|id| json!(id)));
    set("meta", args.meta.as_ref().map(|meta| json!(meta)));
    set("contentType", args.content_type.as_ref().map(|kind| json!(kind)));
    set("ttlMs", args.ttl.map(|span| json!(ms(span))));
    set("delayMs", args.delay.map(|span| json!(ms(span))));
    request
}

/// Why it was not taken. What was typed for its receiver is for the person who did to put right.
fn refused(answer: &Answer) -> Failure {
    let body = &answer.body;
    let typed = [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST].contains(&answer.status);
    if !(typed && body["pointer"] == "/to") {
        return answer.failure();
    }
    let mut told = sentence(body["detail"].as_str().unwrap_or_default());
    let candidates = body["candidates"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !candidates.is_empty() {
        told += "\nthese are:";
    }
    for one in candidates {
        let text = |key: &str| safe(one[key].as_str().unwrap_or_default());
        told += &format!("\n  {}  {}", text("name"), text("to"));
    }
    Failure::Usage(told)
}

/// A fresh id: with it a message whose answer was lost can be sent again, once.
fn mint() -> Result<String, Failure> {
    let mut random = [0u8; 16];
    let drawn = getrandom::fill(&mut random);
    drawn.map_err(|error| Failure::Failed(format!("draw randomness for an id: {error}")))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis());
    let now = u64::try_from(now).unwrap_or(u64::MAX);
    Ok(MessageId::from_parts(now, u128::from_le_bytes(random)).to_string())
}
