//! Locks that count: what a port sees of them.

mod counted {
    use framekeeper::sync::{CountedLock, LockStats, LockTable, SpinLock, Times};
    use framekeeper::{Rank, RawLock};
    use std::cell::Cell;
    use std::thread;

    /// A lock whose first try fails as often as it is told.
    struct Busy(SpinLock);

    thread_local! {
        static CLOCK: Cell<u64> = const { Cell::new(0) };
        static BUSY: Cell<bool> = const { Cell::new(false) };
    }

    // SAFETY: the spin lock excludes.
    #[allow(unsafe_code)]
    unsafe impl RawLock for Busy {
        fn new() -> Self {
            Self(<SpinLock as RawLock>::new())
        }
        fn lock(&self) {
            CLOCK.set(CLOCK.get() + 30);
            RawLock::lock(&self.0);
        }
        fn try_lock(&self) -> bool {
            !BUSY.get() && RawLock::try_lock(&self.0)
        }
        unsafe fn unlock(&self) {
            // SAFETY: the caller holds it.
            unsafe { RawLock::unlock(&self.0) }
        }
    }

    static TABLE: LockTable = LockTable::new();
    static THREADS: LockTable = LockTable::new();

    enum Clocked {}
    impl LockStats for Clocked {
        fn table() -> &'static LockTable {
            &TABLE
        }
        fn now() -> Option<u64> {
            Some(CLOCK.get())
        }
    }

    enum Unclocked {}
    impl LockStats for Unclocked {
        fn table() -> &'static LockTable {
            &THREADS
        }
    }

    /// misuse 64: a clock that runs back, too.
    #[test]
    fn a_counted_lock_knows_its_rank_and_how_long_it_was_waited_for_and_held() {
        let lock = CountedLock::<Busy, Clocked>::of_rank(Rank::Shard);
        let hold = |ns, busy| {
            BUSY.set(busy);
            lock.lock();
            BUSY.set(false);
            assert!(!lock.try_lock(), "it is held");
            CLOCK.set(CLOCK.get() + ns);
            // SAFETY: taken above.
            #[allow(unsafe_code)]
            unsafe {
                lock.unlock();
            }
        };
        hold(10, false);
        hold(50, true);
        let counts = TABLE.of(Rank::Shard);
        assert_eq!((counts.acquired, counts.contended), (2, 1));
        let times = |count, total, least, most| Times {
            count,
            total,
            least,
            most,
        };
        assert_eq!(counts.wait, times(1, 30, 30, 30));
        assert_eq!(counts.hold, times(2, 60, 10, 50));
        assert_eq!(counts.hold.mean(), 30);
        assert_eq!(TABLE.of(Rank::LruVec).acquired, 0);
        // misuse 64: the clock runs back while the lock is held.
        CLOCK.set(1000);
        lock.lock();
        CLOCK.set(5);
        // SAFETY: taken above.
        #[allow(unsafe_code)]
        unsafe {
            lock.unlock();
        }
        let counts = TABLE.of(Rank::Shard);
        assert_eq!(counts.hold, times(3, 60, 0, 50));
        TABLE.reset();
        assert_eq!(TABLE.of(Rank::Shard).hold, Times::default());
    }

    #[test]
    fn threads_lose_no_count_and_without_a_clock_no_time_is_kept() {
        let lock = CountedLock::<SpinLock, Unclocked>::of_rank(Rank::LruVec);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        lock.lock();
                        // SAFETY: taken above.
                        #[allow(unsafe_code)]
                        unsafe {
                            lock.unlock();
                        }
                    }
                });
            }
        });
        let counts = THREADS.of(Rank::LruVec);
        assert_eq!(counts.acquired, 20_000);
        assert!(counts.contended <= counts.acquired);
        assert_eq!((counts.hold, counts.wait), Default::default());
    }
}

mod report {
    use framekeeper::report::Lockstat;
    use framekeeper::sync::{CountedLock, LockStats, LockTable, SpinLock};
    use framekeeper::{Rank, RawLock};

    static TABLE: LockTable = LockTable::new();
    enum Counted {}
    impl LockStats for Counted {
        fn table() -> &'static LockTable {
            &TABLE
        }
    }

    #[test]
    fn lockstat_has_a_line_for_each_rank_that_was_taken() {
        let lock = CountedLock::<SpinLock, Counted>::of_rank(Rank::LruVec);
        for _ in 0..3 {
            assert!(lock.try_lock());
            // SAFETY: taken above.
            #[allow(unsafe_code)]
            unsafe {
                lock.unlock();
            }
        }
        let stat = Lockstat::of(&TABLE);
        assert_eq!(stat.rank(Rank::LruVec).acquired, 3);
        let text = stat.to_string();
        let lines: std::vec::Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let fields: std::vec::Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(fields[..2], ["LruVec:", "0"]);
        assert_eq!(fields[6], "3");
        assert_eq!(fields.len(), 11);
        assert_eq!(
            lines[1].split_whitespace().count(),
            12,
            "class name is two words"
        );
    }
}
