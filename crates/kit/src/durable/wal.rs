//! SQLite's write-ahead log, read frame by frame: which part of it is good, and whether what follows is a torn end or
//! damage.
//!
//! The format is documented ("WAL-mode File Format"): a header of 32 bytes, then frames of 24 bytes and a page. Each
//! frame stores the checksum of the whole log up to itself, so a frame is checked from the checksum that the frame
//! before it stores. That also holds behind a bad frame, and so what follows can be judged.
//!
//! Not every good frame behind a bad one is damage: after a loss of power the disk may hold any of the sectors that were
//! not synced. What is not synced is two transactions at most ([`UNSYNCED_TRANSACTIONS`]). A bad frame that is followed
//! by the ends of two transactions and a frame of a third was synced before that third was begun: it is damage.

/// Bytes of the header.
pub const HEADER_BYTES: usize = 32;
/// Bytes before the page of a frame.
pub const FRAME_HEAD_BYTES: usize = 24;
/// Transactions that a writer may have written and not synced; it must sync before it begins another.
pub const UNSYNCED_TRANSACTIONS: u64 = 2;
/// The order of bytes in the words of a checksum that we make ourselves.
pub(super) const NATIVE_LITTLE: Order = Order::Little;

const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;
const PAGE_BYTES_MAX: u32 = 65_536;

/// The order of bytes in the words of a checksum; the header of a log says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// What a write-ahead log looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogState {
    /// There is none, or it is empty.
    #[default]
    Absent,
    /// All frames up to the end, or up to what an earlier use of the file has left, are good.
    Whole,
    /// It ends in the middle of something, as a crash leaves it.
    TornTail,
    /// A bad frame is followed by good ones that were written after it was synced.
    Damaged {
        /// Ends of transactions behind the bad frame.
        commits_behind: u64,
    },
    /// The header does not match its checksum.
    BadHeader {
        /// Ends of transactions among the frames behind it that check out.
        commits: u64,
    },
}

/// SQLite's checksum, going on from `from`; `bytes` are a multiple of eight.
pub(super) fn checksum(order: Order, from: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let word = |bytes: &[u8]| {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        match order {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    };
    bytes.chunks_exact(8).fold(from, |(first, second), pair| {
        let first = first.wrapping_add(word(&pair[..4])).wrapping_add(second);
        (first, second.wrapping_add(word(&pair[4..])).wrapping_add(first))
    })
}

/// The number of the page in the frame with this head.
pub fn page_number(head: &[u8; FRAME_HEAD_BYTES]) -> u32 {
    big_endian(head, 0)
}

fn big_endian(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// How often a log can begin anew between two looks at it: far more often than any disk lets it.
const RENEWALS_MAX: u32 = 65_536;

/// The header of a log, which tells one use of its file from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; HEADER_BYTES],
}

impl Header {
    /// The header in these bytes; nothing if they do not match their checksum.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let order = match big_endian(bytes, 0) {
            MAGIC_LITTLE => Order::Little,
            MAGIC_BIG => Order::Big,
            _ => return None,
        };
        let page = big_endian(bytes, 8);
        let valid = (512..=PAGE_BYTES_MAX).contains(&page) && page.is_power_of_two();
        let sound = checksum(order, (0, 0), &bytes[..24]) == (big_endian(bytes, 24), big_endian(bytes, 28));
        (valid && sound).then_some(Header { bytes: *bytes })
    }

    /// Bytes of the page in each frame.
    pub fn page_bytes(&self) -> u64 {
        u64::from(big_endian(&self.bytes, 8))
    }

    /// Whether this is what a writer leaves whose log had the header `earlier` a moment ago: the same, or that of a log
    /// which was begun anew since. SQLite adds one to the first salt each time.
    pub fn follows(&self, earlier: &Header) -> bool {
        let renewals = big_endian(&self.bytes, 16).wrapping_sub(big_endian(&earlier.bytes, 16));
        self == earlier || (1..=RENEWALS_MAX).contains(&renewals)
    }

    /// Whether a frame with this head was written under this header.
    pub fn is_of(&self, head: &[u8; FRAME_HEAD_BYTES]) -> bool {
        head[8..16] == self.bytes[16..24]
    }
}

/// Goes through a log, frame by frame.
#[derive(Clone, Debug)]
pub struct Scanner {
    order: Order,
    page_bytes: u32,
    salts: [u8; 8],
    /// What the frame before stores as the checksum up to itself.
    before: (u32, u32),
    header_good: bool,
    /// Whether a bad frame was met.
    broken: bool,
    /// Whether the first bad frame has other salts: an earlier use of the file has left it, or a newer one is about to
    /// write its header.
    foreign: bool,
    /// Whether its salts are those of the next use of the file, whose header never follows its frames.
    overwritten: bool,
    /// Ends of transactions in the good part, or behind a bad header.
    commits: u64,
    /// Ends of transactions behind the first bad frame.
    commits_behind: u64,
    /// Whether a good frame follows enough of them.
    damaged: bool,
}

impl Scanner {
    /// Reads the header. One that does not match its checksum is gone past, with pages of `page_bytes`, which the database
    /// file says, and with the salts that the first frame has.
    pub fn new(header: &[u8; HEADER_BYTES], page_bytes: u32) -> Scanner {
        let native = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };
        let read = Header::read(header);
        // The order holds for the frames behind a header that does not match, too.
        let order = match big_endian(header, 0) {
            MAGIC_LITTLE => Order::Little,
            MAGIC_BIG => Order::Big,
            _ => native,
        };
        let stored = (big_endian(header, 24), big_endian(header, 28));
        let mut salts = [0; 8];
        salts.copy_from_slice(&header[16..24]);
        Scanner {
            order,
            page_bytes: read.map_or(page_bytes, |read| big_endian(&read.bytes, 8)),
            salts,
            before: stored,
            header_good: read.is_some(),
            broken: false,
            foreign: false,
            overwritten: false,
            commits: 0,
            commits_behind: 0,
            damaged: false,
        }
    }

    /// Bytes of the page in each frame.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes as usize
    }

    /// Takes the next frame: its head and its page.
    pub fn frame(&mut self, head: &[u8; FRAME_HEAD_BYTES], page: &[u8]) {
        let sum = checksum(self.order, checksum(self.order, self.before, &head[..8]), page);
        let stored = (big_endian(head, 16), big_endian(head, 20));
        let is_commit = big_endian(head, 4) != 0;
        let own = head[8..16] == self.salts;
        let good = own && sum == stored;
        self.before = stored;
        if !self.header_good {
            // Each is checked from the one before it, whatever salts they share.
            self.commits += u64::from(sum == stored && is_commit);
            return;
        }
        if !self.broken {
            self.commits += u64::from(good && is_commit);
            self.broken = !good;
            let salt = |salts: &[u8]| big_endian(salts, 0);
            let newer = salt(&self.salts).wrapping_add(1);
            self.foreign = !good && !own;
            self.overwritten = !good && salt(&head[8..16]) == newer;
        } else if good {
            self.damaged |= self.commits_behind >= UNSYNCED_TRANSACTIONS;
            self.commits_behind += u64::from(is_commit);
        }
    }

    /// Whether the header and every frame so far are good.
    pub fn is_good(&self) -> bool {
        self.header_good && !self.broken
    }

    /// What the log looks like, after its last whole frame; `rest` bytes follow that.
    pub fn finish(self, rest: u64) -> LogState {
        if !self.header_good {
            return LogState::BadHeader { commits: self.commits };
        }
        match self {
            Scanner { damaged: true, overwritten: false, commits_behind, .. } => {
                LogState::Damaged { commits_behind }
            }
            Scanner { broken: true, foreign: false, .. } => LogState::TornTail,
            _ if rest > 0 => LogState::TornTail,
            _ => LogState::Whole,
        }
    }
}
