"""The `fagen` command. Each command imports what it needs when it runs: --help and an unchanged build are fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..bench.texts import ROUNDS, TEXTS
from .output import errors_shown

_EXIT_CODES = """Exit codes: 0 done; 1 failed otherwise; 2 the spec or the command line is wrong; 3 the target cannot do
what the spec asks; 4 a compiler, ninja or a header is missing; 5 a rendered source did not compile; 6 a variant
computes a wrong number; 7 a folder cannot be written, its disk is full, or it is somebody else's; 130 interrupted; 143
terminated."""

app = typer.Typer(
    name="fagen",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecArgument = Annotated[Path, typer.Argument(help="A spec, as specs/cpu.yaml.", show_default=False)]
ModuleArgument = Annotated[
    str, typer.Argument(help="A published module's folder, or its name in --out.", show_default=False)
]
VariantOption = Annotated[
    list[str] | None, typer.Option("--variant", "-v", help="Only this one; may be repeated.", show_default=False)
]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="The folder that holds modules.")]
JsonOption = Annotated[bool, typer.Option("--json", help=TEXTS["json"])]
RoundsOption = Annotated[int, typer.Option(min=3, help=TEXTS["rounds"])]


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"fagen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Compile the attention you describe in YAML into checked PyTorch operators.

    \b
    fagen new my_model                       a commented spec to start from
    fagen build my_model.yaml                render, compile, check, publish generated/my_model
    python -c "from generated import my_model"
    """


@app.command()
def build(
    specs: Annotated[list[Path], typer.Argument(help="One spec or more.", show_default=False)],
    out: OutOption = Path("generated"),
    check: Annotated[str, typer.Option(help="auto (a minute or so), full, or off.")] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Compilers at once; else MAX_JOBS, else cores. Memory limits it too."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Check and publish again what is up to date.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Render, compile, check and publish the modules of specs.

    \b
    fagen build specs/cpu.yaml               publishes generated/cpu; again: "up to date" in a moment
    fagen build my.yaml --out ~/kernels      elsewhere
    fagen build my.yaml --check full         every case, however long it takes
    MAX_JOBS=2 fagen build my.yaml           at most two compilers at once
    fagen build my.yaml --json               what was built, seconds and memory per unit

    \b
    CXX names the compiler, FAGEN_CACHE_DIR the folder of compiled objects (else ~/.cache/fagen).
    """
    with errors_shown(as_json):
        from .building import build_all

        build_all(specs, out, check, jobs, force=force, as_json=as_json)


@app.command()
def check(
    module: ModuleArgument,
    variant: VariantOption = None,
    case: Annotated[str | None, typer.Option(help="Only this case, as a failed check names it.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of the inputs; a new one if not given.")] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Where kernels for cards run: device or emulator.", show_default="a card that fits, if any"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every case, however long it takes.")] = False,
    out: OutOption = Path("generated"),
    as_json: JsonOption = False,
) -> None:
    """Check a published module against its float64 oracle again, on new inputs.

    \b
    fagen check cpu                          all variants of generated/cpu, a new seed
    fagen check cpu -v causal_d64 --seed 7   one variant, given inputs
    fagen check cpu --full --json
    fagen check a100 --on emulator           on this CPU, whatever cards there are
    """
    with errors_shown(as_json):
        from .checking import check_again

        check_again(module, out, variant or [], case, seed, on, full=full, as_json=as_json)


@app.command()
def bench(
    module: ModuleArgument,
    variant: VariantOption = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help=TEXTS["size"], show_default="S1024 and S4096; on a card, --tokens 16384"),
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help=TEXTS["tokens"], show_default="16384 with --length")] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, help=TEXTS["length"], show_default="512, 2048, 8192 and 16384 with --tokens"),
    ] = None,
    grid: Annotated[list[str] | None, typer.Option(help=TEXTS["grid"], show_default=False)] = None,
    sustained: Annotated[
        float | None, typer.Option(metavar="SECONDS", help=TEXTS["sustained"], show_default=False)
    ] = None,
    graph: Annotated[bool, typer.Option("--graph", help=TEXTS["graph"])] = False,
    host: Annotated[bool, typer.Option("--host", help=TEXTS["host"])] = False,
    memory: Annotated[bool, typer.Option("--memory", help=TEXTS["memory"])] = False,
    schedules: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help=TEXTS["schedules"], show_default=False)
    ] = None,
    forward_only: Annotated[bool, typer.Option("--forward-only", help=TEXTS["forward_only"])] = False,
    backward_only: Annotated[bool, typer.Option("--backward-only", help=TEXTS["backward_only"])] = False,
    flex: Annotated[bool, typer.Option("--flex", help=TEXTS["flex"])] = False,
    rounds: RoundsOption = ROUNDS,
    write: Annotated[Path | None, typer.Option(help=TEXTS["write"], show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help=TEXTS["plot"], show_default=False)] = None,
    at_least: Annotated[list[str] | None, typer.Option(help=TEXTS["at_least"], show_default=False)] = None,
    out: OutOption = Path("generated"),
    as_json: JsonOption = False,
) -> None:
    """Measure a published module beside torch's own attention, in one run.

    \b
    fagen bench cpu
    fagen bench cpu -v causal_d64 --size B1,H8,S1024 --size B4,H32,Hk8,S4096
    fagen bench cpu --forward-only --plot bench.png --write bench.json
    fagen bench cpu --at-least forward=1.5 --at-least cell=0.95
    fagen bench a100 --tokens 16384 --length 512 --length 8192
    fagen bench h100 --grid standard --grid sustained --write h200-forward.json
    fagen bench h100_training --grid standard --backward-only --at-least cell/fastest=1
    fagen bench h100 --schedules a100 -v causal_d128 --length 8192

    \b
    A module for cards is measured on one: python3 -m fagen.bench FOLDER, with these options, needs torch alone.
    """
    with errors_shown(as_json):
        from ..bench.command import wish
        from .benching import bench_module
        from .listing import find_module

        wanted = wish(
            variants=variant or [],
            sizes=size or [],
            tokens=tokens,
            lengths=length or [],
            grids=grid or [],
            sustained=sustained,
            graph=graph,
            host=host,
            memory=memory,
            schedules=[find_module(each, out) for each in schedules or []],
            at_least=at_least or [],
            forward=not backward_only,
            backward=not forward_only,
            flex=flex,
            rounds=rounds,
            write=write,
            plot=plot,
            as_json=as_json,
        )
        bench_module(module, out, wanted)


@app.command()
def tune(
    spec: SpecArgument,
    variant: VariantOption = None,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Compile the candidates, measure nothing.")
    ] = False,
    measure: Annotated[
        Path | None, typer.Option(help="Measure the candidates in this folder, compile nothing.", show_default=False)
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(
            help="Write what python3 -m fagen.tune measured elsewhere: its results.jsonl.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds, of each step, after which nothing more is begun; the same command goes on from there.",
            show_default="as long as it takes",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(min=1, help="Candidates of a variant: those most like the planner's own.", show_default="all"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where candidates are compiled.", show_default="OUT/.fagen/tune/NAME")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Where measurements are kept.", show_default="FOLDER/results.jsonl")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="As B1,H8,Hk2,S4096; may be repeated.", show_default="as of fagen bench")
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Sequences of this length, of 16384 tokens in all.", show_default="as of fagen bench"),
    ] = None,
    rounds: RoundsOption = ROUNDS,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Compilers at once, as of fagen build.")
    ] = None,
    out: OutOption = Path("generated"),
    as_json: JsonOption = False,
) -> None:
    """Measure what the planner may choose for each variant, and write down the fastest.

    \b
    fagen tune specs/cpu.yaml                writes specs/cpu.tuning.yml, which the next build reads
    fagen tune my.yaml -v local --most 12    one variant, the twelve candidates nearest to the planner's choice
    fagen tune my.yaml --budget 600          ten minutes of compiling, ten of measuring; again: goes on from there

    \b
    Where the compiler and the card are on different machines:
    fagen tune specs/h100.yaml --compile-only --folder h100-candidates
    python3 -m fagen.tune h100-candidates    there; needs torch alone
    fagen tune specs/h100.yaml --read h100-candidates/results.jsonl

    \b
    A candidate that fails the check never wins; tiles in the spec itself win over the file.
    """
    with errors_shown(as_json):
        from .tuning import Steps, tune_spec

        steps = Steps(
            variants=variant or [],
            folder=folder,
            compile_only=compile_only,
            measure=measure,
            read=read,
            results=results,
            budget=budget,
            most=most,
            jobs=jobs,
            sizes=size or [],
            lengths=length or [],
            rounds=rounds,
            as_json=as_json,
        )
        tune_spec(spec, out, steps)


@app.command()
def explain(
    variant: Annotated[str, typer.Argument(help="The variant's name.", show_default=False)],
    spec: Annotated[
        Path | None, typer.Option(help="Its spec; else it is looked for in --out, then in the ready specs.")
    ] = None,
    size: Annotated[str, typer.Option(help="The size to count for, as B1,H8,Hk2,S4096.")] = "B1,H8,S1024",
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that holds modules, or that of one.")] = Path(
        "generated"
    ),
    as_json: JsonOption = False,
) -> None:
    """Print a variant's plan and why, the tile map of its mask, and what it moves and computes.

    \b
    fagen explain causal_d64
    fagen explain gemma2_local --spec specs/zoo.yaml --size B1,H8,Hk4,S8192
    fagen explain causal_d64 --out generated/a100
    """
    with errors_shown(as_json):
        from .explaining import explain_variant

        explain_variant(variant, spec, size, out, as_json=as_json)


@app.command("list")
def list_(
    what: Annotated[
        str | None, typer.Argument(help="A spec or a module; all modules and ready specs if not given.")
    ] = None,
    out: OutOption = Path("generated"),
    as_json: JsonOption = False,
) -> None:
    """List published modules and ready specs, or the variants of one.

    \b
    fagen list
    fagen list cpu                           the variants of generated/cpu
    fagen list specs/cpu.yaml                the variants a build would make
    """
    with errors_shown(as_json):
        from .listing import list_all, list_one

        if what is None:
            list_all(out, as_json=as_json)
        else:
            list_one(what, out, as_json=as_json)


@app.command()
def render(
    spec: SpecArgument,
    variant: VariantOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write files to this folder instead of printing.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", hidden=True)] = None,  # what --out was called
    as_json: JsonOption = False,
) -> None:
    """Print the C++ that a spec becomes; compile nothing.

    \b
    fagen render specs/cpu.yaml -v causal_d64
    fagen render specs/cpu.yaml --out /tmp/sources
    """
    with errors_shown(as_json):
        from .rendering import render_spec

        render_spec(spec, variant or [], out or to, as_json=as_json)


@app.command()
def schema(as_json: JsonOption = True) -> None:
    """Print the JSON Schema of specs, for editors. It is JSON with or without --json.

    \b
    fagen schema > fagen.schema.json
    """
    with errors_shown(False):
        from ..spec import schema as spec_schema
        from .output import print_json

        print_json(spec_schema())


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say whether everything a build needs is here, and how to mend what is not.

    \b
    fagen doctor
    fagen doctor --json
    """
    with errors_shown(as_json):
        from .doctor import doctor as examine_all

        code = examine_all(as_json)
    raise typer.Exit(code)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The module's name, as my_model.", show_default=False)],
    config: Annotated[
        Path | None, typer.Option("--from", help="A Hugging Face model's config.json.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write.", show_default="NAME.yaml")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a spec to start from: a commented one, or the one that a model's layers need.

    \b
    fagen new my_model
    fagen new gemma --from ~/gemma-2-9b/config.json --out specs/models/gemma.yaml
    """
    with errors_shown(as_json):
        from .new import new_spec
        from .output import print_json

        path = new_spec(name, config, out or Path(f"{name}.yaml"), force=force)
        if as_json:
            print_json({"ok": True, "spec": str(path)})
        else:
            typer.echo(f"wrote {path}; next: fagen build {path}")


def main() -> None:
    """The entry point of the `fagen` script."""
    app(prog_name="fagen")
