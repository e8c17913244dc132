//! Lists the modules of the far side, so that a new file under `runner/_farcell` is shipped without being named a second time.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a build that cannot read its own source has to stop"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let runner = Path::new(&root).join("runner");
    let package = runner.join("_farcell");
    println!("cargo:rerun-if-changed={}", package.display());
    let mut files: Vec<_> = fs::read_dir(&package)
        .expect("the runner's package is part of the source")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| path.extension().is_some_and(|x| x == "py"))
        .collect();
    files.push(runner.join("farcell_kernel.py"));
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let name = file.file_name().expect("a file has a name").to_string_lossy();
        let path = file.display().to_string();
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("writing to a String");
    }
    list.push(']');
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("modules.rs"), list).expect("OUT_DIR is writable");
}
