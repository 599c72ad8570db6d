//! What Linux 6.1 showed of six machines.
#![allow(unreachable_pub, reason = "each test binary uses it")]

macro_rules! data {
    ($name:literal) => {
        ($name, include_str!(concat!("../data/", $name)))
    };
}

/// Name and text of each.
pub const CAPTURES: [(&str, &str); 6] = [
    data!("linux-zoneinfo/linux-6.1-m128c1.txt"),
    data!("linux-zoneinfo/linux-6.1-m512c2.txt"),
    data!("linux-zoneinfo/linux-6.1-m4gc2.txt"),
    data!("linux-zoneinfo/linux-6.1-m8gc8.txt"),
    data!("linux-zoneinfo/linux-6.1-n2x4gc2.txt"),
    data!("linux-zoneinfo/linux-6.1-n2x16gc4.txt"),
];
