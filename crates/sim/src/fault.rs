//! What can go wrong, each with a name and a rate.

use serde::{Deserialize, Serialize};

/// A kind of fault. A planned one finds its victim when its time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Fault {
    /// Both ends of a connection learn that it is gone.
    Reset,
    /// One end learns it, the other thinks that it lives.
    HalfOpen,
    /// Nothing comes through in one direction for a while; then it all does, or the connection is gone.
    OneWayLoss,
    /// Everything on a host's network takes long for a while.
    LatencySpike,
    /// An end does not read for a while.
    SlowReader,
    /// A frame is cut at some byte, and the connection with it.
    Truncation,
    /// A hello is held up until its client has dialled again, and then arrives.
    ConnectRace,
    /// A host sleeps: its processes stand still while time passes.
    Sleep,
    /// A host's wall clock jumps forward.
    ClockForward,
    /// A host's wall clock jumps back.
    ClockBack,
    /// A process is killed, and started again.
    Kill,
    /// The broker is killed: what was not synced is gone.
    Crash,
    /// The broker is killed while it writes: parts of the last write are on disk.
    TornWrite,
    /// The broker is killed while it starts.
    CrashInRecovery,
    /// The broker stands still for a while.
    BrokerFreeze,
    /// The broker's own wall clock jumps.
    BrokerClock,
    /// The disk is full for a while.
    DiskFull,
    /// A sync fails.
    SyncError,
    /// Syncs take long for a while.
    SlowSync,
    /// The disk cannot be read for a while.
    Blind,
    /// The broker is asked to stop, and is started again.
    Drain,
    /// A session is banned for a while.
    Ban,
    /// An operator changes the numbers.
    Settings,
    /// Another process uses a session's key.
    Twin,
    /// Somebody without the key uses a session's token.
    StolenToken,
    /// A client lies: others' tags, forged tokens, a huge prefetch, sends without reading, garbage.
    Liar,
    /// A daemon is killed with all its sessions: what was not synced is gone.
    DaemonKill,
    /// The disk of a daemon is full for a while.
    DaemonDiskFull,
    /// Syncs of a daemon take long for a while.
    DaemonSlowSync,
    /// A sync of a daemon fails.
    DaemonSyncError,
    /// A backup of the broker's store, made a while ago, is put in its place.
    Restore,
    /// The broker's store is wiped.
    Wipe,
    /// The broker's store loses the end of its log, which was synced.
    LogCut,
    /// An operator ends a session's lease.
    Kick,
    /// A member is none any more for a while.
    Dismissal,
    /// A guest is made a member, or may do less or more than before, or is no member any more.
    Standing,
    /// A guest comes, with an invite or without.
    Guest,
    /// An invite is revoked.
    Revocation,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 38] = [
        Fault::Reset,
        Fault::HalfOpen,
        Fault::OneWayLoss,
        Fault::LatencySpike,
        Fault::SlowReader,
        Fault::Truncation,
        Fault::ConnectRace,
        Fault::Sleep,
        Fault::ClockForward,
        Fault::ClockBack,
        Fault::Kill,
        Fault::Crash,
        Fault::TornWrite,
        Fault::CrashInRecovery,
        Fault::BrokerFreeze,
        Fault::BrokerClock,
        Fault::DiskFull,
        Fault::SyncError,
        Fault::SlowSync,
        Fault::Blind,
        Fault::Drain,
        Fault::Ban,
        Fault::Settings,
        Fault::Twin,
        Fault::StolenToken,
        Fault::Liar,
        Fault::DaemonKill,
        Fault::DaemonDiskFull,
        Fault::DaemonSlowSync,
        Fault::DaemonSyncError,
        Fault::Restore,
        Fault::Wipe,
        Fault::LogCut,
        Fault::Kick,
        Fault::Dismissal,
        Fault::Standing,
        Fault::Guest,
        Fault::Revocation,
    ];

    /// Those that take the broker's store back.
    pub const REWINDS: [Fault; 3] = [Fault::Restore, Fault::Wipe, Fault::LogCut];
    /// Those of an operator, and of whom it invites; only a mesh that not everybody may join has them.
    pub const OPERATORS: [Fault; 5] =
        [Fault::Kick, Fault::Dismissal, Fault::Standing, Fault::Guest, Fault::Revocation];

    /// Whether its victims are daemons: a world without them has none of it.
    pub fn is_daemons(self) -> bool {
        matches!(
            self,
            Fault::DaemonKill | Fault::DaemonDiskFull | Fault::DaemonSlowSync | Fault::DaemonSyncError
        )
    }

    /// What it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Reset => "connection reset",
            Fault::HalfOpen => "half-open connection",
            Fault::OneWayLoss => "one-way loss",
            Fault::LatencySpike => "latency spike",
            Fault::SlowReader => "slow reader",
            Fault::Truncation => "truncated frame",
            Fault::ConnectRace => "connect race",
            Fault::Sleep => "laptop sleep",
            Fault::ClockForward => "clock jumps forward",
            Fault::ClockBack => "clock jumps back",
            Fault::Kill => "process killed",
            Fault::Crash => "broker crash",
            Fault::TornWrite => "torn last write",
            Fault::CrashInRecovery => "crash during recovery",
            Fault::BrokerFreeze => "broker frozen",
            Fault::BrokerClock => "broker's clock jumps",
            Fault::DiskFull => "disk full",
            Fault::SyncError => "failed sync",
            Fault::SlowSync => "slow sync",
            Fault::Blind => "unreadable disk",
            Fault::Drain => "drain and restart",
            Fault::Ban => "ban",
            Fault::Settings => "settings changed",
            Fault::Twin => "two holders of a key",
            Fault::StolenToken => "stolen token",
            Fault::Liar => "lying client",
            Fault::DaemonKill => "daemon killed",
            Fault::DaemonDiskFull => "daemon's disk full",
            Fault::DaemonSlowSync => "daemon's slow sync",
            Fault::DaemonSyncError => "daemon's failed sync",
            Fault::Restore => "backup restored",
            Fault::Wipe => "store wiped",
            Fault::LogCut => "log cut",
            Fault::Kick => "kick",
            Fault::Dismissal => "member dismissed",
            Fault::Standing => "standing changed",
            Fault::Guest => "guest",
            Fault::Revocation => "invite revoked",
        }
    }

    /// How many seconds pass between two of them on average, in a world that has them all.
    pub fn every_s(self) -> u64 {
        match self {
            Fault::Reset => 25,
            Fault::HalfOpen => 60,
            Fault::OneWayLoss => 60,
            Fault::LatencySpike => 60,
            Fault::SlowReader => 90,
            Fault::Truncation => 90,
            Fault::ConnectRace => 90,
            Fault::Sleep => 120,
            Fault::ClockForward => 300,
            Fault::ClockBack => 300,
            Fault::Kill => 120,
            Fault::Crash => 120,
            Fault::TornWrite => 180,
            Fault::CrashInRecovery => 300,
            Fault::BrokerFreeze => 180,
            Fault::BrokerClock => 900,
            Fault::DiskFull => 240,
            Fault::SyncError => 300,
            Fault::SlowSync => 120,
            Fault::Blind => 240,
            Fault::Drain => 240,
            Fault::Ban => 300,
            Fault::Settings => 300,
            Fault::Twin => 240,
            Fault::StolenToken => 240,
            Fault::Liar => 240,
            Fault::DaemonKill => 60,
            Fault::DaemonDiskFull => 120,
            Fault::DaemonSlowSync => 120,
            Fault::DaemonSyncError => 240,
            Fault::Restore => 120,
            Fault::Wipe => 240,
            Fault::LogCut => 120,
            Fault::Kick => 120,
            Fault::Dismissal => 90,
            Fault::Standing => 20,
            Fault::Guest => 8,
            Fault::Revocation => 60,
        }
    }
}
