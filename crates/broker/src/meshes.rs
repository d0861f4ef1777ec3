//! The meshes of a broker: a task each, on one store.
//!
//! Which there are is read at the start, and added to while it runs. What the broker is to a connection depends on where
//! that is: in the lobby until its hello, in the room of its mesh after.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use tenure_mesh::access::admin::{Act, Operation};
use tenure_mesh::access::setting;
use tenure_mesh::access::{AccessWrite, Roll};
use tenure_mesh::effect::Note;
use tenure_mesh::relay::places;
use tenure_mesh::store::record::StoreWrite;
use tenure_mesh::{House, Input, MeshConfig};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::MemberKey;
use tenure_proto::name::{MeshName, ServiceName};
use tenure_store::{Store, Write};
use tokio_util::task::TaskTracker;

use crate::log::Log;
use crate::mesh_task::{self, Beginning, Heard, MeshHandle, MeshMsg, Ways};
use crate::reader::Readers;
use crate::relay;
use crate::shared::Shared;
use crate::writer::WriterHandle;

/// Meshes of one broker; one more is refused.
pub(crate) const MESHES_MAX: usize = 256;

/// The meshes of a broker, for everybody who looks one up.
#[derive(Debug)]
pub(crate) struct Meshes(RwLock<Inner>);

#[derive(Debug)]
struct Inner {
    /// To whoever has not said hello.
    lobby: Arc<House>,
    /// At most [`MESHES_MAX`].
    rooms: BTreeMap<MeshName, Room>,
    /// What makes another; gone when the broker stops.
    maker: Option<Maker>,
}

impl Inner {
    /// The mesh whose services are found without its name: the one that is open at first, or the oldest. One that is made later
    /// takes nobody's address away.
    fn home(&self) -> Option<&MeshName> {
        let age = |(name, room): &(&MeshName, &Room)| (name.as_str() != crate::OPEN_MESH, room.founded);
        self.rooms.iter().min_by_key(age).map(|(name, _)| name)
    }
}

#[derive(Clone, Debug)]
struct Room {
    handle: MeshHandle,
    house: Arc<House>,
    /// When it was made.
    founded: Option<u64>,
}

/// What a mesh is made with.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    pub(crate) run: u64,
    pub(crate) writer: WriterHandle,
    pub(crate) readers: Readers,
    pub(crate) tasks: TaskTracker,
}

impl Maker {
    /// Starts the task of a mesh.
    pub(crate) fn start(&self, shared: &Arc<Shared>, beginning: Beginning) {
        let name = beginning.name.clone();
        let (inputs, inbox) = mesh_task::channel();
        let heard = Heard::default();
        let (writes, reads) =
            (self.writer.lane(name.clone(), &inputs), self.readers.lane(name.clone(), &inputs));
        let handle = MeshHandle::new(inputs, heard.clone());
        let routes = handle.routes().clone();
        // Before the first stream: none is given that nobody would cut.
        self.tasks.spawn(relay::listen_for_cuts(shared.clone(), name.clone(), routes.cuts()));
        let ways = Ways { heard, routes, writes, reads };
        shared.meshes.open(name.clone(), handle.clone(), beginning.access.founded);
        // Whoever finds out more from here on tells this mesh too.
        if let Some(reason) = shared.checks.reason() {
            handle.tell(MeshMsg::Input(Input::StoreChecked { reason: Some(reason) }));
        }
        // Before the first hello: that is told these numbers. Where they do not hold, the mesh says so itself.
        let base = &shared.house.config;
        let config = setting::apply(base, &beginning.access.settings).map_or(base.clone(), Arc::new);
        shared.meshes.tune(&name, &config);
        let task = mesh_task::run(shared.clone(), beginning, inbox, ways);
        let task = self.tasks.spawn(task);
        self.tasks.spawn(crate::die_with(task));
    }
}

/// Everything that a store remembers of a mesh.
pub(crate) fn restore(
    store: &mut dyn Store,
    name: MeshName,
    run: u64,
) -> Result<Beginning, tenure_store::StoreError> {
    let (leases, messages, access) = (store.leases()?, store.restore(&name)?, store.access(&name)?);
    Ok(Beginning { name, run, leases, messages, access })
}

/// Who makes a mesh, and for whom.
#[derive(Clone, Debug)]
pub(crate) struct Founding {
    /// The key of its first operator.
    pub(crate) owner: MemberKey,
    /// Who asks, for the audit log.
    pub(crate) who: String,
    /// From which address.
    pub(crate) from: String,
}

/// Makes a mesh its owner's, and gives it with everything that the store remembers of it. `false` when it was somebody's
/// before: then nothing has changed.
fn found(
    store: &mut dyn Store,
    name: MeshName,
    run: u64,
    founding: Founding,
    wall: u64,
) -> Result<(Beginning, bool), tenure_store::StoreError> {
    let Founding { owner, who, from } = founding;
    let fresh = store.access(&name)?.founded.is_none();
    let changes = if fresh { Roll::founding(owner, wall) } else { Vec::new() };
    let outcome = if fresh { "ok" } else { ErrorCode::Conflict.as_str() };
    let audit = Operation { who, from, act: Act::Found(owner) }.audit(wall, outcome);
    let write = StoreWrite::Access(Box::new(AccessWrite { changes, audit }));
    store.apply(&[Write::Mesh { mesh: name.clone(), run, write }])?;
    Ok((restore(store, name, run)?, fresh))
}

impl Meshes {
    /// No mesh yet, in a broker that is this.
    pub(crate) fn new(house: House) -> Meshes {
        Meshes(RwLock::new(Inner { lobby: Arc::new(house), rooms: BTreeMap::new(), maker: None }))
    }

    /// From here on others can be made.
    pub(crate) fn set_maker(&self, maker: Maker) {
        self.write(|inner| inner.maker = Some(maker));
    }

    /// What the broker is to whoever has not said hello.
    pub(crate) fn lobby(&self) -> Arc<House> {
        self.read(|inner| inner.lobby.clone())
    }

    /// A mesh, and what the broker is to those who are in it.
    pub(crate) fn room(&self, name: &MeshName) -> Option<(MeshHandle, Arc<House>)> {
        self.read(|inner| inner.rooms.get(name).map(|room| (room.handle.clone(), room.house.clone())))
    }

    /// Every mesh, by name.
    pub(crate) fn handles(&self) -> Vec<MeshHandle> {
        self.read(|inner| inner.rooms.values().map(|room| room.handle.clone()).collect())
    }

    /// Their names, in order.
    pub(crate) fn names(&self) -> Vec<MeshName> {
        self.read(|inner| inner.rooms.keys().cloned().collect())
    }

    /// Where a service that a Host names may be, the likeliest first; nowhere when the broker stops.
    pub(crate) fn places(&self, name: &ServiceName) -> Vec<(MeshName, ServiceName)> {
        self.read(|inner| places(name, inner.home(), inner.rooms.keys()))
    }

    fn open(&self, name: MeshName, handle: MeshHandle, founded: Option<u64>) {
        self.write(|inner| {
            let house = inner.lobby.clone();
            inner.rooms.insert(name, Room { handle, house, founded });
        });
    }

    /// The mesh runs on these numbers: whoever says hello from here on is told so.
    pub(crate) fn tune(&self, name: &MeshName, config: &Arc<MeshConfig>) {
        self.write(|inner| {
            let mut lobby = (*inner.lobby).clone();
            lobby.rooms.insert(name.clone(), config.clone());
            inner.lobby = Arc::new(lobby);
            let home = inner.home().cloned();
            for (name, room) in &mut inner.rooms {
                let mut house = inner.lobby.room(name);
                if home.as_ref() != Some(name) {
                    house.relay = house.relay.map(|relay| relay.replacen('*', &format!("*.{name}"), 1));
                }
                room.house = Arc::new(house);
            }
        });
    }

    /// Makes a mesh whose name is not taken. It is its owner's on disk before anybody can reach it: nobody ever finds it open.
    pub(crate) async fn make(
        &self,
        shared: &Arc<Shared>,
        name: &MeshName,
        founding: Founding,
    ) -> Result<MeshHandle, WireError> {
        let (maker, count) = self.read(|inner| (inner.maker.clone(), inner.rooms.len()));
        let draining = || WireError::new(ErrorCode::Draining, "this broker is stopping");
        let ready = shared.ready.load(Ordering::Acquire);
        let maker = maker.filter(|_| ready).ok_or_else(draining)?;
        if count >= MESHES_MAX {
            let text = format!("this broker has as many meshes as it may, which is {MESHES_MAX}");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let (run, wanted, wall) = (maker.run, name.clone(), shared.clock.now().wall);
        let subject = format!("member:{}", founding.owner);
        let found = move |store: &mut dyn Store| found(store, wanted, run, founding, wall);
        let (beginning, fresh) = maker.writer.ask(found).await.ok_or_else(draining)?.map_err(|error| {
            tracing::error!(event = "mesh_not_made", mesh = %name, %error);
            WireError::new(ErrorCode::Unavailable, "the store cannot make a mesh now; try again")
        })?;
        let outcome = if fresh { "ok" } else { ErrorCode::Conflict.as_str() };
        let act = "mesh.create";
        Log::new().note(&Note::Operated { act, subject, outcome }, &shared.metrics);
        // Somebody else may have been as fast; or it was made before, and that was not heard.
        if self.room(name).is_none() {
            maker.start(shared, beginning);
        }
        if !fresh {
            return Err(Roll::taken());
        }
        self.room(name).map(|(handle, _)| handle).ok_or_else(draining)
    }

    /// Lets all of them go: their tasks end when nobody else holds them.
    pub(crate) fn stop(&self) {
        self.write(|inner| {
            inner.rooms.clear();
            inner.maker = None;
        });
    }

    fn read<T>(&self, look: impl FnOnce(&Inner) -> T) -> T {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::Memory;

    use super::*;

    fn founding(owner: u8) -> Founding {
        let (who, from) = ("operator".to_owned(), "127.0.0.1".to_owned());
        Founding { owner: MemberKey([owner; 32]), who, from }
    }

    #[test]
    fn a_mesh_begins_as_its_owners_or_not_at_all() {
        let (mut store, name): (_, MeshName) = (Memory::new(), "team".parse().unwrap());
        let run = store.begin_run(1).unwrap().number;
        let owner = |beginning: &Beginning| {
            let access = &beginning.access;
            (access.founded, access.members.iter().map(|member| member.member.0[0]).collect::<Vec<_>>())
        };
        store.fail_writes(true);
        found(&mut store, name.clone(), run, founding(1), 7).unwrap_err();
        store.fail_writes(false);
        assert!(store.meshes().unwrap().is_empty(), "what could not be written is nobody's mesh");
        let (beginning, fresh) = found(&mut store, name.clone(), run, founding(2), 8).unwrap();
        assert_eq!((owner(&beginning), fresh), ((Some(8), vec![2]), true));
        let (beginning, fresh) = found(&mut store, name.clone(), run, founding(3), 9).unwrap();
        assert_eq!((owner(&beginning), fresh), ((Some(8), vec![2]), false), "the first to make it owns it");
        assert_eq!(store.meshes().unwrap(), [name]);
    }
}
