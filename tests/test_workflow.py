"""The workflow as a graph: what it plans, what it reruns, and that nothing in it makes a logged result."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taco import recipes

ROOT = Path(__file__).resolve().parents[1]
pytest.importorskip("snakemake")


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run snakemake in `folder`, which holds a copy of the Snakefile; and a package `taco` or none."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
    )  # fmt: skip


def copy_workflow(folder: Path) -> Path:
    """The workflow and its kernels' sources, without results."""
    shutil.copy(ROOT / "Snakefile", folder)
    shutil.copytree(ROOT / "envs", folder / "envs")
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("build"))
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_workflow(tmp_path)


def planned(checkout: Path, *targets: str) -> list[dict]:
    """The jobs that snakemake would run for `targets` (default: all), as {rule, output, threads, command}."""
    done = snakemake(checkout, "--cores", "2", "--dry-run", "--printshellcmds", "--quiet", "progress", "--", *targets)
    assert done.returncode == 0, done.stderr
    jobs, job = [], {}
    for line in (done.stdout + done.stderr).split("\n"):
        key, _, value = line.strip().partition(": ")
        if line.startswith(("rule ", "localrule ")):
            job = {"rule": line.split()[1].rstrip(":"), "output": "", "threads": "1"}
            jobs.append(job)
        elif key in ("output", "threads") and line.startswith("    "):
            job[key] = value
        elif key.startswith("Shell command") or line.startswith(("python -m taco", "torchrun ", "NCCL_")):
            job["command"] = value if key.startswith("Shell command") else line
    return jobs


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """The jobs of `snakemake --cores 2` in a folder without results or logged logs."""
    return planned(copy_workflow(tmp_path_factory.mktemp("plan")))


def outputs(jobs: list[dict]) -> set[str]:
    return {path for job in jobs for path in job["output"].split(", ")}


def command(jobs: list[dict], output: str) -> str:
    """The shell command that makes `output`, and its threads, as 'threads: command'."""
    (job,) = [j for j in jobs if output in j["output"].split(", ")]
    return f"{job['threads']}: {job['command']}"


def test_all_makes_every_mini_result_and_figure(plan: list[dict]) -> None:
    made = outputs(plan)
    assert {"kernels/build/libtaco.so", "results/mini/claims.csv"} <= made
    for experiment in recipes.EXPERIMENTS.values():
        has = bool(experiment.logs("mini"))
        assert (f"results/mini/{experiment.name}.csv" in made) == has
        assert (f"figures/mini/{experiment.name}.svg" in made) == has
        assert {f"results/mini/{name}.jsonl" for name in experiment.logs("mini")} <= made
    assert not [path for path in made if "/fresh/" in path or re.search(r"/logged/.*\.jsonl", path)]


def test_ranks_run_under_torchrun_and_alone(plan: list[dict]) -> None:
    name = next(n for n in recipes.EXPERIMENTS["scaling"].mini if recipes.RUNS[n].parallel.world_size == 2)
    assert command(plan, f"results/mini/{name}.jsonl").startswith(
        "2: torchrun --standalone --nproc-per-node 2 --start-method fork --run-path taco/__main__.py"
        f" train {name} --source mini"
    )


def test_a_timed_run_of_one_rank_runs_alone(plan: list[dict]) -> None:
    name = next(n for n in recipes.EXPERIMENTS["scaling"].mini if recipes.RUNS[n].parallel.world_size == 1)
    assert command(plan, f"results/mini/{name}.jsonl").startswith(f"2: python -m taco train {name} --source mini")


def test_runs_of_one_rank_share_the_cores(plan: list[dict]) -> None:
    name = next(n for n in recipes.EXPERIMENTS["accuracy"].mini if n not in recipes.captures("mini"))
    assert command(plan, f"results/mini/{name}.jsonl").startswith(f"1: python -m taco train {name} --source mini")


def test_a_captured_run_keeps_its_tensors(plan: list[dict]) -> None:
    for name, steps in recipes.captures("mini").items():
        tensors = f"results/mini/captures/{name}"
        kept = f"--capture {tensors}/{{step}}.safetensors --capture-step {' '.join(map(str, steps))} "
        assert kept in command(plan, tensors)
        assert tensors in command(plan, "results/mini/distribution.jsonl")


def test_queued_runs_are_read_where_they_are_and_never_asked_for(checkout: Path) -> None:
    first, second = recipes.EXPERIMENTS["accuracy"].queued[:2]
    log = checkout / "results" / "logged" / f"{first}.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    made = outputs(planned(checkout, "results/logged/accuracy.csv"))
    assert made == {"results/logged/accuracy.csv"}
    (checkout / "data" / "raw" / "gpt2").mkdir(parents=True)
    for corpus in ("english-mix", "english-docs", "source-code"):
        (checkout / "data" / "raw" / f"{corpus}.txt.xz").write_text("")
    made = outputs(planned(checkout, "results/fresh/accuracy.csv"))
    assert f"results/fresh/{recipes.EXPERIMENTS['accuracy'].full[0]}.jsonl" in made
    assert not {f"results/fresh/{name}.jsonl" for name in (first, second)} & made


def test_a_run_waits_for_the_texts_it_reads(checkout: Path) -> None:
    name = next(n for n in recipes.EXPERIMENTS["accuracy"].queued if recipes.RUNS[n].data.other)
    (checkout / "data" / "raw" / "gpt2").mkdir(parents=True)
    for corpus in ("english-mix", "english-docs", "source-code"):
        (checkout / "data" / "raw" / f"{corpus}.txt.xz").write_text("")
    made = outputs(planned(checkout, f"results/fresh/{name}.jsonl"))
    assert {"data/english-docs/meta.json", "data/source-code/meta.json"} <= made


def test_logged_tables_are_made_from_the_logs_that_are_there(checkout: Path) -> None:
    experiment = recipes.EXPERIMENTS["accuracy"]
    log = checkout / "results" / "logged" / f"{experiment.full[0]}.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n")
    made = outputs(planned(checkout))
    assert {"results/logged/accuracy.csv", "figures/logged/accuracy.svg", "results/logged/claims.csv"} <= made
    assert "results/logged/threed.csv" not in made
    assert not [path for path in made if "/logged/" in path and path.endswith(".jsonl")]


def test_kernels_are_timed_by_fresh_runs_only_and_alone(checkout: Path, plan: list[dict]) -> None:
    for name in recipes.GPU_MEASURES:
        assert not [path for path in outputs(plan) if name in path]
        jobs = planned(checkout, f"results/fresh/{name}.jsonl")
        assert command(jobs, f"results/fresh/{name}.jsonl") == (
            f"2: {recipes.GPU_MEASURES[name].command} --source fresh > logs/fresh/{name}.log 2>&1"
        )
        assert "kernels/build/libtaco.so" in outputs(jobs)
        done = snakemake(checkout, "--cores", "1", "--dry-run", "--", f"results/mini/{name}.jsonl")
        assert "MissingRuleException" in done.stderr + done.stdout


def test_collectives_are_timed_on_the_transport_of_their_name() -> None:
    host, kernels = recipes.GPU_MEASURES["collective-host"], recipes.GPU_MEASURES["codec_speed"]
    assert host.command == (
        "NCCL_P2P_DISABLE=1 torchrun --standalone --nproc-per-node 2 -m taco measure collective --transport host"
    )
    assert kernels.command == "python -m taco measure codec_speed"
    for transport, settings in recipes.TRANSPORTS.items():
        assert recipes.GPU_MEASURES[f"collective-{transport}"].environment == settings


def test_a_logged_log_of_one_transport_is_enough_for_a_table(checkout: Path) -> None:
    (checkout / "results" / "logged").mkdir(parents=True)
    (checkout / "results" / "logged" / "collective-tcp.jsonl").write_text("{}\n")
    made = outputs(planned(checkout))
    assert {"results/logged/collective.csv", "figures/logged/collective.svg", "results/logged/claims.csv"} <= made


def test_a_logged_log_of_kernels_becomes_a_table_and_a_figure(checkout: Path) -> None:
    (checkout / "results" / "logged").mkdir(parents=True)
    (checkout / "results" / "logged" / "codec_speed.jsonl").write_text("{}\n")
    made = outputs(planned(checkout))
    assert {"results/logged/codec_speed.csv", "figures/logged/codec_speed.svg", "results/logged/claims.csv"} <= made
    assert "results/logged/codec_speed.jsonl" not in made


def test_no_rule_makes_a_logged_log(checkout: Path) -> None:
    name = recipes.EXPERIMENTS["accuracy"].full[0]
    done = snakemake(checkout, "--cores", "1", "--dry-run", "--", f"results/logged/{name}.jsonl")
    assert done.returncode != 0
    assert "MissingRuleException" in done.stderr + done.stdout


# Stands in for the command line: makes the file that a rule waits for.
FAKE_MAIN = """
import sys
from pathlib import Path

command, name, *rest = sys.argv[1:]
folder = Path(rest[rest.index("--out") + 1]) if command == "data" else Path("results", rest[rest.index("--source") + 1])
path = folder / ("meta.json" if command == "data" else f"{name}.jsonl")
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text("made")
"""


def test_a_changed_recipe_reruns_exactly_its_run(checkout: Path) -> None:
    package = checkout / "taco"
    shutil.copytree(ROOT / "taco", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__main__.py").write_text(FAKE_MAIN)
    names = [n for n in recipes.EXPERIMENTS["accuracy"].mini if n not in recipes.captures("mini")][:2]
    logs = [f"results/mini/{name}.jsonl" for name in names]
    done = snakemake(checkout, "--cores", "2", "--", *logs)
    assert done.returncode == 0, done.stderr
    assert planned(checkout, *logs) == []
    (package / "recipes" / "__init__.py").open("a").write(
        "from dataclasses import replace as _replace\n"
        f"_run = RUNS[{names[0]!r}]\n"
        f"RUNS[{names[0]!r}] = _replace(_run, train=_replace(_run.train, seed=99))\n"
    )
    assert [job["output"] for job in planned(checkout, *logs)] == [logs[0]]


def test_lint_is_clean(checkout: Path) -> None:
    done = snakemake(checkout, "--lint")
    assert done.returncode == 0, done.stdout + done.stderr
