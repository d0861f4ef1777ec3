//! Who may come in, and who may not: members, invites, tokens, bans.

use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Deserializer, Serialize};
use tenure_mesh::access::admin::{Act, Operated};
use tenure_mesh::access::{BanRecord, InviteRecord, MemberRecord, Right, TokenRecord};
use tenure_mesh::input::Banned;
use tenure_proto::error::ErrorCode;
use tenure_proto::ids::{GrantId, MemberKey};
use tenure_proto::invite::Role;
use tenure_proto::name::Cap;
use tenure_proto::number::U53;
use tenure_proto::text;
use tenure_proto::token::bearer_hash;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, Paged, Path, Query, answer, part, shown};
use super::document::{Grant, Key, Label, MeshPart, Subject};
use super::problem::{Problem, Refusals};
use super::{Asking, odd};

/// What every bearer token begins with, so that one is known where it should not be.
const TOKEN_PREFIX: &str = "tenure-token.";

/// A member of a mesh.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Member {
    /// Its public key.
    member: String,
    /// `member` or `operator`.
    role: &'static str,
    /// What it may do.
    caps: Vec<&'static str>,
    /// What operators call it.
    name: String,
    /// The invite that it came by.
    #[serde(skip_serializing_if = "Option::is_none")]
    invite: Option<String>,
    /// Since when, Unix milliseconds.
    since: u64,
}

impl Member {
    fn of(record: &MemberRecord) -> Member {
        Member {
            member: record.member.to_string(),
            role: record.role.as_str(),
            caps: record.rights().names().collect(),
            name: record.name.clone(),
            invite: record.invite.as_ref().map(GrantId::to_string),
            since: record.since,
        }
    }
}

/// Members, by key.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Members {
    /// One page of them.
    members: Vec<Member>,
    /// What to pass as `after`, when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// What a member is to be; what is absent stays, or is as usual.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemberChange {
    /// `member` or `operator`.
    #[serde(default)]
    #[schema(value_type = Option<RoleName>)]
    role: Option<Role>,
    /// What it may do, of what its role may; `null` is all of that.
    #[serde(default, deserialize_with = "said")]
    #[schema(value_type = Option<Vec<CapName>>)]
    caps: Option<Option<Vec<KnownCap>>>,
    /// What operators call it.
    #[serde(default)]
    #[schema(value_type = Option<Label>)]
    name: Option<String>,
}

/// What a member of a mesh is.
#[derive(Clone, Copy, Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)]
pub(crate) enum RoleName {
    /// It may use the mesh.
    Member,
    /// It may also invite others.
    Operator,
}

/// Something that a session may be allowed to do.
#[derive(Clone, Copy, Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)]
pub(crate) enum CapName {
    /// Send messages, and make topics.
    Send,
    /// Read and settle messages.
    Read,
    /// Call agents, and answer.
    Run,
    /// Offer services.
    Serve,
    /// Invite others.
    Admin,
}

/// A cap that means something: a person who misspells one hears which of them it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Cap")]
pub(crate) struct KnownCap(Cap);

impl TryFrom<Cap> for KnownCap {
    type Error = String;

    fn try_from(cap: Cap) -> Result<KnownCap, String> {
        Right::of(&cap).map(|_| KnownCap(cap))
    }
}

fn plain(caps: Vec<KnownCap>) -> Vec<Cap> {
    caps.into_iter().map(|KnownCap(cap)| cap).collect()
}

/// Tells `null` from nothing.
fn said<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Lists who may come in.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/members", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<MemberKey>),
    responses((status = 200, description = "A page of them", body = Members), Refusals))]
pub(crate) async fn members(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<MemberKey>>,
) -> Result<Response, Problem> {
    let Operated::Members(rows, more) = asking.ask(&mesh, Act::Members(paged.page()?)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.member.to_string());
    Ok(shown(&Members { members: rows.iter().map(Member::of).collect(), next }))
}

/// Lets a key in as a member, or changes what one is.
#[utoipa::path(put, path = "/v1/admin/meshes/{mesh}/members/{member}", request_body = MemberChange,
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("member" = inline(Key), Path, description = "Its public key")),
    responses((status = 200, description = "As it is from now on", body = Member), Refusals))]
pub(crate) async fn put_member(
    asking: Asking,
    Path((mesh, member)): Path<(String, String)>,
    Json(change): Json<MemberChange>,
) -> Result<Response, Problem> {
    let member: MemberKey = part("member", &member)?;
    let MemberChange { role, caps, name } = change;
    let caps = caps.map(|caps| caps.map(plain));
    match asking.ask(&mesh, Act::PutMember { member, role, caps, name }).await? {
        Operated::Member(record) => Ok(shown(&Member::of(&record))),
        _ => Err(odd()),
    }
}

/// Lets a member in no longer; its sessions end.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/members/{member}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("member" = inline(Key), Path, description = "Its public key")),
    responses((status = 204, description = "It is none any more"), Refusals))]
pub(crate) async fn remove_member(
    asking: Asking,
    Path((mesh, member)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::DropMember(part("member", &member)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An invite that was used or revoked.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Invite {
    /// Its name.
    id: String,
    /// The operator that signed it; absent if it was revoked before anybody brought it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// How many keys it has let in.
    used: u32,
    /// How many it may; 0 if nobody brought it.
    uses: u32,
    /// When it ends, Unix milliseconds.
    expires_at: u64,
    /// Whether it lets nobody in any more.
    revoked: bool,
}

impl Invite {
    fn of(record: &InviteRecord) -> Invite {
        let InviteRecord { id, by, used, uses, expires_at, revoked } = record;
        let by = by.map(|by| by.to_string());
        Invite {
            id: id.to_string(),
            by,
            used: *used,
            uses: *uses,
            expires_at: *expires_at,
            revoked: *revoked,
        }
    }
}

/// Invites, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Invites {
    /// One page of them.
    invites: Vec<Invite>,
    /// What to pass as `after`, when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Lists invites that were used or revoked. Operators sign them; of one that nobody brought nothing is known.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/invites", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<GrantId>),
    responses((status = 200, description = "A page of them", body = Invites), Refusals))]
pub(crate) async fn invites(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<GrantId>>,
) -> Result<Response, Problem> {
    let Operated::Invites(rows, more) = asking.ask(&mesh, Act::Invites(paged.page()?)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.id.to_string());
    Ok(shown(&Invites { invites: rows.iter().map(Invite::of).collect(), next }))
}

/// Lets nobody in by an invite any more, also one that nobody has brought yet.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/invites/{id}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("id" = inline(Grant), Path, description = "Its name")),
    responses((status = 204, description = "Revoked"), Refusals))]
pub(crate) async fn revoke_invite(
    asking: Asking,
    Path((mesh, invite)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::RevokeInvite(grant(&invite)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The name of an invite or a token, as it may stand in a path.
fn grant(text: &str) -> Result<GrantId, Problem> {
    let legal = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    part("id", if legal { text } else { "" })
}

/// A bearer token, without its secret.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Token {
    /// Its name.
    id: String,
    /// What operators call it.
    name: String,
    /// What whoever brings it may do.
    caps: Vec<&'static str>,
    /// When it was made, Unix milliseconds.
    since: u64,
    /// When it ends, Unix milliseconds; absent is never.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    /// The secret, shown once: when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl Token {
    fn of(record: &TokenRecord) -> Token {
        Token {
            id: record.id.to_string(),
            name: record.name.clone(),
            caps: record.rights().names().collect(),
            since: record.since,
            expires_at: record.expires_at,
            token: None,
        }
    }
}

/// Bearer tokens, by name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    /// One page of them.
    tokens: Vec<Token>,
    /// What to pass as `after`, when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A token that is wanted.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NewToken {
    /// What operators call it.
    #[serde(default)]
    #[schema(value_type = Label)]
    name: String,
    /// What whoever brings it may do; absent is all that a member may.
    #[serde(default)]
    #[schema(value_type = Option<Vec<CapName>>)]
    caps: Option<Vec<KnownCap>>,
    /// For how long, in milliseconds; absent is until it is revoked.
    #[serde(default)]
    #[schema(value_type = Option<u64>, minimum = 1_000, maximum = 315_360_000_000u64)]
    expires_in_ms: Option<U53>,
}

/// Lists bearer tokens.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/tokens", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<GrantId>),
    responses((status = 200, description = "A page of them", body = Tokens), Refusals))]
pub(crate) async fn tokens(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<GrantId>>,
) -> Result<Response, Problem> {
    let Operated::Tokens(rows, more) = asking.ask(&mesh, Act::Tokens(paged.page()?)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.id.to_string());
    Ok(shown(&Tokens { tokens: rows.iter().map(Token::of).collect(), next }))
}

/// Makes a bearer token: whoever brings it in its hello is let in, with any key. Its secret is shown here and never again.
#[utoipa::path(post, path = "/v1/admin/meshes/{mesh}/tokens", request_body = NewToken, params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 201, description = "Made, and on disk", body = Token), Refusals))]
pub(crate) async fn create_token(
    asking: Asking,
    Path(mesh): Path<String>,
    Json(wanted): Json<NewToken>,
) -> Result<Response, Problem> {
    let wall = asking.app.shared.clock.now().wall;
    let expires_at = TokenRecord::end(wall, wanted.expires_in_ms.map(U53::get))?;
    let mut random = [0u8; 40];
    let drawn = getrandom::fill(&mut random);
    drawn.map_err(|_| Problem::of(ErrorCode::Unavailable, "the system gave no randomness; try again"))?;
    let (id, secret) = random.split_at(8);
    let secret = format!("{TOKEN_PREFIX}{}", text::b64url(secret));
    let record = TokenRecord {
        id: part("token", &text::hex(id))?,
        hash: bearer_hash(&secret),
        caps: wanted.caps.map(plain),
        name: wanted.name,
        since: wall,
        expires_at,
    };
    asking.ask(&mesh, Act::PutToken(record.clone())).await?;
    Ok(answer(StatusCode::CREATED, &Token { token: Some(secret), ..Token::of(&record) }))
}

/// Revokes a bearer token; the sessions that came by it end.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/tokens/{id}",
    params(("mesh" = inline(MeshPart), Path, description = "The mesh"), ("id" = inline(Grant), Path, description = "Its name")),
    responses((status = 204, description = "Revoked"), Refusals))]
pub(crate) async fn revoke_token(
    asking: Asking,
    Path((mesh, token)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    asking.ask(&mesh, Act::DropToken(grant(&token)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A ban.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Ban {
    /// Who is kept out: `member:HEX`, `session:HEX`, or `address:` with an address or a network.
    subject: String,
    /// Why.
    reason: String,
    /// Since when, Unix milliseconds.
    since: u64,
}

/// Bans, in order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Bans {
    /// One page of them.
    bans: Vec<Ban>,
    /// What to pass as `after`, when there are more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Who is to be kept out.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBan {
    /// `member:HEX`, `session:HEX`, or `address:` with an address or a network: `address:10.0.0.0/8`.
    #[schema(value_type = Subject)]
    subject: String,
    /// Why.
    #[serde(default)]
    #[schema(value_type = Label)]
    reason: String,
}

/// Whose ban is meant.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BanOf {
    /// As it was set.
    #[param(value_type = Subject, inline)]
    subject: String,
}

/// Lists who is kept out.
#[utoipa::path(get, path = "/v1/admin/meshes/{mesh}/bans", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), Paged<Banned>),
    responses((status = 200, description = "A page of them", body = Bans), Refusals))]
pub(crate) async fn bans(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(paged): Query<Paged<Banned>>,
) -> Result<Response, Problem> {
    let Operated::Bans(rows, more) = asking.ask(&mesh, Act::Bans(paged.page()?)).await? else {
        return Err(odd());
    };
    let next = rows.last().filter(|_| more).map(|row| row.subject.to_string());
    let shape =
        |BanRecord { subject, reason, since }: BanRecord| Ban { subject: subject.to_string(), reason, since };
    Ok(shown(&Bans { bans: rows.into_iter().map(shape).collect(), next }))
}

/// Keeps somebody out from this moment on: leases end, sockets close, hellos are refused.
#[utoipa::path(post, path = "/v1/admin/meshes/{mesh}/bans", request_body = NewBan, params(("mesh" = inline(MeshPart), Path, description = "The mesh")),
    responses((status = 201, description = "It holds, and is on disk", body = Ban), Refusals))]
pub(crate) async fn ban(
    asking: Asking,
    Path(mesh): Path<String>,
    Json(wanted): Json<NewBan>,
) -> Result<Response, Problem> {
    let subject: Banned = wanted.subject.parse().map_err(|error| Problem::from_field("/subject", error))?;
    asking.ask(&mesh, Act::Ban(subject, wanted.reason.clone())).await?;
    let since = asking.app.shared.clock.now().wall;
    Ok(answer(StatusCode::CREATED, &Ban { subject: subject.to_string(), reason: wanted.reason, since }))
}

/// Keeps somebody out no longer.
#[utoipa::path(delete, path = "/v1/admin/meshes/{mesh}/bans", params(("mesh" = inline(MeshPart), Path, description = "The mesh"), BanOf),
    responses((status = 204, description = "Lifted"), Refusals))]
pub(crate) async fn unban(
    asking: Asking,
    Path(mesh): Path<String>,
    Query(of): Query<BanOf>,
) -> Result<StatusCode, Problem> {
    let subject: Banned = of.subject.parse().map_err(|error| Problem::from_field("/subject", error))?;
    asking.ask(&mesh, Act::Unban(subject)).await?;
    Ok(StatusCode::NO_CONTENT)
}
