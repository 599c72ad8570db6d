//! Operations on ranges against a naive model: what each frame is.

#[path = "common/host.rs"]
pub(crate) mod host;
#[path = "common/machine.rs"]
pub(crate) mod machine;

use framekeeper::{
    Balloon, Cma, CmaBlock, Config, Contig, ContigError, FrameRange, MarkError, Mobility, Moved,
    OnlineError, Order, PageAllocator, Pages, Pfn, Reported, Request, WasBad,
};
use host::Host;
use machine::{Choices, allocator, one_region};

const FIRST: u64 = (1 << 20) + 300;
const FRAMES: u64 = 10_000;

/// What one frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Frame {
    Free,
    Used,
    Reserved,
    Offline,
}

pub(crate) struct Model {
    frames: Vec<Frame>,
    bad: Vec<bool>,
    /// Ranges that went offline, and came back.
    went: u32,
    came: u32,
}

impl Model {
    fn at(&mut self, range: FrameRange) -> &mut [Frame] {
        &mut self.frames[(range.start().0 - FIRST) as usize..(range.end().0 - FIRST) as usize]
    }

    fn all_are(&mut self, range: FrameRange, frame: Frame) -> bool {
        self.at(range).iter().all(|&is| is == frame)
    }

    fn set(&mut self, range: FrameRange, from: Frame, to: Frame) {
        for frame in self.at(range) {
            assert_eq!(*frame, from, "{range}");
            *frame = to;
        }
    }

    fn count(&self, what: impl Fn(Frame, bool) -> bool) -> u64 {
        let frames = self.frames.iter().zip(&self.bad);
        frames.filter(|&(&frame, &bad)| what(frame, bad)).count() as u64
    }

    fn is_bad(&self, pfn: Pfn) -> bool {
        self.bad[(pfn.0 - FIRST) as usize]
    }

    fn has_bad(&self, range: FrameRange) -> bool {
        range.iter().any(|pfn| self.is_bad(pfn))
    }
}

fn stay(_: FrameRange) -> Moved {
    Moved::Unmovable
}

/// What is out.
struct Out<'a> {
    pages: Vec<Pages<'a, Host>>,
    contigs: Vec<Contig<'a, Host>>,
    pieces: Vec<CmaBlock<'a, Host>>,
}

fn step<'a>(
    allocator: &'a PageAllocator<Host>,
    cma: &'a Cma<'a, Host>,
    balloon: &mut Balloon<'a, Host, 8>,
    out: &mut Out<'a>,
    model: &mut Model,
    random: &mut impl Choices,
) {
    let start = FIRST + random.below(FRAMES);
    let most = [1500, 9][random.below(2) as usize];
    let length = 1 + random.below(most);
    let range = FrameRange::new(Pfn(start), Pfn((start + length).min(FIRST + FRAMES)));
    let in_area = !range.intersect(cma.area()).is_empty();
    match random.below(16) {
        0..4 => {
            let order = Order::new(random.below(11) as u8).unwrap();
            let kind = Mobility::ALL[random.below(3) as usize];
            if let Ok(pages) = allocator.try_alloc(Request::new(order).mobility(kind)) {
                assert!(!model.has_bad(pages.frames()));
                model.set(pages.frames(), Frame::Free, Frame::Used);
                out.pages.push(pages);
            }
        }
        4..8 if !out.pages.is_empty() => {
            let at = random.below(out.pages.len() as u64) as usize;
            let pages = out.pages.swap_remove(at);
            model.set(pages.frames(), Frame::Used, Frame::Free);
            drop(pages);
        }
        8 => match allocator.alloc_contig(range, stay) {
            Ok(contig) => {
                assert!(!in_area && !model.has_bad(range));
                model.set(range, Frame::Free, Frame::Used);
                out.contigs.push(contig);
            }
            Err(error) => {
                let usable = model.all_are(range, Frame::Free) && !model.has_bad(range);
                assert!(!usable || matches!(error, ContigError::Kept(_)), "{error}");
            }
        },
        9 => drop(out.contigs.pop().map(|contig| {
            model.set(contig.frames(), Frame::Used, Frame::Free);
        })),
        10 => match allocator.offline(range, stay) {
            Ok(()) => {
                assert!(!in_area);
                model.set(range, Frame::Free, Frame::Offline);
                model.went += 1;
            }
            Err(error) => {
                let free = model.all_are(range, Frame::Free);
                let kept = matches!(error, ContigError::Kept(_) | ContigError::TooManyHoles);
                assert!(!free || kept, "{error}");
            }
        },
        11 => match allocator.online(range) {
            Ok(()) => {
                model.set(range, Frame::Offline, Frame::Free);
                model.came += 1;
            }
            Err(error) => {
                let offline = model.all_are(range, Frame::Offline);
                assert!(!offline || error == OnlineError::TooManyHoles, "{error}");
            }
        },
        12 if random.below(8) == 0 => {
            let pfn = range.start();
            let known = model.is_bad(pfn);
            match (allocator.mark_bad(pfn), model.at(range)[0]) {
                (Ok(WasBad::Already), Frame::Free | Frame::Used) => assert!(known),
                (Ok(WasBad::InUse), Frame::Used) | (Ok(_), Frame::Free) => {
                    assert!(!known);
                    model.bad[(pfn.0 - FIRST) as usize] = true;
                }
                (Err(MarkError::Unmanaged(_)), Frame::Reserved | Frame::Offline) => {}
                (Err(MarkError::TooManyHoles), _) => {}
                (was, is) => panic!("{was:?} of {is:?}"),
            }
        }
        13 => {
            let align = Order::new(random.below(10) as u8).unwrap();
            if let Ok(piece) = cma.alloc(1 + random.below(200), align, stay) {
                assert!(cma.area().covers(piece.frames()) && !model.has_bad(piece.frames()));
                assert!(piece.frames().start().is_aligned(align));
                model.set(piece.frames(), Frame::Free, Frame::Used);
                out.pieces.push(piece);
            } else if let Some(piece) = out.pieces.pop() {
                model.set(piece.frames(), Frame::Used, Frame::Free);
            }
        }
        14 => {
            let request = Request::new(Order::new(random.below(6) as u8).unwrap());
            let _ = balloon.inflate(request, 2, |lent| model.set(lent, Frame::Free, Frame::Used));
            balloon.deflate(random.below(4) as usize, |back| {
                model.set(back, Frame::Used, Frame::Free);
            });
        }
        _ => {
            allocator.report_free(Order::PAGEBLOCK, |told| {
                assert!(told.iter().all(|&told| model.all_are(told, Frame::Free)));
                Reported::Done
            });
        }
    }
    let lent: u64 = balloon.blocks().map(FrameRange::frames).sum();
    let (mut free, mut there, mut offline) = (0, 0, 0);
    for (frame, bad) in model.frames.iter().zip(&model.bad) {
        free += u64::from(*frame == Frame::Free && !bad);
        there += u64::from(matches!(frame, Frame::Free | Frame::Used));
        offline += u64::from(*frame == Frame::Offline);
    }
    assert_eq!(allocator.managed_frames(), there - lent);
    let present: u64 = allocator.zones().map(|zone| zone.present()).sum();
    assert_eq!(present, FRAMES - offline);
    assert_eq!(allocator.free_frames(), free);
}

/// A program on a machine of one shard or more. All must have come back at its end, which tells what happened.
pub(crate) fn run(shards: Option<u32>, steps: u32, random: &mut impl Choices) -> Model {
    let mut map = one_region(FIRST, FRAMES);
    map.reserve(Pfn(FIRST + 900).addr(12), 7 << 12).unwrap();
    let config = Config {
        shards,
        ..Config::default()
    };
    let allocator = allocator(map, &config).unwrap();
    let mut model = Model {
        frames: vec![Frame::Free; FRAMES as usize],
        bad: vec![false; FRAMES as usize],
        went: 0,
        came: 0,
    };
    let reserved = FrameRange::new(Pfn(FIRST + 900), Pfn(FIRST + 907));
    model.set(reserved, Frame::Free, Frame::Reserved);
    let start = (FIRST + 6_000).next_multiple_of(512);
    let area = FrameRange::new(Pfn(start), Pfn(start + 1536));
    let cma = Cma::new(&allocator, area, stay).unwrap();
    let mut balloon = Balloon::new(&allocator);
    let mut out = Out {
        pages: Vec::new(),
        contigs: Vec::new(),
        pieces: Vec::new(),
    };
    for n in 0..steps {
        if random.are_over() {
            break;
        }
        step(&allocator, &cma, &mut balloon, &mut out, &mut model, random);
        if n % 16 == 0 {
            allocator.check().unwrap();
        }
    }
    drop((out, balloon));
    allocator.check().unwrap();
    drop(cma);
    allocator.drain_all();
    let counts = allocator.zone_counts().next().unwrap();
    let bad = model.count(|frame, bad| bad && frame != Frame::Offline);
    assert_eq!(counts.free + bad, counts.managed);
    assert_eq!((counts.isolated, counts.cma, counts.ballooned), (0, 0, 0));
    allocator.check().unwrap();
    model
}

#[test]
fn random_ranges_are_what_the_model_says_after_every_step() {
    for seed in 1..=4 {
        let shards = (seed % 2 == 0).then_some(1);
        let model = run(shards, 3000, &mut machine::Random(seed));
        assert!(model.count(|_, bad| bad) > 2 && model.went > 5 && model.came > 0);
    }
}

#[test]
fn an_area_that_is_larger_than_its_bitmap_is_handed_out_in_coarser_pieces() {
    // 2 GiB from an odd pageblock on, at 64 bits.
    let first = (1 << 20) + 512;
    let allocator = allocator(one_region(first, 1 << 19), &Config::default()).unwrap();
    let area = FrameRange::new(Pfn(first), Pfn(first + (1 << 19)));
    let cma: Cma<'_, Host, 1> = Cma::new(&allocator, area, stay).unwrap();
    let order = Order::new(16).unwrap();
    let mut out = Vec::new();
    while let Ok(piece) = cma.alloc(1, order, stay) {
        assert!(piece.frames().start().is_aligned(order));
        out.push(piece);
    }
    // 2^19 frames hold eight multiples of 2^16.
    assert_eq!(out.len(), 8);
    while let Ok(piece) = cma.alloc(3000, Order::ZERO, stay) {
        assert!(area.covers(piece.frames()));
        out.push(piece);
    }
    assert_eq!(out.len(), 64, "every bit");
    assert_eq!(cma.used_frames(), 1 << 19);
}
