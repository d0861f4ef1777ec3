//! The floor of a storm: the signatures that one returning session costs the broker, on one core, in this run.

use anyhow::{Context, Result, anyhow, ensure};
use tenure_client::SigningKey;
use tenure_client::proto::canonical::{Attested, Proof, member_key, session_key};
use tenure_client::proto::token::ResumeToken;
use tenure_client::proto::{MemberKey, MeshName, SessionKey, U53};

use crate::proc;

/// Sessions whose signatures are checked in one batch: enough for the kernel's clock, which moves in steps of
/// milliseconds.
const BATCH: usize = 512;
/// Batches; the quickest one counts, because neighbours on the machine can only make it slower.
const BATCHES: usize = 3;

/// Microseconds of one core for what the broker signs and verifies when one session returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signatures {
    pub(crate) proof_us: f64,
    pub(crate) token_us: f64,
    pub(crate) attestation_us: f64,
    pub(crate) issue_us: f64,
}

impl Signatures {
    /// All of it.
    pub(crate) fn total_us(&self) -> f64 {
        self.proof_us + self.token_us + self.attestation_us + self.issue_us
    }
}

/// The broker and the member that all returning sessions have in common.
struct Scene {
    mesh: MeshName,
    member: SigningKey,
    member_public: MemberKey,
    broker: SigningKey,
    nonce: String,
}

/// One returning session, with what it presents.
struct Returning {
    session: SessionKey,
    proof: String,
    attestation: String,
    token: ResumeToken,
    token_text: String,
}

/// Measures with the broker's own code: the same crates, lines and encodings.
pub(crate) fn measure() -> Result<Signatures> {
    let member = tenure_client::random_key()?;
    let scene = Scene {
        mesh: "default".parse().map_err(|_| anyhow!("no name of a mesh"))?,
        member_public: member_key(&member),
        member,
        broker: tenure_client::random_key()?,
        nonce: "n".repeat(43),
    };
    let returning = (0..BATCH).map(|_| scene.returning()).collect::<Result<Vec<_>>>()?;
    let broker = scene.broker.verifying_key().to_bytes();
    Ok(Signatures {
        proof_us: best(&returning, |one| scene.proof(&one.session).verify(&one.proof))?,
        token_us: best(&returning, |one| ResumeToken::verify(&one.token_text, &broker).is_ok())?,
        attestation_us: best(&returning, |one| scene.attested(&one.session).verify(&one.attestation))?,
        issue_us: best(&returning, |one| one.token.issue(&scene.broker) == one.token_text)?,
    })
}

impl Scene {
    fn returning(&self) -> Result<Returning> {
        let key = tenure_client::random_key()?;
        let session = session_key(&key);
        let token = ResumeToken {
            sub: session,
            mid: self.mesh.clone(),
            bid: "c".repeat(32).parse().map_err(|_| anyhow!("no id of a cluster"))?,
            lid: "l1-10000".parse().map_err(|_| anyhow!("no id of a lease"))?,
            iat: U53::saturating(1_800_000_000_000),
        };
        Ok(Returning {
            session,
            proof: self.proof(&session).sign(&key),
            attestation: self.attested(&session).sign(&self.member),
            token_text: token.issue(&self.broker),
            token,
        })
    }

    fn proof<'a>(&'a self, session: &'a SessionKey) -> Proof<'a> {
        let (broker, host) = ("0123456789abcdef", "127.0.0.1:7400");
        Proof { mesh: &self.mesh, member: &self.member_public, session, nonce: &self.nonce, broker, host }
    }

    fn attested<'a>(&'a self, session: &'a SessionKey) -> Attested<'a> {
        let expires_at = 1_800_000_600_000;
        Attested { mesh: &self.mesh, member: &self.member_public, session, expires_at, caps: None }
    }
}

/// Microseconds of this thread's processor time for one call, in the quickest batch.
fn best(returning: &[Returning], holds: impl Fn(&Returning) -> bool) -> Result<f64> {
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let before = proc::thread_cpu_nanos()?;
        let good = returning.iter().filter(|one| holds(one)).count();
        let spent = proc::thread_cpu_nanos()?.saturating_sub(before);
        ensure!(good == returning.len(), "a signature that we made does not hold");
        batches.push(spent);
    }
    let best = batches.into_iter().min().context("no batch was measured")?;
    Ok(best as f64 / 1_000.0 / returning.len() as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn signatures_hold_and_cost_something() {
        let signatures = super::measure().unwrap();
        assert!(signatures.total_us() > 1.0);
    }
}
