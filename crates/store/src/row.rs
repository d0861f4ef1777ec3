//! The shapes that lie on disk, apart from the types that the program works with.
//!
//! A lease is spread over columns; its profile and caps are JSON text in two of them. The profile carries its
//! version, `{"v":1,…}`: a program reads every version up to its own, ignores fields it does not know, and
//! raises the number only when old text would be misread. Keys are 32 raw bytes.
//!
//! These structs are not the wire types on purpose: the wire and the disk change for different reasons. The
//! conversions name every field, so a field added to one side does not compile until the other decides.

use serde::{Deserialize, Serialize};
use tenure_proto::peer::{Profile, Status};
use tenure_proto::service::ServiceMetadata;
use tenure_proto::{Cap, MemberKey, SessionKey, U53};

use crate::LeaseRow;

/// The version of [`StoredProfile`] that is written.
const PROFILE_VERSION: u32 = 1;

/// The version of [`StoredMetadata`] that is written.
const METADATA_VERSION: u32 = 1;

/// A lease as the columns of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseColumns {
    pub(crate) mesh: String,
    pub(crate) session: [u8; 32],
    pub(crate) lease: String,
    pub(crate) member: [u8; 32],
    pub(crate) instance: String,
    pub(crate) profile: String,
    pub(crate) caps: Option<String>,
    pub(crate) joined_at: u64,
    pub(crate) touched_run: u64,
}

/// Why columns are not a lease: the column, and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("its {column} does not read: {why}")]
pub(crate) struct BadColumn {
    column: &'static str,
    why: String,
}

impl BadColumn {
    fn of<E: std::fmt::Display>(column: &'static str) -> impl FnOnce(E) -> BadColumn {
        move |why| BadColumn { column, why: why.to_string() }
    }
}

impl LeaseColumns {
    /// The columns that hold `row`.
    pub(crate) fn encode(row: &LeaseRow) -> Result<LeaseColumns, BadColumn> {
        let LeaseRow { mesh, session, lease, member, instance, profile, caps, joined_at, touched_run } = row;
        let caps = caps.as_ref().map(serde_json::to_string).transpose().map_err(BadColumn::of("caps"))?;
        Ok(LeaseColumns {
            mesh: mesh.as_str().to_owned(),
            session: session.0,
            lease: lease.as_str().to_owned(),
            member: member.0,
            instance: instance.as_str().to_owned(),
            profile: serde_json::to_string(&StoredProfile::from(profile))
                .map_err(BadColumn::of("profile"))?,
            caps,
            joined_at: *joined_at,
            touched_run: *touched_run,
        })
    }

    /// The lease that these columns hold.
    pub(crate) fn decode(&self) -> Result<LeaseRow, BadColumn> {
        let caps: Option<Vec<Cap>> =
            self.caps.as_deref().map(serde_json::from_str).transpose().map_err(BadColumn::of("caps"))?;
        Ok(LeaseRow {
            mesh: self.mesh.parse().map_err(BadColumn::of("mesh"))?,
            session: SessionKey(self.session),
            lease: self.lease.parse().map_err(BadColumn::of("lease"))?,
            member: MemberKey(self.member),
            instance: self.instance.parse().map_err(BadColumn::of("instance"))?,
            profile: read_profile(&self.profile)?,
            caps,
            joined_at: self.joined_at,
            touched_run: self.touched_run,
        })
    }
}

/// Version 1 of a stored profile.
#[derive(Serialize, Deserialize)]
struct StoredProfile {
    v: u32,
    name: String,
    status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_input_seconds: Option<U53>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
}

impl From<&Profile> for StoredProfile {
    fn from(profile: &Profile) -> StoredProfile {
        let Profile { name, status, summary, host, cwd, role, last_input_seconds, tags } = profile.clone();
        StoredProfile { v: PROFILE_VERSION, name, status, summary, host, cwd, role, last_input_seconds, tags }
    }
}

impl From<StoredProfile> for Profile {
    fn from(stored: StoredProfile) -> Profile {
        let StoredProfile { v: _, name, status, summary, host, cwd, role, last_input_seconds, tags } = stored;
        Profile { name, status, summary, host, cwd, role, last_input_seconds, tags }
    }
}

fn read_profile(text: &str) -> Result<Profile, BadColumn> {
    read_versioned::<StoredProfile>(text, "profile", PROFILE_VERSION).map(Into::into)
}

/// The version first, so that the text of another one is told from damage.
fn read_versioned<T: serde::de::DeserializeOwned>(
    text: &str,
    column: &'static str,
    version: u32,
) -> Result<T, BadColumn> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let Version { v } = serde_json::from_str(text).map_err(BadColumn::of(column))?;
    if v != version {
        return Err(BadColumn { column, why: format!("unknown version {v}") });
    }
    serde_json::from_str(text).map_err(BadColumn::of(column))
}

/// Version 1 of what is stored of a service's metadata.
#[derive(Serialize, Deserialize)]
struct StoredMetadata {
    v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hide: bool,
}

/// The text that holds `metadata`.
pub(crate) fn metadata_text(metadata: &ServiceMetadata) -> Result<String, BadColumn> {
    let ServiceMetadata { description, tags, owner, hide } = metadata.clone();
    let stored = StoredMetadata { v: METADATA_VERSION, description, tags, owner, hide };
    serde_json::to_string(&stored).map_err(BadColumn::of("metadata"))
}

/// The metadata that `text` holds.
pub(crate) fn read_metadata(text: &str) -> Result<ServiceMetadata, BadColumn> {
    let stored: StoredMetadata = read_versioned(text, "metadata", METADATA_VERSION)?;
    let StoredMetadata { v: _, description, tags, owner, hide } = stored;
    Ok(ServiceMetadata { description, tags, owner, hide })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::lease;

    #[test]
    fn a_minimal_profile_reads_and_unknown_fields_are_ignored() {
        let text = r#"{"v":1,"name":"a","status":"dnd","mood":{"of":["a","later","program"]}}"#;
        let profile = read_profile(text).unwrap();
        assert_eq!(profile, Profile { status: Status::Dnd, ..Profile::named("a") });
    }

    #[test]
    fn the_stored_profile_is_what_the_docs_say() {
        let mut row = lease("m", 1);
        row.profile = Profile { last_input_seconds: Some(U53::from(3)), ..Profile::named("a") };
        row.caps = Some(vec!["read".parse().unwrap()]);
        let columns = LeaseColumns::encode(&row).unwrap();
        assert_eq!(columns.profile, r#"{"v":1,"name":"a","status":"idle","last_input_seconds":3}"#);
        assert_eq!(columns.caps.as_deref(), Some(r#"["read"]"#));
        assert_eq!(columns.decode().unwrap(), row);
    }

    #[test]
    fn no_caps_and_all_caps_are_not_the_same() {
        for caps in [None, Some(vec![])] {
            let mut row = lease("m", 1);
            row.caps = caps;
            assert_eq!(LeaseColumns::encode(&row).unwrap().decode().unwrap(), row);
        }
    }

    #[test]
    fn what_does_not_read_names_its_column() {
        let good = LeaseColumns::encode(&lease("m", 1)).unwrap();
        let bad = [
            (LeaseColumns { mesh: "Not A Name".into(), ..good.clone() }, "mesh"),
            (LeaseColumns { lease: String::new(), ..good.clone() }, "lease"),
            (LeaseColumns { instance: "a b".into(), ..good.clone() }, "instance"),
            (LeaseColumns { caps: Some("[1]".into()), ..good.clone() }, "caps"),
            (LeaseColumns { profile: "{".into(), ..good.clone() }, "profile"),
            (LeaseColumns { profile: r#"{"v":1}"#.into(), ..good.clone() }, "profile"),
            (LeaseColumns { profile: r#"{"v":2,"name":"a","status":"idle"}"#.into(), ..good }, "version 2"),
        ];
        for (columns, word) in bad {
            let error = columns.decode().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
