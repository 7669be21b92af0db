"""The `ease` command. Commands import torch and timm when they run, so that help and completion are fast."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ease import __version__
from ease.cli import check, classify, inbox, lists, models, paper, predict, runs, serve, share
from ease.cli.ending import INTERRUPTED, end_once, leave
from ease.cli.options import with_address
from ease.errors import EaseError, one_line
from ease.filesystem import explain

UNSAID = 1
"""The exit code where a command did its work but could not print what came of it."""
_NO_ROOM = (errno.ENOSPC, errno.EIO, errno.EFBIG)

app = typer.Typer(
    name="ease",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Image classifiers that learn new classes at any time, without the old images.

    Learn the classes of a folder of photos, then name what a new photo shows:

    [bold]  ease learn photos --model model[/]
    [bold]  ease predict new.jpg --model model[/]

    Measure a method of class-incremental learning on a stream of classes:

    [bold]  ease run --dataset digits --protocol "B0 Inc2" --out runs/first[/]
    """,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    pass


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Classify": {
        "check": check.check,
        "learn": classify.learn,
        "predict": predict.predict,
        "serve": serve.serve,
        "correct": inbox.correct,
        "inbox": inbox.inbox,
        "rename": classify.rename,
        "forget": classify.forget,
        "rollback": classify.rollback,
    },
    "Experiments": {
        "run": runs.run,
        "study": runs.study,
        "paper": paper.paper,
        "report": runs.report,
        "compare": runs.compare,
        "verify": models.verify,
    },
    "Models": {
        "info": models.info,
        "eval": models.evaluate,
        "compact": models.compact,
        "export": share.export,
        "pack": share.pack,
        "unpack": share.unpack,
        "push": share.push,
        "pull": share.pull,
        "card": share.card,
    },
}
"""Commands by the panel of `ease --help` in which they are listed."""
for panel, commands in COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)
app.add_typer(lists.list_app, name="list", rich_help_panel="Lists")
app.add_typer(lists.datasets_app, name="datasets", rich_help_panel="Lists")
for name, command in lists.LISTS.items():  # the older names of 'ease list NAME'
    if name != "datasets":
        app.command(name, hidden=True)(command)


@functools.cache
def parser() -> Any:
    """What reads a command line. It is built once: to look at the signatures of all commands takes its time."""
    return typer.main.get_command(app)


def script() -> None:
    """The console script: `main`, and then the end of the process."""
    end_once()
    try:
        main()
    except SystemExit as leaving:
        leave(leaving.code if isinstance(leaving.code, int) else 0)


def main() -> None:
    """A command, as `sys.argv` has it. It ends with `SystemExit`.

    An error is one line and exit code 2, with a traceback only if --debug is given.
    """
    debug = "--debug" in sys.argv
    _open_closed_streams()
    _show_all_characters()
    _quiet_pillow()
    try:
        _check_folder()
        _check_words(sys.argv[1:])
        code = int(parser()(with_address(sys.argv[1:]), standalone_mode=False) or 0)
        if code == INTERRUPTED:  # typer has caught Ctrl-C itself
            raise KeyboardInterrupt
        sys.stdout.flush()  # a full disk is found here, not when the interpreter ends
        sys.exit(code)
    except EaseError as error:
        if debug:
            raise
        _fail(f"error: {error}")
    except KeyboardInterrupt:
        _fail(_interrupted(sys.argv[1:]), INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        _discard_output()
        sys.exit(UNSAID)
    except MemoryError:
        if debug:
            raise
        _fail("error: there is not enough memory for this: use a smaller input, or a machine with more")
    except OSError as error:
        if debug:
            raise
        if error.filename is None and error.errno in _NO_ROOM and _output_fails():
            reason = os.strerror(error.errno).lower()
            _fail(
                f"error: the output cannot be written ({reason}); what the command has changed stays changed",
                UNSAID,
            )
        _fail(f"error: {explain('use', error.filename or 'a file', error)}")
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C in older versions of typer
            _fail(_interrupted(sys.argv[1:]), INTERRUPTED)
        # Usage errors of the option parser carry their own message.
        message = getattr(error, "format_message", None)
        if debug or message is None:
            raise
        _fail(f"error: {one_line(message())} (see --help)")


def _interrupted(words: list[str]) -> str:
    """What to do after Ctrl-C."""
    if words[:1] == ["run"]:
        return "interrupted: a run continues with 'ease run --resume DIR'"
    if words[:1] in (["study"], ["paper"]):
        return "interrupted: the same command goes on"
    return "interrupted"


def _open_closed_streams() -> None:
    """A shell may start a command with closed streams (`>&-`); a file opened later would take the place of one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _show_all_characters() -> None:
    """Print a name that the terminal's encoding lacks, or that is no text at all, with escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet_pillow() -> None:
    """Pillow's remarks about damaged images: what cannot be used is an error, in one line of ours."""
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"PIL\..*")


def _check_folder() -> None:
    """Refuse to work in a folder that is gone, before torch does, whose words are of its own files."""
    try:
        os.getcwd()
    except OSError as error:
        raise EaseError("the current folder was removed or cannot be read: go to another one (cd)") from error


def _check_words(words: list[str]) -> None:
    """Refuse empty words: a shell variable that is not set leaves one, and as a path it means the current folder."""
    for at, word in enumerate(words):
        if not word or (word.startswith("--") and word.endswith("=")):
            where = word[:-1] or (words[at - 1] if at else "the command")
            raise EaseError(f"the value after '{where}' is empty: is a shell variable not set?")


def _fail(line: str, code: int = 2) -> None:
    with contextlib.suppress(OSError):  # stderr itself may be what cannot be written
        print(one_line(line), file=sys.stderr, flush=True)
    _discard_output()
    sys.exit(code)


def _output_fails() -> bool:
    """Whether it is the output that cannot be written, and not a file."""
    try:
        if getattr(sys.stdout, "write_through", False):  # what could not be written is not there any more
            sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """Make the interpreter's last flush succeed if stdout or stderr cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    script()
