#!/usr/bin/env python3
"""Builds the CUDA kernels: objects per source, one static library and the harness programs.

Needs no GPU. Uses the nvcc under CUDA_HOME, on PATH or under /usr/local/cuda when it is 13.0 or newer; otherwise fetches nvcc 13.0 from PyPI wheels into a
cache folder. Where neither works it says so and exits with 3, so that a caller can go on CPU-only.

A source names its architectures in a line `// archs: 80 90a 100a` (default: 90a). What does not apply to an architecture is
compiled for the others only.

    kernels/build.py [--out DIR] [--cache DIR] [--no-fetch] [--check] [--only SUBSTRING] [-j N] [--arch 90a]

--check compiles every source for every architecture it names and keeps nothing (what CI runs).
--emulate compiles the checks under cuda/emulation with the host's compiler and runs them: kernels without a GPU.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WHEELS = ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime"]
VERSION = "13.0.*"
NO_TOOLKIT = 3


def say(text):
    print(text, flush=True)


def nvcc_version(nvcc):
    try:
        text = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def installed_nvcc():
    places = []
    if os.environ.get("CUDA_HOME"):
        places.append(Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc")
    on_path = shutil.which("nvcc")
    if on_path:
        places.append(Path(on_path))
    places.append(Path("/usr/local/cuda/bin/nvcc"))
    for nvcc in places:
        version = nvcc_version(nvcc)
        if version and version >= (13, 0):
            return nvcc
    return None


def fetched_nvcc(cache):
    nvcc = cache / "nvidia" / "cu13" / "bin" / "nvcc"
    if nvcc_version(nvcc):
        return nvcc
    say(f"no nvcc 13 here: fetching wheels into {cache}")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as tmp:
        wheels = Path(tmp) / "wheels"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(wheels)]
        done = subprocess.run(command + [f"{name}=={VERSION}" for name in WHEELS], capture_output=True, text=True)
        if done.returncode:
            say(f"pip could not fetch the CUDA wheels:\n{done.stderr.strip()[-600:]}")
            return None
        site = Path(tmp) / "site"
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
        for folder in ("bin", "nvvm/bin"):
            for file in (site / "nvidia" / "cu13" / folder).glob("*"):
                file.chmod(0o755)
        if cache.exists():
            shutil.rmtree(cache)
        site.rename(cache)
    return nvcc if nvcc_version(nvcc) else None


def runtime_folder(nvcc):
    """Folder of libcudart_static.a: wheels and toolkits differ."""
    home = nvcc.resolve().parent.parent
    for folder in (home / "lib", home / "lib64", home / "targets/x86_64-linux/lib"):
        if (folder / "libcudart_static.a").is_file():
            return folder
    sys.exit(f"no libcudart_static.a beside {nvcc}")


def architectures(source):
    found = re.search(r"^// archs:(.*)$", source.read_text(), re.M)
    return found[1].split() if found else ["90a"]


def resources(log):
    """One line per kernel out of ptxas -v: registers, spills, stack, static shared memory."""
    rows, name = [], None
    for line in log.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
        if entry:
            name, arch, spill = entry[1], entry[2], ""
        found = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if found:
            spill = f"stack {found[1]}, spills {found[2]}/{found[3]}"
        used = re.search(r"Used (\d+) registers", line)
        if used and name:
            shared = re.search(r"(\d+) bytes smem", line)
            rows.append((arch, name, int(used[1]), spill, int(shared[1]) if shared else 0))
            name = None
    return rows


def demangle(names):
    tool = shutil.which("c++filt")
    if not tool or not names:
        return names
    out = subprocess.run([tool], input="\n".join(names), capture_output=True, text=True).stdout.splitlines()
    return [re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", line)[:100] for line in out]


def compile_one(nvcc, source, target, archs):
    flags = []
    for arch in archs:
        flags += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
    command = [str(nvcc), "-std=c++17", "-O3", "-lineinfo", "-Xptxas", "-v", "-Xcompiler", "-fPIC,-Wall", f"-I{ROOT / 'cuda/include'}",
               *os.environ.get("GOSSAMER_NVCC_FLAGS", "").split(), *flags, "-c", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def emulate(nvcc, only, jobs):
    """Builds and runs the emulated checks. The stand-ins come before the real headers."""
    if not shutil.which("g++"):
        say("emulated checks not run: no g++ here")
        return NO_TOOLKIT
    headers = nvcc.resolve().parent.parent / "include"

    def run(source):
        program = Path(folder) / source.stem
        command = ["g++", "-std=c++17", "-O2", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-Wall", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-psabi", "-pthread",
                   f"-I{ROOT / 'cuda/emulation'}", f"-I{ROOT / 'cuda/include'}", "-isystem", str(headers), str(source), "-o", str(program)]
        for step in command, [str(program)]:
            done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                break
        return done

    failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        sources = [source for source in sorted((ROOT / "cuda/emulation").glob("*.cc")) if only in source.name]
        if not sources:
            say(f"no emulated check matches --only {only!r}")
            return 2
        for source, done in zip(sources, pool.map(run, sources)):
            print(f"== {source.stem}\n{done.stdout}", end="", flush=True)
            failed += done.returncode != 0
    return 1 if failed else 0


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--out", type=Path, default=ROOT / "build")
    args.add_argument("--cache", type=Path, default=Path(os.environ.get("GOSSAMER_CUDA_CACHE", Path.home() / ".cache/gossamer/cuda-13.0")))
    args.add_argument("--no-fetch", action="store_true", help="use an installed nvcc or none")
    args.add_argument("--check", action="store_true")
    args.add_argument("--emulate", action="store_true")
    args.add_argument("--only", default="")
    args.add_argument("--arch", help="compile for this architecture alone (90a)")
    args.add_argument("-j", type=int, default=os.cpu_count())
    args = args.parse_args()

    nvcc = installed_nvcc() or (None if args.no_fetch else fetched_nvcc(args.cache))
    if not nvcc:
        fetched = "not asked to fetch it" if args.no_fetch else "the wheels could not be fetched"
        say(f"kernels not built: no nvcc 13 on PATH, under CUDA_HOME or /usr/local/cuda, and {fetched}.\n"
            "Install CUDA 13, or run kernels/build.py where pip can reach PyPI; the workspace builds CPU-only meanwhile.")
        return NO_TOOLKIT
    say(f"nvcc: {nvcc} {nvcc_version(nvcc)}")

    if args.emulate:
        return emulate(nvcc, args.only, args.j)

    sources = sorted(p for p in (ROOT / "cuda").rglob("*.cu") if args.only in str(p.relative_to(ROOT)))
    if not sources:
        say(f"no source matches --only {args.only!r}")
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    failed, rows, objects = [], [], {}
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        jobs = {}
        for source in sources:
            archs = architectures(source)
            if args.arch:
                archs = [a for a in archs if a == args.arch]
            if not archs:
                continue
            target = args.out / ("_".join(source.relative_to(ROOT / "cuda").parts)[:-3] + ".o")
            jobs[pool.submit(compile_one, nvcc, source, target, archs)] = (source, target)
        for job in concurrent.futures.as_completed(jobs):
            source, target = jobs[job]
            code, log = job.result()
            if code:
                failed.append(source)
                say(f"FAILED {source.relative_to(ROOT)}\n{log[-4000:]}")
                continue
            for warning in re.findall(r"^.*warning.*$", log, re.M | re.I):
                say(f"{source.name}: {warning}")
            rows += resources(log)
            objects[source] = target
    names = demangle([row[1] for row in rows])
    for (arch, _, registers, spill, shared), name in sorted(zip(rows, names), key=lambda r: (r[1], r[0][0])):
        say(f"{arch:8} {registers:3} registers, {spill}, shared {shared}: {name}")
    if failed:
        say(f"{len(failed)} of {len(jobs)} sources failed")
        return 1
    if args.check:
        for target in objects.values():
            target.unlink()
        say(f"{len(objects)} sources compile")
        return 0
    if args.only:
        return 0
    harness = {s: o for s, o in objects.items() if s.parent.name == "harness"}
    library = args.out / "libgossamer_kernels.a"
    library.unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", str(library)] + [str(o) for s, o in objects.items() if s not in harness], check=True)
    runtime = runtime_folder(nvcc)
    shutil.copy(runtime / "libcudart_static.a", args.out)  # beside the kernels, for whoever links them
    for source, target in harness.items():
        program = args.out / source.stem
        subprocess.run([str(nvcc), "-cudart", "static", "-o", str(program), str(target), str(library), f"-L{runtime}"], check=True)
        say(f"built {program.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
