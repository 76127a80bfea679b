//! Compiles what tch lacks, in `cpp/`, against the headers of `$LIBTORCH`, and tells test programs where libtorch lies.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=cpp");
    let libtorch = PathBuf::from(
        env::var_os("LIBTORCH")
            .expect("LIBTORCH names the directory of torch 2.13 that this crate is built against"),
    );
    let mut sources: Vec<PathBuf> = fs::read_dir("cpp")
        .expect("cpp/ lies beside the build script")
        .map(|entry| entry.expect("cpp/ can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    sources.sort();
    // One translation unit: libtorch's headers take ten times as long to compile as a file of ours.
    let include = |path: &PathBuf| {
        let path = fs::canonicalize(path).expect("what was listed is there");
        format!("#include \"{}\"\n", path.display())
    };
    let all = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR")).join("all.cpp");
    fs::write(&all, sources.iter().map(include).collect::<String>()).expect("OUT_DIR is writable");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        // As of the system: what its headers warn of is not ours.
        .flag("-isystem")
        .flag(libtorch.join("include"))
        .flag("-isystem")
        .flag(libtorch.join("include/torch/csrc/api/include"))
        // Headers that take what they use of the operators alone compile in a fraction of the time.
        .define("AT_PER_OPERATOR_HEADERS", None)
        .flag("-fvisibility=hidden")
        .warnings(true)
        .extra_warnings(true)
        // GCC 12 sees overlapping copies in `"text" + std::string` (its bug 105651).
        .flag_if_supported("-Wno-restrict")
        .file(all)
        .compile("flambeau_torch");
    // $LIBTORCH/lib may be a directory of links, while libtorch finds its own libraries beside the real files.
    let library = libtorch.join("lib/libtorch_cpu.so");
    let real =
        fs::canonicalize(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let directory = real.parent().unwrap_or(Path::new("/"));
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", directory.display());
    // Libraries that libtorch_cpu.so itself needs are found by its own run path, not by ours.
    println!("cargo:rustc-link-arg=-Wl,--allow-shlib-undefined");
}
