//! Bytes of the kernel's objects: charged in whole frames, given back to the last byte, through the end of groups.

#[path = "common/host.rs"]
mod host;
#[path = "common/kernel.rs"]
mod kernel;

use framekeeper::memcg::Event;
use framekeeper::report::MemoryEvents;
use framekeeper::{Backing, ByteCharge, ChargeError, CpuId, MemcgId, Mm, NodeId};
use host::{Host, run_as};
use kernel::machine;

const NODE: NodeId = NodeId(0);

fn charge(mm: &Mm<Host>, memcg: MemcgId, bytes: u32) -> ByteCharge<'_, Host> {
    mm.try_charge_bytes(memcg, NODE, bytes)
        .expect("below the limit")
}

fn drain(mm: &Mm<Host>, cpus: u32) {
    (0..cpus).for_each(|cpu| mm.drain_memcg_cpu(CpuId(cpu)));
}

#[test]
fn objects_of_one_group_share_frames_and_leave_none_behind() {
    let mm = machine(600, 1, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let group = mm.create_memcg(parent).unwrap();
    let objects: Vec<_> = (0..64).map(|_| charge(&mm, group, 128)).collect();
    assert_eq!(
        mm.memcg_usage(group),
        Ok(2),
        "64 × 128 bytes are two frames"
    );
    assert_eq!(mm.memcg_usage(parent), Ok(2));
    assert_eq!((objects[0].bytes(), objects[0].memcg()), (128, Some(group)));
    let large = charge(&mm, group, 10_000);
    assert_eq!(mm.memcg_usage(group), Ok(5));
    mm.check().unwrap();
    drop(large);
    // Frames that no object is in go back at once, but for what the CPU keeps ready.
    assert!(mm.memcg_usage(group).unwrap() <= 3);
    drop(objects);
    assert!(mm.memcg_usage(group).unwrap() <= 1);
    drain(&mm, 1);
    assert_eq!(mm.memcg_usage(group), Ok(0));
    assert_eq!(charge(&mm, group, 0).bytes(), 1, "nothing is no charge");
    mm.check().unwrap();
}

#[test]
fn an_object_of_a_group_that_ends_is_its_parents_to_the_last_byte() {
    let mm = machine(600, 2, 4);
    let parent = mm.create_memcg(MemcgId::ROOT).unwrap();
    let brief = mm.create_memcg(parent).unwrap();
    let own = charge(&mm, parent, 100);
    let objects: Vec<_> = (0..10)
        .map(|i| {
            run_as(i % 2);
            charge(&mm, brief, 1000)
        })
        .collect();
    mm.remove_memcg(brief).unwrap();
    mm.check().unwrap();
    assert_eq!(objects[0].memcg(), Some(parent));
    // 10 × 1000 bytes on two CPUs fill 3 or 4 frames, the parent's own object another.
    assert!((4..=5).contains(&mm.memcg_usage(parent).unwrap()));
    let again = mm.create_memcg(parent).unwrap();
    let other = charge(&mm, again, 5);
    for (i, object) in objects.into_iter().enumerate() {
        run_as(i as u32 % 3);
        drop(object);
        mm.check().unwrap();
    }
    run_as(0);
    drain(&mm, 2);
    assert_eq!(mm.memcg_usage(parent), Ok(2), "one frame each");
    drop((own, other));
    drain(&mm, 2);
    assert_eq!(mm.memcg_usage(parent), Ok(0));
    mm.remove_memcg(again).unwrap();
    mm.remove_memcg(parent).unwrap();
    mm.check().unwrap();
}

/// misuse 36, 37, 39: a stale id, a node that is none, a limit that is met.
#[test]
fn a_charge_that_cannot_be_made_is_a_typed_error_and_charges_nothing() {
    let mm = machine(600, 2, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(group, 1).unwrap();
    let first = charge(&mm, group, 3000);
    let full = ChargeError::OverLimit {
        limited: Some(group),
    };
    assert_eq!(mm.try_charge_bytes(group, NODE, 2000).unwrap_err(), full);
    assert_eq!(mm.charge_bytes(group, NODE, 2000).unwrap_err(), full);
    // What another CPU keeps of the frame is found.
    run_as(1);
    let second = charge(&mm, group, 1000);
    run_as(0);
    assert_eq!(mm.memcg_usage(group), Ok(1));
    let forced = mm.force_charge_bytes(group, NODE, u32::MAX).unwrap();
    assert_eq!(mm.memcg_usage(group), Ok(1 + (1 << 20)));
    drop(forced);
    assert_eq!(
        mm.memcg_usage(group),
        Ok(1),
        "over its limit, nothing is kept"
    );
    let events = MemoryEvents::of(&mm, group).unwrap();
    assert_eq!(
        events.count(Event::Max),
        3,
        "once for each charge that met it"
    );
    let none = ChargeError::NoSuchGroup(group);
    assert_eq!(mm.try_charge_bytes(group, NodeId(1), 5).unwrap_err(), none);
    mm.remove_memcg(group).unwrap();
    assert_eq!(mm.try_charge_bytes(group, NODE, 5).unwrap_err(), none);
    assert_eq!(mm.force_charge_bytes(group, NODE, 5).unwrap_err(), none);
    drop((first, second));
    mm.check().unwrap();
}

#[test]
fn a_charge_of_bytes_reclaims_frames_of_the_group_that_is_full() {
    let mm = machine(600, 1, 4);
    let group = mm.create_memcg(MemcgId::ROOT).unwrap();
    mm.set_memcg_max(group, 20).unwrap();
    for _ in 0..20 {
        kernel::fault(&mm, group, Backing::Anon).unwrap();
    }
    mm.drain_lru();
    let objects: Vec<_> = (0..40)
        .map(|_| {
            mm.charge_bytes(group, NODE, 512)
                .expect("pages are evicted")
        })
        .collect();
    assert!(mm.memcg_usage(group).unwrap() <= 20);
    drop(objects);
    mm.check().unwrap();
}

/// Whatever is charged, freed, drained and ended on whichever CPU: the frames hold the bytes, and little more.
#[test]
fn frames_charged_hold_the_bytes_of_live_objects_after_every_step() {
    const CPUS: u32 = 3;
    let mm = machine(600, CPUS, 8);
    let top = mm.create_memcg(MemcgId::ROOT).unwrap();
    let mut seed = 7u64;
    let mut below = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let mut groups: Vec<_> = (0..3).map(|_| mm.create_memcg(top).unwrap()).collect();
    let mut live: Vec<ByteCharge<'_, Host>> = Vec::new();
    for step in 0..4000 {
        run_as(below(u64::from(CPUS) + 1) as u32);
        match below(20) {
            0..9 => {
                let most = if below(8) == 0 { 20_000 } else { 700 };
                live.push(charge(&mm, groups[below(3) as usize], below(most) as u32));
            }
            9..17 if !live.is_empty() => {
                drop(live.swap_remove(below(live.len() as u64) as usize));
            }
            17 => mm.drain_memcg_cpu(CpuId(below(u64::from(CPUS)) as u32)),
            18 if step % 8 == 0 => {
                let at = below(3) as usize;
                mm.remove_memcg(groups[at]).unwrap();
                groups[at] = mm.create_memcg(top).unwrap();
            }
            _ => {}
        }
        let bytes: u64 = live.iter().map(|object| u64::from(object.bytes())).sum();
        let held = mm.memcg_usage(top).unwrap() * 4096;
        assert!(held >= bytes, "{held} bytes are charged for {bytes}");
        if step % 50 == 0 {
            mm.check().unwrap();
        }
    }
    live.clear();
    run_as(0);
    drain(&mm, CPUS);
    assert_eq!(mm.memcg_usage(top), Ok(0));
    mm.check().unwrap();
}
