//! The meshes of a broker: a task each, on one store.
//!
//! Which there are is read at the start, and added to while it runs. What the broker is to a connection depends on where
//! that is: in the lobby until its hello, in the room of its mesh after.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use tenure_core::relay::places;
use tenure_core::{House, MeshConfig, setting};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::name::{MeshName, ServiceName};
use tenure_store::Store;
use tokio_util::task::TaskTracker;

use crate::mesh_task::{self, Beginning, Heard, MeshHandle, Ways};
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
    /// The mesh whose services are found without its name: the one that is open at first, or the first by name.
    fn home(&self) -> Option<&MeshName> {
        let open = self.rooms.keys().find(|name| name.as_str() == crate::OPEN_MESH);
        open.or_else(|| self.rooms.keys().next())
    }
}

#[derive(Clone, Debug)]
struct Room {
    handle: MeshHandle,
    house: Arc<House>,
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
        shared.meshes.open(name.clone(), handle);
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

    fn open(&self, name: MeshName, handle: MeshHandle) {
        self.write(|inner| {
            let house = inner.lobby.clone();
            inner.rooms.insert(name, Room { handle, house });
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

    /// Makes a mesh whose name is not taken, with whatever the store remembers of it.
    pub(crate) async fn make(&self, shared: &Arc<Shared>, name: &MeshName) -> Result<MeshHandle, WireError> {
        let (maker, count) = self.read(|inner| (inner.maker.clone(), inner.rooms.len()));
        let draining = || WireError::new(ErrorCode::Draining, "this broker is stopping");
        let ready = shared.ready.load(Ordering::Acquire);
        let maker = maker.filter(|_| ready).ok_or_else(draining)?;
        if count >= MESHES_MAX {
            let text = format!("this broker has as many meshes as it may, which is {MESHES_MAX}");
            return Err(WireError::new(ErrorCode::Busy, text));
        }
        let (run, wanted) = (maker.run, name.clone());
        let restored =
            maker.writer.ask(move |store| restore(store, wanted, run)).await.ok_or_else(draining)?;
        let beginning = restored.map_err(|error| {
            tracing::error!(event = "mesh_restore_failed", mesh = %name, %error);
            WireError::new(ErrorCode::Unavailable, "the store cannot read now; try again")
        })?;
        // Somebody else may have been as fast.
        if self.room(name).is_none() {
            maker.start(shared, beginning);
        }
        self.room(name).map(|(handle, _)| handle).ok_or_else(draining)
    }

    /// Lets a mesh go that came to nothing.
    pub(crate) fn forget(&self, name: &MeshName) {
        self.write(|inner| {
            inner.rooms.remove(name);
            let mut lobby = (*inner.lobby).clone();
            lobby.rooms.remove(name);
            inner.lobby = Arc::new(lobby);
        });
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
