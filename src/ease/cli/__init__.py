"""The `ease` command. Heavy imports (torch, timm) live inside the commands: help and completion must answer at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ease import __version__
from ease.cli import grow, lists, models, paper, runs, serve, share
from ease.errors import EaseError
from ease.filesystem import explain

INTERRUPTED = 130

app = typer.Typer(
    name="ease",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Class-incremental learning with a frozen ViT: one light adapter per task, no old image kept.

    Start with:  ease run --dataset digits --protocol "B0 Inc2" --out runs/first

    Then look at runs/first/report.html. What can be named: ease methods, ease datasets, ease backbones,
    ease presets. A run that was stopped continues with: ease run --resume runs/first
    """,
)


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


COMMANDS: dict[str, Callable[..., None]] = {
    "learn": grow.learn,
    "predict": grow.predict,
    "rename": grow.rename,
    "forget": grow.forget,
    "rollback": grow.rollback,
    "serve": serve.serve,
    "run": runs.run,
    "study": runs.study,
    "paper": paper.paper,
    "report": runs.report,
    "compare": runs.compare,
    "eval": models.evaluate,
    "info": models.info,
    "compact": models.compact,
    "verify": models.verify,
    "export": share.export,
    "pack": share.pack,
    "unpack": share.unpack,
    "methods": lists.methods,
    "backbones": lists.backbones,
    "studies": lists.studies,
    "presets": lists.presets,
}
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(lists.datasets_app, name="datasets")


def main() -> None:
    """The console script: errors as one line, exit code 2, no traceback unless --debug."""
    debug = "--debug" in sys.argv
    try:
        _check_words(sys.argv[1:])
        code = int(app(standalone_mode=False) or 0)
        if code == INTERRUPTED:  # typer has caught Ctrl-C itself
            raise KeyboardInterrupt
        sys.exit(code)
    except EaseError as error:
        if debug:
            raise
        _fail(f"error: {error}")
    except KeyboardInterrupt:
        _fail("interrupted: a run continues with 'ease run --resume DIR'", INTERRUPTED)
    except OSError as error:
        if debug:
            raise
        _fail(f"error: {explain('use', error.filename or 'a file', error)}")
    except Exception as error:
        if type(error).__name__ == "Abort":  # how older versions of typer tell of Ctrl-C
            _fail("interrupted: a run continues with 'ease run --resume DIR'", INTERRUPTED)
        # Usage errors of the option parser carry their own message.
        message = getattr(error, "format_message", None)
        if debug or message is None:
            raise
        _fail(f"error: {' '.join(message().split())} (see --help)")


def _check_words(words: list[str]) -> None:
    """A variable of the shell that is not set leaves an empty word, which as a path would mean the folder one is in."""
    for at, word in enumerate(words):
        if not word or (word.startswith("--") and word.endswith("=")):
            where = word[:-1] or (words[at - 1] if at else "the command")
            raise EaseError(f"the value after '{where}' is empty: is a variable of the shell not set?")


def _fail(line: str, code: int = 2) -> None:
    print(line, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
