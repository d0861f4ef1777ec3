//! A process with everything that it starts: one group, which goes when its owner lets it.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::Child;

/// The process group that a child leads. It is killed when this is dropped: whatever the child has started goes with it.
/// Drop it before the child, whose number is its own until it is waited for.
#[derive(Debug)]
pub struct Group(Option<Pid>);

impl Group {
    /// The group of a child that was started with one of its own.
    pub fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)))
    }

    /// Sends all of it a signal.
    pub fn tell(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // It may be gone, which is as well.
            let _ = kill_process_group(leader, signal);
        }
    }

    /// Waits until its leader has ended, and leaves its number taken. Somebody must see to that end: a thread waits for it.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let leader = self.0;
        async move {
            let Some(leader) = leader else { return };
            let wait = move || waitid(WaitId::Pid(leader), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            let _ = tokio::task::spawn_blocking(wait).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tell(Signal::KILL);
    }
}
