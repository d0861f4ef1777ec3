//! A client without manners: one socket, and a hello of any kind.

use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use tenure_client::SigningKey;
use tenure_client::proto::canonical::{Proof, member_key, session_key};
use tenure_client::proto::close::Closing;
use tenure_client::proto::codec::Codec;
use tenure_client::proto::frame::{self, Request, Response};
use tenure_client::proto::hello::{
    Challenge, ClientInfo, HelloParams, HelloResult, ProtocolRange, ResumeParams,
};
use tenure_client::proto::limits::PROTOCOL;
use tenure_client::proto::peer::Profile;
use tenure_client::proto::{MemberKey, SessionKey, WireError};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::patience;

/// A socket that has been challenged.
pub(crate) struct Raw {
    ws: WebSocketStream<TcpStream>,
    host: String,
    challenge: Challenge,
}

impl Raw {
    pub(crate) async fn connect(addr: SocketAddr) -> Raw {
        let stream = TcpStream::connect(addr).await.expect("connect");
        let (ws, _) =
            tokio_tungstenite::client_async(format!("ws://{addr}/v1/ws"), stream).await.expect("upgrade");
        let challenge = Challenge { nonce: String::new(), ts: Default::default(), broker: String::new() };
        let mut raw = Raw { ws, host: addr.to_string(), challenge };
        let first = raw.frame().await;
        raw.challenge = frame::data(Codec::Json, &first).expect("a challenge");
        raw
    }

    /// A hello by the holder of `key` in the name of `member` and `session`.
    pub(crate) fn hello(&self, key: &SigningKey, member: MemberKey, session: SessionKey) -> HelloParams {
        let mesh = "default".parse().expect("a name");
        let Challenge { nonce, broker, .. } = &self.challenge;
        let proof =
            Proof { mesh: &mesh, member: &member, session: &session, nonce, broker, host: &self.host };
        HelloParams {
            protocol: ProtocolRange { min: PROTOCOL, max: PROTOCOL },
            client: ClientInfo {
                name: "raw".to_owned(),
                version: "1".to_owned(),
                platform: None,
                instance_id: "raw-instance".parse().expect("an id"),
            },
            proof: proof.sign(key),
            mesh,
            member,
            session,
            attestation: None,
            resume: None,
            reconcile: None,
            positions: Vec::new(),
            inbox: Default::default(),
            profile: Profile::named("raw"),
            features: Default::default(),
            auth: None,
        }
    }

    /// A good hello by `key` for itself, beside this resume token.
    pub(crate) fn own_hello(&self, key: &SigningKey, resume: ResumeParams) -> HelloParams {
        let hello = self.hello(key, member_key(key), session_key(key));
        HelloParams { resume: Some(resume), ..hello }
    }

    /// Says hello; the answer.
    pub(crate) async fn say(&mut self, hello: &HelloParams) -> Result<HelloResult, WireError> {
        let request = Request::new("1".parse().expect("an id"), "hello", hello);
        let text = String::from_utf8(Codec::Json.encode(&request)).expect("text");
        self.ws.send(Message::text(text)).await.expect("send");
        let frame = self.frame().await;
        let response: Response<HelloResult> = Codec::Json.decode(&frame).expect("a response");
        response.result.ok_or_else(|| response.error.expect("either"))
    }

    /// The next frame as the close that it announces.
    pub(crate) async fn closing(&mut self) -> Closing {
        frame::data(Codec::Json, &self.frame().await).expect("closing")
    }

    async fn frame(&mut self) -> Vec<u8> {
        loop {
            let next = tokio::time::timeout(patience(), self.ws.next()).await.expect("in time");
            if let Message::Text(text) = next.expect("not over").expect("a message") {
                return text.as_bytes().to_vec();
            }
        }
    }
}
