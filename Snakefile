# The artifact as one graph: kernels, runs, tables, figures, verdicts.
#   snakemake --cores all           kernels + every mini run + the tables, figures and verdicts of `mini` and `logged`
#   snakemake --cores all fresh     the full-size runs again, on this machine's GPUs
# The source of a number is in its path: results/{source}/<run>.jsonl -> results/{source}/<experiment>.csv ->
# figures/{source}/<experiment>.svg. Logs of `logged` are inputs only: Snakemake deletes a failed job's outputs.

import json
import sys
from dataclasses import asdict
from pathlib import Path

from snakemake.utils import min_version

from taco import recipes
from taco.config import to_dict

min_version("9.19")

# One thread a process: the runs share the cores. PATH: this Python's torchrun also where its environment is not active.
shell.prefix(f"export PATH={Path(sys.executable).parent}:$PATH OMP_NUM_THREADS=1; ")

LIBRARY = "kernels/build/libtaco.so"
CAPTURED = {run for source in recipes.SOURCES for run in recipes.captures(source)}
TIMED = {run for s in recipes.SOURCES for run in recipes.EXPERIMENTS["scaling"].runs(s)}
TIMES = recipes.GPU_MEASURES
PRESETS = [to_dict(codec) for codec in recipes.PRESETS.values()]


def canonical(value):
    """The text of a recipe; another text reruns what is made from it."""
    return json.dumps(value, sort_keys=True)


def logs(source, experiment):
    """The logs of a table. Of `logged` and of queued runs those that are there: the table says which are missing."""
    wanted = recipes.EXPERIMENTS[experiment]
    made = wanted.logs(source) if source != "logged" else ()
    names = dict.fromkeys(wanted.logs(source) + wanted.optional(source))
    paths = {name: f"results/{source}/{name}.jsonl" for name in names}
    return [p for name, p in paths.items() if name in made or Path(p).exists()]


def captures(source):
    return [f"results/{source}/captures/{run}" for run in recipes.captures(source)]


def threads_of(wildcards):
    """All cores for a run whose time counts or that starts ranks of its own, and for every run on a GPU."""
    ranks = recipes.RUNS[wildcards.run].parallel.world_size
    alone = ranks > 1 or wildcards.run in TIMED or wildcards.source == "fresh"
    return max(ranks, workflow.cores or 1) if alone else 1


def launcher(wildcards):
    """What starts the ranks; of mini forked from one that has imported torch, as a CUDA context cannot be."""
    ranks = recipes.RUNS[wildcards.run].parallel.world_size
    if ranks == 1:
        return "python -m taco"
    torchrun = f"torchrun --standalone --nproc-per-node {ranks}"
    forked = " --start-method fork --run-path taco/__main__.py"
    return torchrun + (forked if wildcards.source == "mini" else " -m taco")


def corpora_of(wildcards):
    return expand("{folder}/meta.json", folder=recipes.RUNS[wildcards.run].data.folders)


def recipe_of(wildcards):
    return canonical(to_dict(recipes.RUNS[wildcards.run]))


def gpus_of(wildcards):
    ranks = recipes.RUNS[wildcards.run].parallel.world_size
    return ranks if wildcards.source == "fresh" else 0


def tables(source):
    names = [e for e in recipes.EXPERIMENTS if logs(source, e)]
    return expand("results/{source}/{name}.csv", source=source, name=names)


def paper(source):
    """Tables, figures and verdicts of a source; nothing of an experiment that the source has no log of."""
    names = [f"figures/{source}/{Path(table).stem}" for table in tables(source)]
    figures = expand("{name}.{form}", name=names, form=["svg", "png"])
    verdicts = [f"results/{source}/claims.csv"] if names else []
    return tables(source) + figures + verdicts


wildcard_constraints:
    corpus="english-mix|english-docs|source-code",
    source="|".join(recipes.SOURCES),
    experiment="|".join(recipes.EXPERIMENTS),
    measure="|".join(recipes.MEASURES),
    run="|".join(recipes.RUNS),


localrules:
    all,
    fresh,


rule all:
    input:
        LIBRARY,
        paper("mini"),
        paper("logged"),


rule fresh:
    input:
        LIBRARY,
        paper("fresh"),


rule kernels:
    """One library for every supported GPU and every torch."""
    input:
        sorted(
            str(p)
            for p in Path("kernels").iterdir()
            if p.suffix in (".cu", ".cuh", ".cpp", ".h")
        ),
    output:
        LIBRARY,
    log:
        "logs/kernels.log",
    conda:
        "envs/conda.yaml"
    threads: 2
    shell:
        "python -m taco kernels build --out {output} --jobs {threads} > {log} 2>&1"


rule corpus_mini:
    """The State of the Union texts of this repository as tokens."""
    output:
        "data/sotu-mini/meta.json",
    log:
        "logs/corpus-mini.log",
    conda:
        "envs/conda.yaml"
    shell:
        "python -m taco data sotu-mini --out $(dirname {output}) > {log} 2>&1"


rule corpus_fresh:
    """A text for full-size runs (ARTIFACT.md says which) in GPT-2's tokens."""
    input:
        text="data/raw/{corpus}.txt.xz",
        tokenizer="data/raw/gpt2",
    output:
        "data/{corpus}/meta.json",
    log:
        "logs/corpus-{corpus}.log",
    conda:
        "envs/conda.yaml"
    threads: workflow.cores or 8
    shell:
        "python -m taco data prepare {input.text} --tokenizer gpt2 --tokenizer-files {input.tokenizer}"
        " --threads {threads} --overwrite --out $(dirname {output}) > {log} 2>&1"


rule train:
    """One training run, real ranks under torchrun."""
    input:
        corpora_of,
    output:
        "results/{source}/{run}.jsonl",
    log:
        "logs/{source}/{run}.log",
    wildcard_constraints:
        source="mini|fresh",
        run="|".join(sorted(set(recipes.RUNS) - CAPTURED)),
    conda:
        "envs/conda.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
    params:
        recipe=recipe_of,
        launcher=launcher,
    shell:
        "{params.launcher} train {wildcards.run} --source {wildcards.source} --on-mismatch restart > {log} 2>&1"


rule train_captured:
    """A run that also keeps the tensors of some steps, for the measurements on real data."""
    input:
        corpora_of,
    output:
        log="results/{source}/{run}.jsonl",
        captures=directory("results/{source}/captures/{run}"),
    log:
        "logs/{source}/{run}.log",
    wildcard_constraints:
        source="mini|fresh",
        run="|".join(sorted(CAPTURED)),
    conda:
        "envs/conda.yaml"
    threads: threads_of
    resources:
        gpu=gpus_of,
    params:
        recipe=recipe_of,
        launcher=launcher,
        steps=lambda w: " ".join(map(str, recipes.captures(w.source)[w.run])),
    shell:
        "{params.launcher} train {wildcards.run} --source {wildcards.source} --on-mismatch restart"
        " --capture {output.captures}/{{step}}.safetensors --capture-step {params.steps} > {log} 2>&1"


rule measure:
    """One measurement of codecs, on synthetic and captured tensors."""
    input:
        lambda w: captures(w.source) if w.measure in recipes.CAPTURE_MEASURES else [],
    output:
        "results/{source}/{measure}.jsonl",
    log:
        "logs/{source}/{measure}.log",
    wildcard_constraints:
        source="mini|fresh",
        measure="|".join(sorted(set(recipes.MEASURES) - set(TIMES))),
    conda:
        "envs/conda.yaml"
    params:
        recipe=canonical(PRESETS),
        captures=lambda wildcards, input: f"--captures {input}" if input else "",
    shell:
        "python -m taco measure {wildcards.measure} --source {wildcards.source} {params.captures} > {log} 2>&1"


rule measure_kernels:
    """One measurement of kernels' or collectives' times: alone on the machine, on its GPUs."""
    input:
        LIBRARY,
    output:
        "results/{source}/{measure}.jsonl",
    log:
        "logs/{source}/{measure}.log",
    wildcard_constraints:
        source="fresh",
        measure="|".join(TIMES),
    conda:
        "envs/conda.yaml"
    threads: workflow.cores or 1
    resources:
        gpu=lambda wildcards: TIMES[wildcards.measure].ranks,
    params:
        recipe=lambda w: canonical([asdict(TIMES[w.measure].grid), *PRESETS]),
        command=lambda wildcards: TIMES[wildcards.measure].command,
    shell:
        "{params.command} --source {wildcards.source} > {log} 2>&1"


rule table:
    """Logs -> numbers."""
    input:
        lambda wildcards: logs(wildcards.source, wildcards.experiment),
    output:
        "results/{source}/{experiment}.csv",
    log:
        "logs/{source}/{experiment}-table.log",
    conda:
        "envs/conda.yaml"
    params:
        recipe=lambda w: canonical(asdict(recipes.EXPERIMENTS[w.experiment])),
    shell:
        "python -m taco tables {wildcards.experiment} --source {wildcards.source} > {log} 2>&1"


rule figure:
    """Numbers -> a figure that holds none of its own."""
    input:
        "results/{source}/{experiment}.csv",
    output:
        svg="figures/{source}/{experiment}.svg",
        png="figures/{source}/{experiment}.png",
    log:
        "logs/{source}/{experiment}-figure.log",
    conda:
        "envs/conda.yaml"
    shell:
        "python -m taco figures {wildcards.experiment} --source {wildcards.source} > {log} 2>&1"


rule claims:
    """Numbers -> one verdict per claim."""
    input:
        lambda wildcards: tables(wildcards.source),
    output:
        "results/{source}/claims.csv",
    log:
        "logs/{source}/claims.log",
    conda:
        "envs/conda.yaml"
    params:
        recipe=canonical([asdict(c) for c in recipes.CLAIMS]),
    shell:
        "python -m taco claims --source {wildcards.source} > {log} 2>&1"
