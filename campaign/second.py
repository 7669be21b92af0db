"""A second campaign of faults, by somebody who knows the documentation but not the code.

    python -m campaign.second --seed 7                       # all families, about 45 minutes on two cores
    python -m campaign.second --seed 7 --families images,http
    python -m campaign.second --seed 7 --only images/1a2b    # the cases whose name contains this; folders are kept

Every input is made from the seed. The end is a JSON document with counts by family and every violation with its
command; the exit code is 1 if there was one. Only 127.0.0.1 is used, and only a temporary folder is written to.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import shutil
import stat
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from campaign.outside import archives, commands, folders, images, inboxes, models, records, server, tables
from campaign.outside.case import Case, run
from campaign.outside.fixtures import Fixtures, build

SOURCE = Path(__file__).resolve().parents[1] / "src"
FAMILIES = {
    "commands": commands.cases,
    "images": images.cases,
    "folders": folders.cases,
    "models": models.cases,
    "archives": archives.cases,
    "records": records.cases,
    "tables": tables.cases,
    "inboxes": inboxes.cases,
}


def collect(families: list[str], seed: int, fixtures: Fixtures) -> list[Case]:
    """All cases of the families, mixed, so that a run that is short of time has some of each."""
    found = [case for family in families for case in FAMILIES[family](seed, fixtures)]
    random.Random(seed).shuffle(found)
    return found


def name_of(case: Case) -> str:
    """A short name that stays the same if other cases are added."""
    text = repr((case.label, case.argv, sorted(case.env.items())))
    return f"{case.family}/{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def clear(folder: Path) -> None:
    """Remove a folder although rights in it were taken away."""
    for root, names, _ in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.lstat(path).st_mode):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def work(
    cases: list[Case], options: argparse.Namespace, fixtures: Fixtures, share: int, results: Path
) -> None:
    """Run every n-th case, each in a fork of this process, which has imported everything."""
    sys.path.insert(0, str(SOURCE))
    import ease

    for module in pkgutil.walk_packages(ease.__path__, "ease."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)
    from PIL import Image

    Image.init()
    importlib.import_module("torch").set_num_threads(1)
    ends = time.monotonic() + options.minutes * 60
    with results.open("w") as file:
        for at, case in enumerate(cases):
            if at % options.workers != share or (
                options.only and options.only not in name_of(case) + case.label
            ):
                continue
            if time.monotonic() > ends:
                file.write(json.dumps({"family": case.family, "skipped": True}) + "\n")
                continue
            folder = fixtures.root / f"cases-{os.getppid()}" / f"{share}-{at}"
            folder.mkdir(parents=True)
            folder.chmod(0o755)
            facts = {"family": case.family, "name": name_of(case), "label": case.label, "inputs": case.inputs}
            facts["command"] = repr(["ease", *case.argv])[:600]
            try:
                facts.update(run(case, folder, SOURCE))
            except Exception as error:
                facts.update(
                    code=-999, memory=0, seconds=0, violations=[], own=f"{type(error).__name__}: {error}"
                )
            file.write(json.dumps(facts) + "\n")
            file.flush()
            if not options.only:
                clear(folder)


def summary(rows: list[dict]) -> dict:
    """Counts by family, and the violations."""
    families: dict[str, dict] = {}
    for row in rows:
        facts = families.setdefault(
            row["family"],
            {"inputs": 0, "codes": Counter(), "violations": 0, "of_style": 0, "peak_mb": 0, "slowest": 0},
        )
        if row.get("skipped"):
            facts["skipped"] = facts.get("skipped", 0) + 1
            continue
        facts["inputs"] += row["inputs"]
        facts["codes"][str(row["code"])] += row["inputs"]
        only_style = all(text.startswith("style: ") for text in row["violations"])
        facts["violations"] += bool(row["violations"]) and not only_style
        facts["of_style"] += bool(row["violations"]) and only_style
        facts["peak_mb"] = max(facts["peak_mb"], row["memory"] >> 20)
        facts["slowest"] = max(facts["slowest"], row["seconds"])
    return {
        "inputs": sum(facts["inputs"] for facts in families.values()),
        "families": families,
        "violations": [
            {key: row.get(key) for key in ("name", "label", "command", "code", "violations", "stderr")}
            for row in rows
            if row.get("violations")
        ],
        "errors_of_the_campaign": [row for row in rows if row.get("own")],
    }


def main() -> int:
    """Run the campaign as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--families", default=",".join([*FAMILIES, "http"]))
    parser.add_argument("--only", default="", help="run only cases whose name or label contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=45, help="after this the rest is counted as skipped")
    parser.add_argument("--fixtures", type=Path, help="folder of fixtures to reuse, or to make")
    options = parser.parse_args()
    families = options.families.split(",")
    if set(families) - {*FAMILIES, "http"}:
        parser.error(f"families: {', '.join([*FAMILIES, 'http'])}")
    root = options.fixtures or Path(tempfile.mkdtemp(prefix="second-"))
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    fixtures = Fixtures(root) if (root / "answers.json").exists() else build(root, SOURCE)
    (root / "mpl").mkdir(exist_ok=True)
    (root / "mpl").chmod(0o777)
    rows: list[dict] = []
    local = [family for family in families if family != "http"]
    if local:
        context = multiprocessing.get_context("fork")
        cases = collect(local, options.seed, fixtures)
        parts = [root / f"results-{os.getpid()}-{share}.jsonl" for share in range(options.workers)]
        processes = [
            context.Process(target=work, args=(cases, options, fixtures, share, part))
            for share, part in enumerate(parts)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if not options.only:
            clear(root / f"cases-{os.getpid()}")
        rows += [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    if "http" in families:
        found = server.campaign(options.seed, fixtures, SOURCE, options.only)
        part = root / f"results-{os.getpid()}-http.jsonl"
        part.write_text("".join(json.dumps(row) + "\n" for row in found))
        rows += found
    document = summary(rows)
    print(json.dumps(document, indent=1))
    if not options.fixtures and not options.only:
        clear(root)
    return 1 if document["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
