//! Two ends and whatever stands between them.

use ed25519_dalek::SigningKey;
use tenure_link::Voucher;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::Options;

fn identity(member: u8, session: u8, mesh: &str) -> Identity {
    let member = SigningKey::from_bytes(&[member; 32]);
    let options = Options::new("ws://127.0.0.1:1", member, "x").unwrap();
    let options = options.session_key(SigningKey::from_bytes(&[session; 32])).mesh(mesh).unwrap();
    Identity::new(&options.link).unwrap()
}

fn web() -> ServiceName {
    "web".parse().unwrap()
}

fn anybody(_: &KeyStatement) -> Result<(), RelayError> {
    Ok(())
}

#[tokio::test]
async fn bytes_pass_both_ways_and_both_ends_know_each_other() {
    let (near, far) = duplex(4_096);
    let (asker, answerer) = (identity(1, 2, "m"), identity(3, 4, "m"));
    let (name, other) = (web(), web());
    let answering = tokio::spawn(async move {
        let (sealed, member) =
            answer(far, &answerer, &other, async |statement: &KeyStatement| Ok(statement.member))
                .await
                .unwrap();
        assert_eq!(member.0, SigningKey::from_bytes(&[1; 32]).verifying_key().to_bytes());
        let (mut inside, outside) = duplex(1_024);
        let (from, to) = tokio::io::split(outside);
        let echo = tokio::spawn(async move {
            let mut all = Vec::new();
            inside.read_to_end(&mut all).await.unwrap();
            inside.write_all(&all).await.unwrap();
            inside.shutdown().await.unwrap();
        });
        sealed.carry(from, to).await.unwrap();
        echo.await.unwrap();
    });
    let (sealed, statement) = ask(near, &asker, &name, anybody).await.unwrap();
    assert_eq!(statement.member.0, SigningKey::from_bytes(&[3; 32]).verifying_key().to_bytes());
    let sent: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let mut heard = Vec::new();
    sealed.carry(&sent[..], &mut heard).await.unwrap();
    answering.await.unwrap();
    assert_eq!(heard, sent);
}

/// What `ask` comes to when `answerer` answers `judged` for `name`.
async fn outcome(
    asker: Identity,
    answerer: Identity,
    name: &str,
    judged: Result<(), WireError>,
) -> (Result<(), RelayError>, Result<(), RelayError>) {
    let (near, far) = duplex(4_096);
    let name: ServiceName = name.parse().unwrap();
    let answering = tokio::spawn(async move {
        answer(far, &answerer, &name, async |_: &KeyStatement| judged).await.map(|_| ())
    });
    let asked = ask(near, &asker, &web(), anybody).await.map(|_| ());
    (asked, answering.await.unwrap())
}

#[tokio::test]
async fn a_no_is_heard_with_its_reason() {
    let no = WireError::new(ErrorCode::Forbidden, "not you");
    let (asked, answered) = outcome(identity(1, 2, "m"), identity(3, 4, "m"), "web", Err(no)).await;
    assert!(matches!(asked, Err(RelayError::Refused(error)) if error.message == "not you"));
    assert!(answered.is_err());
}

#[tokio::test]
async fn another_service_or_mesh_is_not_this_one() {
    let (asked, answered) = outcome(identity(1, 2, "m"), identity(3, 4, "m"), "db", Ok(())).await;
    assert!(asked.is_err() && matches!(answered, Err(RelayError::Noise(_))));
    let (asked, _) = outcome(identity(1, 2, "m"), identity(3, 4, "n"), "web", Ok(())).await;
    assert!(matches!(asked, Err(RelayError::Refused(error)) if error.code == ErrorCode::Unauthorized));
}

#[tokio::test]
async fn a_statement_of_somebody_elses_key_helps_nobody() {
    // The broker in between shows the true statement, and answers itself.
    let (near, mut far) = duplex(4_096);
    let truth = identity(3, 4, "m").statement();
    let rogue = identity(5, 6, "m");
    let answering = tokio::spawn(async move {
        write_frame(&mut far, &truth).await.unwrap();
        let mut noise = Builder::new(NOISE.parse().unwrap())
            .prologue(&prologue(&"m".parse().unwrap(), &web()))
            .unwrap()
            .local_private_key(rogue.private_key())
            .unwrap()
            .build_responder()
            .unwrap();
        assert!(receive(&mut far, &mut noise).await.is_err(), "it cannot read what is not for it");
    });
    assert!(ask(near, &identity(1, 2, "m"), &web(), anybody).await.is_err());
    answering.await.unwrap();
}

#[tokio::test]
async fn who_states_another_key_than_it_uses_is_refused() {
    let (mut near, far) = duplex(4_096);
    let answering = tokio::spawn(async move {
        answer(far, &identity(3, 4, "m"), &web(), async |_: &KeyStatement| Ok(())).await.map(|_| ())
    });
    let theirs: KeyStatement = read_frame(&mut near).await.unwrap();
    let key = theirs.verify(&"m".parse().unwrap(), 0).unwrap();
    let (mine, stolen) = (identity(1, 2, "m"), identity(7, 8, "m"));
    let mut noise = Builder::new(NOISE.parse().unwrap())
        .prologue(&prologue(&"m".parse().unwrap(), &web()))
        .unwrap()
        .local_private_key(mine.private_key())
        .unwrap()
        .remote_public_key(&key)
        .unwrap()
        .build_initiator()
        .unwrap();
    send(&mut near, &mut noise, &json(&stolen.statement()).unwrap()).await.unwrap();
    let verdict: Verdict = unframe(&receive(&mut near, &mut noise).await.unwrap()).unwrap();
    assert_eq!(verdict.outcome().unwrap_err().code, ErrorCode::Unauthorized);
    assert!(answering.await.unwrap().is_err());
}

/// Two ends that have shaken hands, with hold of the bytes between them.
async fn sealed() -> (Sealed<DuplexStream>, Sealed<DuplexStream>) {
    let (near, far) = duplex(1 << 20);
    let answering = tokio::spawn(async move {
        answer(far, &identity(3, 4, "m"), &web(), async |_: &KeyStatement| Ok(())).await.unwrap().0
    });
    let asked = ask(near, &identity(1, 2, "m"), &web(), anybody).await.unwrap().0;
    (asked, answering.await.unwrap())
}

#[tokio::test]
async fn a_stream_that_is_cut_short_is_not_over() {
    let (asked, answered) = sealed().await;
    let mut message = vec![0; 1_024];
    let length = asked.state.write_message(0, b"half", &mut message[2..]).unwrap();
    let mut stream = asked.stream;
    write(&mut stream, &mut message, length).await.unwrap();
    drop(stream);
    let mut heard = Vec::new();
    let end = unseal(&answered.state, answered.stream, &mut heard).await;
    assert_eq!(heard, b"half");
    assert!(matches!(end, Err(RelayError::Broken(_))));
}

#[tokio::test]
async fn a_flipped_or_repeated_message_ends_the_stream() {
    let (asked, answered) = sealed().await;
    let mut message = vec![0; 1_024];
    let length = asked.state.write_message(0, b"once", &mut message[2..]).unwrap();
    let mut stream = asked.stream;
    write(&mut stream, &mut message, length).await.unwrap();
    write(&mut stream, &mut message, length).await.unwrap();
    let mut heard = Vec::new();
    assert!(matches!(unseal(&answered.state, answered.stream, &mut heard).await, Err(RelayError::Noise(_))));
    assert_eq!(heard, b"once");
    let (asked, answered) = sealed().await;
    let length = asked.state.write_message(0, b"once", &mut message[2..]).unwrap();
    message[3] ^= 1;
    let mut stream = asked.stream;
    write(&mut stream, &mut message, length).await.unwrap();
    let mut heard = Vec::new();
    assert!(unseal(&answered.state, answered.stream, &mut heard).await.is_err());
    assert!(heard.is_empty());
}

#[tokio::test]
async fn a_member_may_speak_for_itself() {
    let member = SigningKey::from_bytes(&[1; 32]);
    let options = Options::new("ws://127.0.0.1:1", member, "x").unwrap().mesh("m").unwrap();
    assert!(matches!(options.link.voucher, Voucher::Own));
    let own = Identity::new(&options.link).unwrap();
    let (asked, answered) = outcome(own, identity(3, 4, "m"), "web", Ok(())).await;
    assert!(asked.is_ok() && answered.is_ok());
}
