//! One request of HTTP, from whoever asks to whoever offers the service, and its answer back. What passes and what does
//! not is said by `tenure_mesh::relay`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, SET_COOKIE, UPGRADE, VIA};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tenure_mesh::relay::Refusal;
use tenure_mesh::relay::forwarded::{Forwarded, Said, is_believed};
use tenure_mesh::relay::headers::{self, Passing};
use tenure_mesh::services::route::Want;
use tenure_mux::{MuxStream, read_frame};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::limits::{RELAY_HEAD_BYTES, RELAY_HEADERS};
use tenure_proto::name::ServiceName;
use tenure_proto::relay::{Asker, Verdict};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::peer::Peer;
use crate::relay::body::{Answer, Download, Upload};
use crate::relay::consumer::WINDOW_BYTES;
use crate::relay::guard::{REFUSED_HOST, Seen};
use crate::relay::open::{self, Held};
use crate::shared::Shared;

/// How long a publisher may take to say whether its target is there: it gives that five seconds.
const VERDICT: Duration = Duration::from_secs(10);

/// Answers `request` of `peer`, by the service or in our own words.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    tasks: &TaskTracker,
    peer: SocketAddr,
    seen: &Seen,
    request: Request<Incoming>,
) -> Response<Answer> {
    let switch = request.version() == Version::HTTP_11 && request.headers().contains_key(UPGRADE);
    let mut response = match forward(shared, tasks, peer, seen, request).await {
        Ok(response) => response,
        Err(refusal) => {
            shared.metrics.refusal(refusal.code.as_str());
            say(&refusal)
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        seen.switch();
    } else if switch {
        // What its consumer sent behind this was meant for the other protocol, or to look so.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A refusal as an answer.
fn say(refusal: &Refusal) -> Response<Answer> {
    let mut response = Response::new(Answer::own(refusal.body()));
    *response.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let to = response.headers_mut();
    to.insert("content-type", HeaderValue::from_static("application/problem+json"));
    to.insert("cache-control", HeaderValue::from_static("no-store"));
    if let Some(seconds) = refusal.retry_after_s {
        to.insert("retry-after", HeaderValue::from(seconds));
    }
    response
}

async fn forward(
    shared: &Arc<Shared>,
    tasks: &TaskTracker,
    peer: SocketAddr,
    seen: &Seen,
    mut request: Request<Incoming>,
) -> Result<Response<Answer>, Refusal> {
    let config = &shared.config.relay;
    let host = host(&request)?;
    if host == REFUSED_HOST {
        let refusal = seen.refusal().cloned();
        return Err(refusal.unwrap_or_else(|| Refusal::unknown_host(config.domains.example())));
    }
    let name = config.domains.service(&host)?;
    if request.method() == Method::CONNECT {
        return Err(Refusal::method());
    }
    let length = hyper::body::Body::size_hint(request.body()).exact();
    headers::check_length(length, config.body_bytes)?;
    let passing = Passing::new(plain(request.headers()));
    let switch =
        (passing.upgrade && request.version() == Version::HTTP_11).then(|| hyper::upgrade::on(&mut request));
    let head = outgoing(shared, peer, &host, &name, &passing, &request, switch.is_some())?;

    let asker = Asker::at(peer.to_string());
    let places = shared.meshes.places(&name);
    let client = Peer(peer).behind(&config.proxies, request.headers()).0.ip().to_canonical();
    let opened = open::find(shared, &places, Want::Http, asker, client).await;
    let (stream, held) = opened.map_err(|error| Refusal::no_stream(&name, &error))?;
    let stream = target(&name, stream, &held).await?;
    let mut client = http1::Builder::new();
    client.max_headers(RELAY_HEADERS).max_buf_size(RELAY_HEAD_BYTES);
    let broke = |error: hyper::Error| Refusal::broke_off(&name, &error.to_string());
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let carrying = AbortOnDropHandle::new(tasks.spawn(async move {
        // How it ends shows in the answer.
        let _ = connection.with_upgrades().await;
    }));

    // What is read of a body, and what waits for the service.
    let unread = if request.version() == Version::HTTP_2 { WINDOW_BYTES } else { RELAY_HEAD_BYTES };
    let holds = (held.load(), unread + RELAY_HEAD_BYTES);
    let (upload, progress) = Upload::new(request.into_body(), config.body_bytes, config.idle, holds);
    let sending = sender.send_request(head.map(|()| upload));
    tokio::pin!(sending);
    let response = loop {
        let due = progress.last() + config.answer;
        // All are cancel-safe: `sending` keeps its progress where it is, and the others only wait. When this returns early,
        // what was sent by then is cut off with the stream.
        tokio::select! {
            response = &mut sending => break response,
            reason = held.line().is_cut() => return Err(Refusal::cut(&name, reason)),
            () = tokio::time::sleep_until(due), if progress.failed().is_none() => {
                if progress.last() + config.answer <= due {
                    let ms = u64::try_from(config.answer.as_millis()).unwrap_or(u64::MAX);
                    return Err(Refusal::too_slow(&name, ms));
                }
            }
        }
    };
    let response = response.map_err(|error| match progress.failed() {
        Some(refusal) => refusal.clone(),
        None => broke(error),
    })?;
    returning(tasks, name, response, switch, held, carrying)
}

/// The Host that a request is for.
fn host(request: &Request<Incoming>) -> Result<String, Refusal> {
    let mut given = request.headers().get_all(HOST).iter();
    let header = given.next().map(|host| host.to_str().map_err(|_| Refusal::bad("a Host is plain ASCII")));
    if given.next().is_some() {
        return Err(Refusal::bad("a request has one Host"));
    }
    let header = header.transpose()?;
    match (request.uri().authority().map(|authority| authority.as_str()), header) {
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Err(Refusal::bad("the target and the Host of a request name one server"))
        }
        (Some(host), _) | (None, Some(host)) => Ok(host.to_owned()),
        (None, None) => Err(Refusal::bad("a request has a Host")),
    }
}

/// Headers as rules read them.
fn plain(headers: &HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// The head that the service gets.
fn outgoing(
    shared: &Shared,
    peer: SocketAddr,
    host: &str,
    name: &ServiceName,
    passing: &Passing,
    request: &Request<Incoming>,
    switch: bool,
) -> Result<Request<()>, Refusal> {
    let given = request.headers();
    let all = |name: &str| given.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
    let said = Said {
        x_for: all("x-forwarded-for"),
        forwarded: all("forwarded"),
        proto: given.get("x-forwarded-proto").map(HeaderValue::as_bytes),
        host: given.get("x-forwarded-host").map(HeaderValue::as_bytes),
    };
    let proxies = &shared.config.relay.proxies;
    let from = Forwarded::new(peer.ip(), host, false, &said, proxies);
    let via = headers::via(&all("via"), &shared.house.broker_id, name, is_believed(peer.ip(), proxies))?;

    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = path.parse().map_err(|_| Refusal::bad("the target of a request is a path"))?;
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = uri;
    let to = head.headers_mut();
    for (name, value) in given {
        if passing.passes(name.as_str(), true) && ![HOST, COOKIE, VIA].contains(name) {
            to.append(name, value.clone());
        }
    }
    // HTTP/2 may say each cookie by itself; HTTP/1 has one line of them.
    let cookies = all("cookie").join(&b"; "[..]);
    let set = |to: &mut HeaderMap, name: HeaderName, value: &[u8]| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            to.insert(name, value);
        }
    };
    if !cookies.is_empty() {
        set(to, COOKIE, &cookies);
    }
    set(to, HOST, host.as_bytes());
    set(to, VIA, via.as_bytes());
    set(to, HeaderName::from_static("x-forwarded-for"), from.x_for.as_bytes());
    set(to, HeaderName::from_static("x-forwarded-proto"), from.proto.as_bytes());
    set(to, HeaderName::from_static("x-forwarded-host"), from.host.as_bytes());
    set(to, HeaderName::from_static("forwarded"), from.forwarded.as_bytes());
    if switch {
        to.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        to.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    Ok(head)
}

/// The stream, once its publisher has said that the target is there.
async fn target(name: &ServiceName, mut stream: MuxStream, held: &Held) -> Result<MuxStream, Refusal> {
    let away = || WireError::new(ErrorCode::Unavailable, "its publisher does not answer").retry_after(1_000);
    // `read_frame` is not cancel-safe, and it is not resumed: after a cut the stream is dropped.
    let verdict = tokio::select! {
        verdict = tokio::time::timeout(VERDICT, read_frame::<Verdict>(&mut stream)) => verdict,
        reason = held.line().is_cut() => return Err(Refusal::cut(name, reason)),
    };
    match verdict {
        Err(_) => Err(Refusal::no_stream(name, &away())),
        Ok(Err(error)) => Err(Refusal::broke_off(name, &error.to_string())),
        Ok(Ok(verdict)) => match verdict.outcome() {
            Ok(()) => Ok(stream),
            Err(_) => Err(Refusal::dead_target(name)),
        },
    }
}

/// The answer of the service as the consumer gets it.
fn returning(
    tasks: &TaskTracker,
    name: ServiceName,
    mut response: Response<Incoming>,
    switch: Option<OnUpgrade>,
    held: Held,
    carrying: AbortOnDropHandle<()>,
) -> Result<Response<Answer>, Refusal> {
    if headers::has_two_lengths(plain(response.headers()).map(|(name, _)| name)) {
        return Err(Refusal::broke_off(&name, "its answer has both Content-Length and Transfer-Encoding"));
    }
    let passing = Passing::new(plain(response.headers()));
    let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let far = hyper::upgrade::on(&mut response);
    let (parts, body) = response.into_parts();
    let mut to = HeaderMap::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        if name == SET_COOKIE {
            let own = headers::own_cookie(value.as_bytes());
            to.extend(HeaderValue::from_bytes(&own).ok().map(|own| (SET_COOKIE, own)));
        } else if passing.passes(name.as_str(), false) {
            to.append(name, value.clone());
        }
    }
    let mut answer = match (switched, switch) {
        (true, Some(near)) => {
            to.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            to.insert(UPGRADE, HeaderValue::from_static("websocket"));
            tasks.spawn(switch_over(near, far, held, carrying));
            Response::new(Answer::own(""))
        }
        (true, None) => {
            return Err(Refusal::broke_off(&name, "it switched to a protocol that nobody asked for"));
        }
        (false, _) => Response::new(Answer::Passed(Download::new(body, held, carrying))),
    };
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = to;
    Ok(answer)
}

/// Carries what follows a switch, until one end is done or it is cut.
async fn switch_over(near: OnUpgrade, far: OnUpgrade, held: Held, _carrying: AbortOnDropHandle<()>) {
    let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
    let (mut near, mut far) = (TokioIo::new(near), TokioIo::new(far));
    // The copy is not cancel-safe, and it is not resumed: after a cut both ends are dropped.
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = held.line().is_cut() => {}
    }
}
