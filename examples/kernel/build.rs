//! Names the linker script of the target; the compiler's other options are in `.cargo/config.toml`.

fn main() {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let script = format!("src/arch/{arch}/link.ld");
    println!("cargo::rerun-if-changed={script}");
    println!("cargo::rustc-link-arg-bins=-T{script}");
    println!("cargo::rustc-link-arg-bins=--no-pie");
}
