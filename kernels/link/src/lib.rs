//! Links the CUDA kernels into a plugin. For the build scripts of `backends/*`.
//!
//! Where the kernels come from, in this order: `GOSSAMER_KERNELS_DIR`, a folder that `kernels/build.py --out` filled; an nvcc of
//! CUDA 13 under `CUDA_HOME`, on the PATH or under `/usr/local/cuda`, which builds them now. Without either the plugin is built for CPUs alone, and
//! the build says so. Nothing is fetched here.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Library that `kernels/build.py` makes.
const LIBRARY: &str = "libgossamer_kernels.a";
/// Exit status with which `kernels/build.py` says that there is no compiler it can use.
const NO_TOOLKIT: i32 = 3;

/// Links the kernels and sets the cfg `gossamer_cuda` when they are there. Call it from a build script.
pub fn link() {
    println!("cargo:rustc-check-cfg=cfg(gossamer_cuda)");
    println!("cargo:rerun-if-env-changed=GOSSAMER_KERNELS_DIR");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let Some(folder) = prebuilt().or_else(built) else {
        println!(
            "cargo:warning=no CUDA kernels in this build, which runs on CPUs alone: install CUDA 13 (set CUDA_HOME where it is not \
             found), or make them with kernels/build.py --out DIR and set GOSSAMER_KERNELS_DIR=DIR"
        );
        return;
    };
    println!("cargo:rerun-if-changed={}", folder.join(LIBRARY).display());
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rustc-link-lib=static=gossamer_kernels");
    println!("cargo:rustc-link-lib=static=cudart_static");
    for library in ["rt", "pthread", "dl", "stdc++"] {
        println!("cargo:rustc-link-lib={library}");
    }
    println!("cargo:rustc-cfg=gossamer_cuda");
}

fn prebuilt() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("GOSSAMER_KERNELS_DIR").filter(|folder| !folder.is_empty())?);
    assert!(
        folder.join(LIBRARY).is_file(),
        "expected {LIBRARY} in GOSSAMER_KERNELS_DIR={}; run kernels/build.py --out on that folder",
        folder.display()
    );
    Some(folder)
}

fn built() -> Option<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Where CUDA's installer puts it, often without a word to the PATH.
    let usual = PathBuf::from("/usr/local/cuda/bin");
    let mut folders = home.into_iter().chain(std::env::split_paths(&path)).chain([usual]);
    folders.any(|folder| folder.join("nvcc").is_file()).then_some(())?;
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    println!("cargo:rerun-if-changed={}", kernels.join("cuda").display());
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?).join("kernels");
    let done = Command::new("python3")
        .arg(kernels.join("build.py"))
        .args(["--no-fetch", "--out"])
        .arg(&out)
        .status();
    match done {
        Ok(status) if status.success() => Some(out),
        // What build.py says goes where cargo shows it to nobody.
        Ok(status) if status.code() == Some(NO_TOOLKIT) => {
            println!("cargo:warning=the nvcc found is not of CUDA 13");
            None
        }
        Ok(status) => {
            println!(
                "cargo:warning=kernels/build.py --out {} failed ({status}); run it by hand to see why",
                out.display()
            );
            None
        }
        Err(error) => {
            println!("cargo:warning=python3 cannot be run, which kernels/build.py needs: {error}");
            None
        }
    }
}
