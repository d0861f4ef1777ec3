//! Backpressure by memory: while too much is held, nothing more is brought in.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A sum of bytes with a bound. Whoever would bring in more waits while the sum is past it; what is already here may pass
/// the bound, so that nobody who gives bytes back ever waits.
#[derive(Debug)]
pub struct Gate {
    bound: usize,
    bytes: AtomicUsize,
    closed: AtomicBool,
    /// Those who wait: at most one waker of each.
    wakers: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Open while at most so many bytes are held.
    pub fn new(bound: usize) -> Gate {
        Gate { bound, bytes: AtomicUsize::new(0), closed: AtomicBool::new(false), wakers: Mutex::default() }
    }

    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Whether more must wait.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// So many bytes more are held.
    pub fn add(&self, bytes: usize) {
        let before = self.bytes.fetch_add(bytes, Ordering::SeqCst);
        if before.saturating_add(bytes) > self.bound {
            let wakers = self.wakers();
            // Closed before the sum is looked at again: whoever gives bytes back meanwhile sees one or the other.
            self.closed.store(true, Ordering::SeqCst);
            self.open_if_fits(wakers);
        }
    }

    /// So many bytes are given back.
    pub fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.is_closed() {
            self.open_if_fits(self.wakers());
        }
    }

    fn open_if_fits(&self, mut wakers: MutexGuard<'_, Vec<Waker>>) {
        if self.bytes() <= self.bound {
            self.closed.store(false, Ordering::SeqCst);
            let woken = std::mem::take(&mut *wakers);
            // Whoever is woken may hold a lock of its own while it asks.
            drop(wakers);
            woken.into_iter().for_each(Waker::wake);
        }
    }

    /// Ready when it is open; else the task is woken when it opens.
    pub fn poll_open(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_closed() {
            return Poll::Ready(());
        }
        let mut wakers = self.wakers();
        if !self.is_closed() {
            return Poll::Ready(());
        }
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Default for Gate {
    /// Always open.
    fn default() -> Gate {
        Gate::new(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn who_brings_more_waits_until_it_fits_again() {
        let (gate, woken) = (Gate::new(100), Arc::new(Woken::default()));
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        gate.add(100);
        assert!(gate.poll_open(&mut cx).is_ready());
        gate.add(1);
        assert!(gate.poll_open(&mut cx).is_pending() && gate.poll_open(&mut cx).is_pending());
        gate.add(50);
        gate.sub(50);
        assert!(gate.is_closed());
        assert_eq!((gate.bytes(), woken.0.load(Ordering::SeqCst)), (101, 0));
        gate.sub(1);
        assert!(gate.poll_open(&mut cx).is_ready());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "once, however often it asked");
    }

    #[test]
    fn a_race_leaves_a_gate_neither_closed_nor_open_by_mistake() {
        let gate = Arc::new(Gate::new(10));
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let gate = gate.clone();
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        gate.add(7);
                        gate.sub(7);
                    }
                    gate.add(n);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!((gate.bytes(), gate.is_closed()), (6, false));
        gate.add(5);
        assert!(gate.is_closed());
    }
}
