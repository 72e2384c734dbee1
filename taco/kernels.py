"""Builds kernels/ into one library with nvcc: every GPU architecture, every torch >= 2.10, every Python.

The library uses torch's stable ABI only, so a CPU build of torch suffices to build and to load it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

SOURCES = Path(__file__).resolve().parents[1] / "kernels"
LIBRARY = SOURCES / "build" / "libtaco.so"
ARCHITECTURES = ("80", "90a", "100")
MIN_NVCC = (12, 8)  # the first that knows sm_100
STABLE_ABI = "0x020a000000000000"  # torch 2.10


class BuildError(RuntimeError):
    """The library cannot be built or loaded. The text says: got, need, why."""


@dataclass(frozen=True)
class Toolkit:
    """nvcc and the CUDA home that it belongs to; libraries: folder of libcudart_static.a."""

    nvcc: Path
    home: Path
    libraries: Path


def find_toolkit(site_packages: Path | None = None, path: str | None = None) -> Toolkit:
    """nvcc of the nvidia-cuda-nvcc wheel in `site_packages` (default: this Python's), else a new enough one on `path`.

    Raises `BuildError` if there is neither.
    """
    home = (site_packages or Path(sysconfig.get_path("purelib"))) / "nvidia" / "cu13"
    if (home / "bin" / "nvcc").exists():
        return Toolkit(home / "bin" / "nvcc", home, home / "lib")
    found = shutil.which("nvcc", path=path)
    if found and _version(Path(found)) >= MIN_NVCC:
        home = Path(found).resolve().parents[1]
        return Toolkit(Path(found), home, home / "lib64")
    raise BuildError(
        f"got {found or 'no nvcc'}; need nvcc >= {MIN_NVCC[0]}.{MIN_NVCC[1]}, e.g. from `pip install 'taco[kernels]'`; "
        "because the kernels are compiled for sm_80, sm_90a and sm_100"
    )


def _version(nvcc: Path) -> tuple[int, ...]:
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, text.split("release ")[1].split(",")[0].split(".")))


def compile_command(toolkit: Toolkit, source: Path, output: Path, architectures: Sequence[str]) -> list[str]:
    """nvcc's arguments for one source file -> object file. No contraction into FMA on either side."""
    code = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    flags = ["-std=c++17", "-O3", "--extended-lambda", "-fmad=false", "-Xcompiler=-fPIC,-ffp-contract=off"]
    defines = ["-DUSE_CUDA", f"-DTORCH_TARGET_VERSION={STABLE_ABI}", f"-I{_torch_home() / 'include'}"]
    return [str(toolkit.nvcc), *flags, *code, *defines, "-c", str(source), "-o", str(output)]


def link_command(toolkit: Toolkit, objects: Sequence[Path], output: Path) -> list[str]:
    """nvcc's arguments to link. --no-as-needed: the weak stream symbol resolves only if libtorch stays linked."""
    libraries = [f"-L{_torch_home() / 'lib'}", f"-L{toolkit.libraries}", "-Xlinker=--no-as-needed"]
    return [
        *(str(toolkit.nvcc), "-shared", "-cudart=static", *map(str, objects), "-o", str(output)),
        *(*libraries, "-ltorch", "-ltorch_cpu", "-lc10"),
    ]


def _torch_home() -> Path:
    return Path(torch.__file__).parent


def _run(command: list[str], toolkit: Toolkit) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_HOME": str(toolkit.home)})
    if done.returncode:
        raise BuildError(f"got exit {done.returncode} from {' '.join(command)}:\n{done.stdout}{done.stderr}")


def build(output: Path = LIBRARY, *, architectures: Sequence[str] = ARCHITECTURES, jobs: int = 2) -> Path:
    """Compile every source of kernels/ and link them into `output`, replaced in one step. Raises `BuildError`."""
    toolkit = find_toolkit()
    sources = sorted([*SOURCES.glob("*.cu"), *SOURCES.glob("*.cpp")])
    if not sources:
        raise BuildError(
            f"got no sources in {SOURCES}; need a checkout of the repository; because wheels carry no kernels"
        )
    output = Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    objects = [output.parent / f"{s.stem}.o" for s in sources]
    commands = [compile_command(toolkit, s, o, architectures) for s, o in zip(sources, objects, strict=True)]
    with ThreadPoolExecutor(jobs) as pool:
        for source, _ in zip(sources, pool.map(lambda c: _run(c, toolkit), commands), strict=True):
            print(f"compiled {source.name}", file=sys.stderr)
    fresh = output.with_suffix(".new")
    _run(link_command(toolkit, objects, fresh), toolkit)
    os.replace(fresh, output)
    return output
