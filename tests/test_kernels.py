"""The kernel build: its command lines, its errors, and that the library loads where torch has no CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taco import kernels

TOOLKIT = kernels.Toolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), Path("/cuda/lib"))


def test_compile_command_names_every_architecture_and_forbids_contraction() -> None:
    command = kernels.compile_command(TOOLKIT, Path("a.cu"), Path("a.o"), kernels.ARCHITECTURES)
    assert [a for a in command if a.startswith("-gencode")] == [
        "-gencode=arch=compute_80,code=sm_80",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-gencode=arch=compute_100,code=sm_100",
    ]
    assert "-fmad=false" in command
    assert "-Xcompiler=-fPIC,-ffp-contract=off" in command
    assert "-DTORCH_TARGET_VERSION=0x020a000000000000" in command
    assert command[-4:] == ["-c", "a.cu", "-o", "a.o"]


def test_link_command_keeps_libtorch_and_needs_no_cuda_library() -> None:
    command = kernels.link_command(TOOLKIT, [Path("a.o"), Path("b.o")], Path("lib.so"))
    assert command.index("-Xlinker=--no-as-needed") < command.index("-ltorch")
    assert "-cudart=static" in command
    assert not [a for a in command if a.startswith("-lc10_cuda") or a.startswith("-ltorch_cuda")]


def test_wheel_toolkit_comes_first(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    assert kernels.find_toolkit(tmp_path).nvcc == nvcc


def fake_nvcc(folder: Path, release: str) -> None:
    folder.mkdir(parents=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
    nvcc.chmod(0o755)


def test_system_toolkit_is_the_fallback(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "cuda" / "bin", "12.8")
    toolkit = kernels.find_toolkit(tmp_path, path=str(tmp_path / "cuda" / "bin"))
    assert toolkit.home == tmp_path / "cuda"


def test_old_toolkit_is_refused(tmp_path: Path) -> None:
    fake_nvcc(tmp_path / "cuda" / "bin", "12.4")
    with pytest.raises(kernels.BuildError, match=r"need nvcc >= 12\.8"):
        kernels.find_toolkit(tmp_path, path=str(tmp_path / "cuda" / "bin"))


def test_missing_toolkit_is_named(tmp_path: Path) -> None:
    with pytest.raises(kernels.BuildError, match="got no nvcc"):
        kernels.find_toolkit(tmp_path, path=str(tmp_path))


@pytest.mark.skipif(not kernels.LIBRARY.exists(), reason="the kernel library is not built: taco kernels build")
def test_library_loads_and_registers_its_operators() -> None:
    operations = ("encode", "decode_sum", "decode_sum_encode")
    names = [family + operation for family in ("", "minmax_", "tahquant_") for operation in operations]
    names.append("collective")
    code = (
        f"import torch; torch.ops.load_library({str(kernels.LIBRARY)!r}); "
        f"print(*(getattr(torch.ops.taco, n).default for n in {names}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"taco.{n}.default" for n in names]
