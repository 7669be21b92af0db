"""What `.ci/run` does about the browser that the tests of the page need, with stand-ins for other programs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"
USED = ("bash", "dirname", "mktemp", "tee", "grep", "tail", "rm", "cat", "chmod", "awk")

if shutil.which("bash") is None:
    pytest.skip("there is no bash", allow_module_level=True)


class Machine:
    """A machine with the few programs that the script needs; what they were called with is in a file."""

    def __init__(self, root: Path) -> None:
        self.programs, self.calls = root / "bin", root / "calls"
        self.programs.mkdir()
        (root / "repo" / ".ci").mkdir(parents=True)
        self.script = shutil.copy(RUN, root / "repo" / ".ci" / "run")
        for name in USED:
            (self.programs / name).symlink_to(str(shutil.which(name)))
        self.add("id", "echo 0")
        self.add("env", 'while [[ "$1" == *=* ]]; do shift; done; "$@"')
        self.tests("700 passed, 22 skipped in 300.00s (0:05:00)")

    def add(self, name: str, text: str) -> None:
        program = self.programs / name
        program.write_text(f'#!{self.programs}/bash\necho "{name} $*" >> {self.calls}\n{text}\n')
        program.chmod(0o755)

    def tests(self, summary: str, code: int = 0) -> None:
        self.add("make", f'if [ "$1" = test ]; then echo "{summary}"; exit {code}; fi')

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.programs / "bash", self.script],
            env={"PATH": str(self.programs), "EASE_SHARED": "/nowhere"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def called(self) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if not line.startswith(("id", "env"))]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


INSTALL = "apt-get install -y -qq --no-install-recommends chromium"


def test_a_browser_that_is_missing_is_installed_before_the_tests(machine: Machine) -> None:
    browser = machine.programs / "chromium"
    machine.add("apt-get", f'if [ "$1" = install ]; then echo > {browser}; chmod +x {browser}; fi')
    machine.tests("722 passed in 300.00s")
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert machine.called() == ["apt-get update -qq", INSTALL, "make test", "make lint"]
    assert done.stderr == ""


def test_a_browser_that_is_there_is_left_alone(machine: Machine) -> None:
    machine.add("chromium", "")
    machine.add("apt-get", "exit 1")
    done = machine.run()
    assert machine.called() == ["make test", "make lint"]
    assert done.stderr == "NOTE: 22 skipped; the reasons are above.\n"


def test_what_both_calls_of_pytest_skip_is_added_up(machine: Machine) -> None:
    machine.add("chromium", "")
    machine.tests("700 passed, 22 skipped in 300.00s\n8 passed, 3 skipped, 7 deselected in 70.00s")
    assert machine.run().stderr == "NOTE: 25 skipped; the reasons are above.\n"
    machine.tests("722 passed in 300.00s\n11 passed, 7 deselected in 70.00s")
    assert machine.run().stderr == ""


def test_the_tests_on_a_cluster_are_part_of_what_ci_runs() -> None:
    told = (RUN.parents[1] / "Makefile").read_text().partition("\ntest:")[2].partition("\n\n")[0]
    calls = [line for line in told.splitlines() if "-m pytest" in line]
    assert ["tests/cluster" in call for call in calls] == [True, True]
    assert [call.endswith("--ignore tests/cluster") for call in calls] == [True, False]


@pytest.mark.parametrize("package", ["no network", "no package", "no apt"])
def test_tests_that_were_skipped_without_a_browser_are_said_loudly(machine: Machine, package: str) -> None:
    if package == "no network":
        machine.add("apt-get", "exit 100")
    if package == "no package":
        machine.add("apt-get", '[ "$1" != install ]')
    done = machine.run()
    assert done.returncode == 0
    assert "WARNING" in done.stderr
    assert "TESTS OF THE WEB PAGE WERE SKIPPED (22 skipped in all)" in done.stderr
    assert machine.called()[-2:] == ["make test", "make lint"]


def test_tests_that_fail_end_it(machine: Machine) -> None:
    machine.add("chromium", "")
    machine.tests("1 failed, 699 passed in 300.00s", code=2)
    assert machine.run().returncode == 2
    assert machine.called() == ["make test"]
