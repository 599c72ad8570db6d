//! Lines on the serial console.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use spin::Mutex;

use crate::arch;

static LINE: Mutex<()> = Mutex::new(());
static FORCED: AtomicBool = AtomicBool::new(false);

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        arch::console_write(text.as_bytes());
        Ok(())
    }
}

/// From now on nobody waits for anybody's line: the machine is about to end.
pub fn force() {
    FORCED.store(true, Ordering::Relaxed);
}

/// Prints; lines of several CPUs do not mix.
pub fn print(arguments: fmt::Arguments<'_>) {
    let _line = loop {
        if let Some(line) = LINE.try_lock() {
            break Some(line);
        }
        if FORCED.load(Ordering::Relaxed) {
            break None;
        }
        crate::ipi::serve();
        core::hint::spin_loop();
    };
    let _ = Console.write_fmt(arguments);
}

macro_rules! println {
    ($($argument:tt)*) => {
        $crate::console::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}
pub(crate) use println;
