//! `--live`: zones, pagesets, groups, lists and locks while the groups write and read.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Condvar;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use framekeeper::{ListKind, NodeId, Rank};
use indicatif::ProgressBar;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};
use ratatui::{Frame, Terminal};

use crate::kernel::{Group, Kernel};
use crate::port;

/// Between two pictures.
const PICTURE: Duration = Duration::from_millis(100);
/// Between two lines, where there is no terminal.
const LINE: Duration = Duration::from_secs(1);

/// One moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    phase: String,
    /// Pages written or read, of so many.
    done: (u64, u64),
    seconds: f64,
    zones: Vec<ZoneNow>,
    /// By CPU: frames parked, of so many.
    pagesets: Vec<(u64, u64)>,
    /// By group: frames.
    usage: Vec<u64>,
    /// Frames that a group may have.
    limit: Option<u64>,
    /// Base frames on all groups' lists, by [`ListKind`].
    lists: [u64; ListKind::COUNT],
    evictions: u64,
    swap_ins: u64,
    freed_by_background: u64,
    /// Locks taken so far, by rank.
    locks: Vec<(&'static str, u64)>,
}

/// A zone at that moment, in frames.
#[derive(Clone, Debug, Default)]
struct ZoneNow {
    name: String,
    free: u64,
    managed: u64,
    /// Watermarks: min, low, high.
    marks: [u64; 3],
}

impl Snapshot {
    fn of(kernel: &Kernel, bar: &ProgressBar, began: Instant) -> Self {
        let mm = &kernel.mm;
        let allocator = mm.allocator();
        let mut pagesets = vec![(0, 0); port::MOST_CPUS];
        for set in allocator.pageset_counts() {
            if let Some((parked, most)) = pagesets.get_mut(set.cpu.0 as usize) {
                *parked += u64::from(set.parked);
                *most += u64::from(set.high);
            }
        }
        while pagesets.last() == Some(&(0, 0)) {
            pagesets.pop();
        }
        let zones = allocator.zone_counts().filter(|zone| zone.managed > 0);
        let mut lists = [0; ListKind::COUNT];
        for group in &kernel.groups {
            // A group that ended has none.
            if let Ok(stat) = mm.lru_stat(group.memcg, NodeId(0)) {
                lists
                    .iter_mut()
                    .zip(stat.lists)
                    .for_each(|(sum, more)| *sum += more);
            }
        }
        let sum = |count: fn(&Group) -> u64| kernel.groups.iter().map(count).sum();
        Self {
            phase: bar.message(),
            done: (bar.position(), bar.length().unwrap_or(0)),
            seconds: began.elapsed().as_secs_f64(),
            zones: zones
                .map(|zone| ZoneNow {
                    name: zone.kind.to_string(),
                    free: zone.free,
                    managed: zone.managed,
                    marks: [zone.levels.min, zone.levels.low, zone.levels.high],
                })
                .collect(),
            pagesets,
            usage: kernel
                .groups
                .iter()
                .map(|group| mm.memcg_usage(group.memcg).unwrap_or(0))
                .collect(),
            limit: kernel.limit.map(u64::from),
            lists,
            evictions: sum(Group::evictions),
            swap_ins: sum(Group::swap_ins),
            freed_by_background: kernel.freed_by_background(),
            locks: Rank::ALL
                .into_iter()
                .map(|rank| (rank.name(), port::locks_taken(rank)))
                .filter(|&(_, taken)| taken > 0)
                .collect(),
        }
    }
}

/// One line: what is read in a log.
impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (done, all) = self.done;
        write!(f, "{:6.1} s {:5} {done}/{all}", self.seconds, self.phase)?;
        for zone in &self.zones {
            write!(f, "  {} {} free", zone.name, zone.free)?;
        }
        let parked: u64 = self.pagesets.iter().map(|(parked, _)| parked).sum();
        let charged: u64 = self.usage.iter().sum();
        write!(f, "  {parked} parked  {charged} charged  ")?;
        let [inactive, active, ..] = self.lists;
        write!(
            f,
            "{inactive} inactive {active} active  {} evicted",
            self.evictions
        )?;
        for (rank, taken) in &self.locks {
            write!(f, "  {rank} {taken}")?;
        }
        Ok(())
    }
}

/// Draws a moment into whatever room there is.
fn draw(frame: &mut Frame<'_>, now: &Snapshot) {
    let zones = now.zones.len() as u16;
    let [head, zone_area, groups, sets, lists, locks, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(zones + 2),
        Constraint::Min(4),
        Constraint::Length(4),
        Constraint::Length(3),
        Constraint::Length(4),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let (done, all) = now.done;
    let share = |part: u64, whole: u64| (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
    frame.render_widget(
        Gauge::default().ratio(share(done, all)).label(format!(
            "{} {done} of {all} pages, {:.1} s",
            now.phase, now.seconds
        )),
        head,
    );
    boxed(frame, zone_area, "zones: free frames", |frame, inside| {
        for (zone, row) in now.zones.iter().zip(inside.rows()) {
            let [min, low, high] = zone.marks;
            let label = format!(
                "{}  {} of {}  min {min} low {low} high {high}",
                zone.name, zone.free, zone.managed
            );
            let gauge = Gauge::default()
                .ratio(share(zone.free, zone.managed))
                .label(label);
            let short = zone.free < low;
            frame.render_widget(if short { gauge.red() } else { gauge.green() }, row);
        }
    });
    let most = now.usage.iter().copied().max().unwrap_or(0);
    let limit = now
        .limit
        .map_or(String::from("no limit"), |limit| format!("limit {limit}"));
    boxed(
        frame,
        groups,
        &format!("groups: frames of each, at most {most}, {limit}"),
        |frame, inside| {
            let bars = Sparkline::default()
                .data(&now.usage)
                .max(now.limit.unwrap_or(most).max(1));
            frame.render_widget(bars, inside);
        },
    );
    let sets_text: Vec<String> = now
        .pagesets
        .iter()
        .zip(0..)
        .map(|((parked, high), cpu)| format!("cpu {cpu}: {parked}/{high}"))
        .collect();
    text(
        frame,
        sets,
        "pagesets: frames parked, limit",
        &sets_text.join("  "),
    );
    let [inactive, active, ..] = now.lists;
    let lists_text = format!(
        "inactive {inactive}  active {active}  evicted {}  read back {}  freed by the background {}",
        now.evictions, now.swap_ins, now.freed_by_background
    );
    text(frame, lists, "lists", &lists_text);
    let locks_text: Vec<String> = now
        .locks
        .iter()
        .map(|(rank, taken)| format!("{rank} {taken}"))
        .collect();
    text(frame, locks, "locks taken", &locks_text.join("  "));
    // The cursor stays visible: whoever interrupts the program gets the terminal as it was.
    frame.set_cursor_position(foot.as_position());
}

fn boxed(frame: &mut Frame<'_>, area: Rect, title: &str, fill: impl FnOnce(&mut Frame<'_>, Rect)) {
    let block = Block::bordered().title(Line::from(title.to_owned()).bold());
    let inside = block.inner(area);
    frame.render_widget(block, area);
    fill(frame, inside);
}

fn text(frame: &mut Frame<'_>, area: Rect, title: &str, text: &str) {
    boxed(frame, area, title, |frame, inside| {
        let wrapped = Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true });
        frame.render_widget(wrapped, inside);
    });
}

/// Shows the kernel, which began then, until `work` is done.
pub(crate) fn watch<T>(
    kernel: &Kernel,
    bar: &ProgressBar,
    began: Instant,
    work: impl FnOnce() -> T,
) -> T {
    let (over, changed) = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The last CPU: it takes locks, but nothing that a CPU keeps.
            port::run_as(u32::MAX);
            let mut screen = Screen::new();
            loop {
                screen.show(&Snapshot::of(kernel, bar, began));
                let guard = over.lock().unwrap_or_else(PoisonError::into_inner);
                let wait = changed.wait_timeout_while(guard, screen.pause(), |over| !*over);
                if *wait.unwrap_or_else(PoisonError::into_inner).0 {
                    break;
                }
            }
            screen.show(&Snapshot::of(kernel, bar, began));
        });
        let result = work();
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_one();
        result
    })
}

/// Where moments are shown.
enum Screen {
    Terminal(Terminal<CrosstermBackend<io::Stdout>>),
    Lines,
}

impl Screen {
    fn new() -> Self {
        let open = || {
            // Cleared by the backend: the terminal itself would ask where the cursor is, and wait for an answer.
            let mut backend = CrosstermBackend::new(io::stdout());
            backend.clear()?;
            Terminal::new(backend)
        };
        match io::stdout().is_terminal().then(open) {
            Some(Ok::<_, io::Error>(terminal)) => Self::Terminal(terminal),
            _ => Self::Lines,
        }
    }

    fn pause(&self) -> Duration {
        match self {
            Self::Terminal(_) => PICTURE,
            Self::Lines => LINE,
        }
    }

    /// Nobody may be looking any more; then nothing is shown.
    fn show(&mut self, now: &Snapshot) {
        match self {
            Self::Terminal(terminal) => _ = terminal.draw(|frame| draw(frame, now)),
            Self::Lines => _ = writeln!(io::stdout(), "{now}"),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Self::Terminal(terminal) = self {
            let _ = terminal.show_cursor();
            let _ = writeln!(io::stdout());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::backend::TestBackend;

    fn moment() -> Snapshot {
        Snapshot {
            phase: "write".into(),
            done: (300, 1000),
            seconds: 1.5,
            zones: vec![ZoneNow {
                name: "DMA32".into(),
                free: 40,
                managed: 200,
                marks: [10, 50, 90],
            }],
            pagesets: vec![(3, 7), (0, 7)],
            usage: vec![10, 20, 64],
            limit: Some(64),
            lists: [60, 34, 0, 0],
            evictions: 206,
            swap_ins: 4,
            freed_by_background: 5,
            locks: vec![("LruVec", 17), ("Shard", 9)],
        }
    }

    fn drawn(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &moment())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_picture_names_all_that_it_shows() {
        let picture = drawn(100, 30);
        for part in [
            "write 300 of 1000 pages",
            "DMA32  40 of 200  min 10 low 50 high 90",
            "groups: frames of each, at most 64, limit 64",
            "cpu 0: 3/7  cpu 1: 0/7",
            "inactive 60  active 34  evicted 206  read back 4",
            "LruVec 17  Shard 9",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn a_terminal_of_any_size_will_do() {
        for (width, height) in [(1, 1), (10, 3), (20, 200), (300, 2), (80, 24)] {
            drawn(width, height);
        }
    }

    #[test]
    fn a_line_says_the_same() {
        assert_eq!(
            moment().to_string(),
            "   1.5 s write 300/1000  DMA32 40 free  3 parked  94 charged  60 inactive 34 active  \
             206 evicted  LruVec 17  Shard 9"
        );
    }
}
