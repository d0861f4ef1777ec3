//! The local sessions: the daemon's own in each mesh, and those that shells and agents asked for, each with its own
//! key and a token that says who is calling.
//!
//! What is known of a session is a file of its own, so that it is the same after a restart: its name, its token, the
//! topics it follows. Its key is where the command keeps keys.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ed25519_dalek::SigningKey;
use serde::{Deserialize, Serialize};
use tenure_client::{InboxChoice, Options, OptionsError, Session};
use tenure_kit::secret;
use tenure_outbox::age::PERMANENT_HOURS_CAP;
use tenure_outbox::arrival::Recipient;
use tenure_outbox::window::DEDUPE;
use tenure_proto::canonical;
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::name::{MeshName, TopicName};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::{Config, MeshChoice};
use crate::home::{Home, HomeError, file, random_hex, random_key, write_private};
use crate::link::{Standing, Tell, follow};
use crate::queue::Queue;
use crate::rewinds::Rewinds;
use crate::visits::Visit;

/// Sessions of one daemon.
pub(crate) const SESSIONS: usize = 256;
/// Topics that one session follows.
pub(crate) const TOPICS: usize = 256;
/// How long one request to the broker may take, breaks included.
const REQUEST_MS: u64 = 20_000;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// A file cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// What the broker is to be told does not hold together.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// This daemon is not in that mesh.
    #[error("this daemon is not in the mesh {0}")]
    NoSuchMesh(String),
    /// There are as many as there may be.
    #[error("there are {SESSIONS} sessions already")]
    TooMany,
}

/// What a file says of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    mesh: MeshName,
    session: SessionKey,
    token: String,
    /// Each topic with the group that keeps this session's place in it.
    #[serde(default)]
    topics: BTreeMap<TopicName, String>,
    /// Its owner let it go: it stays until its last row has left.
    #[serde(default)]
    closing: bool,
    /// It lasts as long as somebody listens (`visits`).
    #[serde(default)]
    visit: bool,
    /// Hours that its messages may wait, as its broker last said: of the daemon's own, and if the operator said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_age_hours: Option<u64>,
}

/// A session of this machine.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) mesh: MeshName,
    pub(crate) name: String,
    pub(crate) key: SessionKey,
    pub(crate) member: MemberKey,
    /// Whether it is the daemon's own, whose key is the member's.
    pub(crate) own: bool,
    pub(crate) client: Session,
    pub(crate) standing: watch::Receiver<Standing>,
    /// Hours that its messages may wait for the broker: as of the broker's last hello, whoever heard it; before the first, what
    /// the operator wants.
    pub(crate) max_age_hours: watch::Receiver<Option<u64>>,
    /// The logs of which the broker had another history.
    pub(crate) rewound: watch::Receiver<Rewinds>,
    /// How its drain hears of new rows.
    pub(crate) queue: Queue,
    /// Whether something works for it.
    pub(crate) at_work: AtomicBool,
    /// Ends what works for it.
    pub(crate) leaving: CancellationToken,
    record: Mutex<Record>,
    /// Changes when topics do.
    pub(crate) topics_changed: watch::Sender<u64>,
    /// The topics that the broker knows it to follow: what is posted from then on comes.
    pub(crate) in_force: watch::Sender<BTreeSet<TopicName>>,
    /// Whether it lasts only as long as somebody listens, and who does.
    pub(crate) visit: Option<Visit>,
    path: PathBuf,
}

impl Local {
    /// Whose letters it may read: its own; the daemon's session also its member's.
    pub(crate) fn recipients(&self) -> Vec<Recipient> {
        let own = Recipient::Session(self.key);
        if self.own { vec![own, Recipient::Member(self.member)] } else { vec![own] }
    }

    /// What says that a caller is this session.
    pub(crate) fn token(&self) -> String {
        self.record().token.clone()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.record().closing
    }

    /// The topics that it follows, each with the group that keeps its place.
    pub(crate) fn topics(&self) -> BTreeMap<TopicName, String> {
        self.record().topics.clone()
    }

    /// Follows a topic from now on, also when the daemon was away; `false` if it does already.
    pub(crate) fn follow(&self, topic: TopicName) -> Result<bool, SessionError> {
        let group = format!("daemon.{}.{}", &self.key.to_string()[..16], &random_hex()?[..8]);
        self.change(|record| {
            if record.topics.contains_key(&topic) {
                return Ok(false);
            }
            if record.topics.len() >= TOPICS {
                return Err(SessionError::TooMany);
            }
            record.topics.insert(topic, group);
            Ok(true)
        })
    }

    /// Follows a topic no more; `false` if it did not.
    pub(crate) fn unfollow(&self, topic: &TopicName) -> Result<bool, SessionError> {
        self.change(|record| Ok(record.topics.remove(topic).is_some()))
    }

    fn close(&self) -> Result<bool, SessionError> {
        self.change(|record| {
            record.topics.clear();
            Ok(!std::mem::replace(&mut record.closing, true))
        })
    }

    fn reopen(&self) -> Result<bool, SessionError> {
        self.change(|record| Ok(std::mem::replace(&mut record.closing, false)))
    }

    /// Writes down how long messages may wait for the broker, to be shown while it is away. Nothing is decided by it: that it
    /// cannot be written is no harm.
    pub(crate) fn remember_age(&self, hours: u64) {
        let mut held = self.record();
        if self.own && held.max_age_hours != Some(hours) {
            let record = Record { max_age_hours: Some(hours), ..held.clone() };
            if let Err(error) = self.keep(&mut held, record) {
                tracing::debug!(event = "age_not_kept", %error);
            }
        }
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Record) -> Result<bool, SessionError>,
    ) -> Result<bool, SessionError> {
        let mut held = self.record();
        let mut record = held.clone();
        let changed = change(&mut record)?;
        if changed {
            self.keep(&mut held, record)?;
            drop(held);
            self.topics_changed.send_modify(|version| *version += 1);
        }
        Ok(changed)
    }

    /// Writes the record down, and holds it once it is written.
    fn keep(&self, held: &mut Record, record: Record) -> Result<(), SessionError> {
        write_private(&self.path, &serde_json::to_string(&record).unwrap_or_default())?;
        *held = record;
        Ok(())
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All sessions of a daemon.
#[derive(Debug)]
pub(crate) struct Sessions {
    dir: PathBuf,
    meshes: Vec<MeshChoice>,
    max_age_hours: Option<u64>,
    member_key: SigningKey,
    all: Mutex<BTreeMap<(MeshName, SessionKey), Arc<Local>>>,
    tasks: TaskTracker,
}

impl Sessions {
    /// Starts the daemon's own session in each mesh, and every other that there was.
    pub(crate) fn start(config: &Config, home: &Home, tasks: &TaskTracker) -> Result<Sessions, SessionError> {
        let sessions = Sessions {
            dir: home.path().join("sessions"),
            meshes: config.meshes.clone(),
            max_age_hours: config.max_age_hours,
            member_key: home.member_key()?,
            all: Mutex::default(),
            tasks: tasks.clone(),
        };
        for mesh in &config.meshes {
            let key = sessions.member_key.clone();
            sessions.open(&mesh.name, &config.name, key, None, false)?;
        }
        for record in sessions.records() {
            if record.visit {
                continue;
            }
            if !sessions.meshes.iter().any(|mesh| mesh.name == record.mesh) {
                let (session, mesh) = (record.session, record.mesh);
                tracing::warn!(event = "session_unused", %session, %mesh, "this daemon is not in its mesh");
                continue;
            }
            let key = home.session_key(record.mesh.as_str(), &record.name)?;
            if canonical::session_key(&key) == record.session {
                let (mesh, name) = (record.mesh.clone(), record.name.clone());
                sessions.open(&mesh, &name, key, Some(record), false)?;
            } else {
                let session = record.session;
                tracing::error!(event = "session_unused", %session, "its key is not the one of that name");
            }
        }
        Ok(sessions)
    }

    /// The session called `name`, made if there is none; the same name is the same session.
    pub(crate) fn make(&self, home: &Home, mesh: &MeshName, name: &str) -> Result<Arc<Local>, SessionError> {
        let key = home.session_key(mesh.as_str(), name)?;
        let local = self.open(mesh, name, key, None, false)?;
        // Let go and not gone yet: it is wanted again.
        local.reopen()?;
        Ok(local)
    }

    /// The session that is over, taken up again; let go, if it was.
    pub(crate) fn revive(&self, home: &Home, over: &Local) -> Result<Arc<Local>, SessionError> {
        let key = home.session_key(over.mesh.as_str(), &over.name)?;
        self.open(&over.mesh, &over.name, key, None, false)
    }

    /// A session called `name` that nobody else has and that lasts as long as somebody listens.
    pub(crate) fn visit(&self, mesh: &MeshName, name: &str) -> Result<Arc<Local>, SessionError> {
        self.open(mesh, name, random_key()?, None, true)
    }

    /// Takes what the visits of a process that was killed left behind: the sessions that they were.
    pub(crate) fn take_left(&self) -> Vec<SessionKey> {
        let left = self.records().into_iter().filter(|record| record.visit);
        let gone = left.filter(|record| self.get(&record.mesh, &record.session).is_none());
        let take = |record: Record| {
            let _ = std::fs::remove_file(self.path(&record.mesh, &record.session));
            record.session
        };
        gone.map(take).collect()
    }

    fn path(&self, mesh: &MeshName, session: &SessionKey) -> PathBuf {
        self.dir.join(format!("{mesh}.{session}.json"))
    }

    fn open(
        &self,
        mesh: &MeshName,
        name: &str,
        key: SigningKey,
        record: Option<Record>,
        visit: bool,
    ) -> Result<Arc<Local>, SessionError> {
        let choice = self.meshes.iter().find(|choice| choice.name == *mesh);
        let choice = choice.ok_or_else(|| SessionError::NoSuchMesh(mesh.to_string()))?;
        let session = canonical::session_key(&key);
        let mut all = self.lock();
        let over = match all.get(&(mesh.clone(), session)) {
            Some(local) if !local.standing.borrow().is_over() => return Ok(Arc::clone(local)),
            None if all.len() >= SESSIONS => return Err(SessionError::TooMany),
            over => over.cloned(),
        };
        let own = key == self.member_key;
        let path = self.path(mesh, &session);
        let record = match record.map_or_else(|| read(&path), |record| Ok(Some(record)))? {
            Some(record) => Record { closing: record.closing && !own, ..record },
            None => {
                let (name, token) = (name.to_owned(), random_hex()?);
                let fresh = Record {
                    name,
                    mesh: mesh.clone(),
                    session,
                    token,
                    topics: BTreeMap::new(),
                    closing: false,
                    visit,
                    max_age_hours: None,
                };
                write_private(&path, &serde_json::to_string(&fresh).unwrap_or_default())?;
                fresh
            }
        };
        let mut options = Options::new(&choice.broker, self.member_key.clone(), name)?
            .mesh(mesh.as_str())?
            .client("tenure-daemon", env!("CARGO_PKG_VERSION"))
            .require(&[DEDUPE])
            .timeout_ms(REQUEST_MS)
            .inbox(if own { InboxChoice::Both } else { InboxChoice::Session });
        if !own {
            options = options.session_key(key);
        }
        if let Some(pem) = &choice.authority {
            options = options.authority(pem)?;
        }
        let (client, events) = Session::start(options)?;
        let (sender, standing) = watch::channel(Standing::Away(None));
        let leaving = CancellationToken::new();
        let own_key = canonical::session_key(&self.member_key);
        let known = match all.get(&(mesh.clone(), own_key)) {
            Some(own) => *own.max_age_hours.borrow(),
            None => record.max_age_hours,
        };
        // What the operator wants holds, unless the broker's memory is too short for it: then nothing is sent at all.
        let wanted = self.max_age_hours.map(|hours| hours.min(PERMANENT_HOURS_CAP));
        let (tell_age, max_age_hours) = watch::channel(wanted.or(known));
        let (tell_rewound, rewound) = watch::channel(Rewinds::default());
        let tell = Tell { standing: sender, max_age_hours: tell_age, rewound: tell_rewound };
        self.tasks.spawn(follow(client.clone(), events, self.max_age_hours, tell, leaving.clone()));
        let local = Arc::new(Local {
            mesh: mesh.clone(),
            name: record.name.clone(),
            key: session,
            member: client.member(),
            own,
            client,
            standing,
            max_age_hours,
            rewound,
            queue: Queue::default(),
            at_work: AtomicBool::new(false),
            leaving,
            record: Mutex::new(record),
            topics_changed: watch::channel(0).0,
            in_force: watch::Sender::default(),
            visit: visit.then(Visit::default),
            path,
        });
        if let Some(over) = over {
            over.leaving.cancel();
            // What it was told and nobody has looked at.
            over.queue.close().into_iter().for_each(|lane| _ = local.queue.push(lane));
        }
        all.insert((mesh.clone(), session), Arc::clone(&local));
        Ok(local)
    }

    /// What the files say, of sessions that are not the daemon's own.
    fn records(&self) -> Vec<Record> {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return Vec::new() };
        let own = canonical::session_key(&self.member_key);
        let json = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "json"));
        let sound = |path: PathBuf| match read(&path) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(event = "session_unused", %error);
                None
            }
        };
        json.filter_map(sound).filter(|record| record.session != own).collect()
    }

    /// The mesh that is meant when none is named.
    pub(crate) fn default_mesh(&self) -> Option<&MeshName> {
        self.meshes.first().map(|mesh| &mesh.name)
    }

    /// The daemon's own session in a mesh.
    pub(crate) fn own(&self, mesh: &MeshName) -> Option<Arc<Local>> {
        self.get(mesh, &canonical::session_key(&self.member_key))
    }

    /// A session by its key.
    pub(crate) fn get(&self, mesh: &MeshName, key: &SessionKey) -> Option<Arc<Local>> {
        self.lock().get(&(mesh.clone(), *key)).cloned()
    }

    /// The session whose token this is. Compared in full for each, so that time tells nothing.
    pub(crate) fn by_token(&self, token: &str) -> Option<Arc<Local>> {
        let all = self.lock();
        let mut found = None;
        for local in all.values().filter(|local| !local.is_closing()) {
            if secret::same(&local.token(), token) {
                found = Some(Arc::clone(local));
            }
        }
        found
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Local>> {
        self.lock().values().cloned().collect()
    }

    /// Lets a session go: nobody speaks for it any more, and it leaves when its last row has. `false` if it is not
    /// there, or is the daemon's own.
    pub(crate) fn close(&self, mesh: &MeshName, key: &SessionKey) -> Result<bool, SessionError> {
        match self.get(mesh, key) {
            Some(local) if !local.own => local.close(),
            _ => Ok(false),
        }
    }

    /// Says goodbye for a session that was let go and has nothing left to send, and forgets it; `false` if it is wanted
    /// again.
    pub(crate) async fn bury(&self, local: &Local) -> bool {
        {
            let mut all = self.lock();
            if !local.is_closing() {
                return false;
            }
            all.remove(&(local.mesh.clone(), local.key));
            let _ = std::fs::remove_file(&local.path);
            // A row that came with the last look at the disk: the daemon's own session sends it.
            let own = all.get(&(local.mesh.clone(), canonical::session_key(&self.member_key)));
            let left = local.queue.close();
            own.into_iter().for_each(|own| left.iter().for_each(|lane| _ = own.queue.push(*lane)));
        }
        local.leaving.cancel();
        local.client.bye().await;
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(MeshName, SessionKey), Arc<Local>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a file says; nothing, if there is none. A damaged one is put aside, for a person to look at: the topics that were
/// followed are in it.
fn read(path: &Path) -> Result<Option<Record>, HomeError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file("read", path)(error)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(record) => Ok(Some(record)),
        Err(error) => {
            let aside = path.with_extension(format!("json.corrupt-{}", Clock::start().wall()));
            std::fs::rename(path, &aside).map_err(file("rename", path))?;
            tracing::error!(event = "session_damaged", %error, aside = %aside.display(), "it is not known any more");
            Ok(None)
        }
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
