"""The command ``anabranch-lab``: list claims, run them, check them, draw them; write the numbers of documents.

Results go to stdout, everything else to stderr. Exit codes: 0 done and all values as published, 1 a
value is not as published or a step failed, 2 wrong usage, 130 interrupted. Read `main` first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from anabranch_lab import claims as claims_
from anabranch_lab import documents, records
from anabranch_lab.batches import RunError
from anabranch_lab.claims import Claim, ClaimError, Row
from anabranch_lab.results import SWEEP, Result
from anabranch_lab.tree import VARIABLE, ChangedTreeError, refuse_changes

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Parameters
    ----------
    arguments
        The command line; this process's if left out.

    Returns
    -------
    int
        The exit code.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (RunError, ChangedTreeError) as error:
        print(f"anabranch-lab: {error}", file=sys.stderr)
        return FAILED
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        # Claims, scenarios and the binary raise these, each with its one line.
        print(f"anabranch-lab: {error}", file=sys.stderr)
        return WRONG
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does. Python flushes once more at its end, so stdout
        # becomes the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        print("anabranch-lab: interrupted: what was whole is kept, the same command goes on there", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch-lab", description="Claims about published values: list, run, check and draw them."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, command, text in (
        ("list", _list, "The claims there are"),
        ("run", _run, "Run claims and keep their rows as run directories"),
        ("check", _check, "Run claims and compare each value with what was published"),
        ("figures", _figures, "Run claims and draw their figures beside the published points"),
    ):
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(command=command)
        verb.add_argument("claims", nargs="*", metavar="CLAIM", help="all without")
        verb.add_argument(
            "--experiments", metavar="DIR", help="the folder of claims; the nearest `experiments` without"
        )
        if name in ("list", "check"):
            verb.add_argument("--json", action="store_true", help="one JSON object a line on stdout")
        if name == "list":
            continue
        verb.add_argument("--full", action="store_true", help="everything rather than a sample")
        verb.add_argument("--cluster", metavar="ADDRESS", help="a Dask scheduler, as tcp://host:8786, or `local`")
        verb.add_argument("--binary", metavar="PATH", help="the anabranch binary")
        verb.add_argument(
            "--jobs", type=int, metavar="COUNT", help="processes at a time; as many as processors without"
        )
        verb.add_argument("-q", "--quiet", action="store_true", help="no progress bar")
        if name == "check":
            known = "exit with 0 although values are not as published, if they are as they were last recorded"
            verb.add_argument("--known", action="store_true", help=known)
            record = "write ours into expected.csv (with --full) or sample.csv, and their hashes"
            verb.add_argument("--record", action="store_true", help=record)
            verb.add_argument(
                "--accept", action="store_true", help="with --record: keep edits of all records of the claim"
            )
        else:
            verb.add_argument("--out", metavar="DIR", help="where files go")
        if name == "figures":
            redraw = "run nothing: draw the claim's own pictures again, from the points that lie beside them"
            verb.add_argument("--redraw", action="store_true", help=redraw)
    text = "Write the marked numbers of the README, docs and experiments' READMEs anew from committed rows"
    verb = verbs.add_parser("numbers", help=text, description=text)
    verb.set_defaults(command=_numbers)
    verb.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a document is not as its rows"
    )
    accept = f"let {documents.UNMARKED} follow documents whose numbers without a marker changed, unless there are more"
    verb.add_argument("--accept", action="store_true", help=accept)
    return parser


def _numbers(options: argparse.Namespace) -> int:
    root = claims_.find().parent
    if not options.check:
        for path in documents.all_documents(root):
            path.write_text(documents.filled(root, path), encoding="utf-8")
    generated = documents.printed_tables(root)
    if options.accept:
        documents.accept(root, generated)
    found = documents.faults(root, generated)
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return FAILED if found else DONE


def _chosen(options: argparse.Namespace) -> list[Claim]:
    known = claims_.read_all(options.experiments)
    for name in options.claims:
        if name not in known:
            raise ClaimError(f"no claim `{name}`: there are {', '.join(known)}")
    return [known[name] for name in options.claims or known]


def _runnable(options: argparse.Namespace) -> list[Claim]:
    """Return the chosen claims that this package runs, and print the commands of the other chosen claims."""
    chosen = _chosen(options)
    for claim in chosen:
        if claim.command:
            print(f"anabranch-lab: {claim.name} measures by itself: {claim.command}", file=sys.stderr)
    return [claim for claim in chosen if claim.command is None]


def _results(claim: Claim, options: argparse.Namespace) -> dict[str, Result]:
    return claim.run(
        full=options.full,
        cluster=options.cluster,
        binary=options.binary,
        jobs=options.jobs,
        progress=False if options.quiet else None,
    )


def _console() -> Console:
    """Return a console on which tables keep their shape even if stdout is no terminal."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _list(options: argparse.Namespace) -> int:
    chosen = _chosen(options)
    if options.json:
        for claim in chosen:
            print(json.dumps({"claim": claim.name, "title": claim.title, "command": claim.command}))
        return DONE
    table = Table("claim", "what it says", "run by", box=None, pad_edge=False)
    for claim in chosen:
        table.add_row(claim.name, claim.title, claim.command or f"anabranch-lab check {claim.name}")
    _console().print(table)
    return DONE


def _keep(claim: Claim, results: dict[str, Result], options: argparse.Namespace) -> Path:
    """Write a run directory for each sweep, in place of earlier output of this command."""
    folder = Path(options.out) if options.out else claim.folder.parent.parent / "runs" / "lab"
    folder = folder / claim.name / ("full" if options.full else "sample")
    for name, result in results.items():
        if (folder / name / SWEEP).is_file():
            shutil.rmtree(folder / name)
        result.save(folder / name)
        print(folder / name)
    return folder


def _run(options: argparse.Namespace) -> int:
    for claim in _runnable(options):
        _keep(claim, _results(claim, options), options)
    return DONE


def _figures(options: argparse.Namespace) -> int:
    from anabranch_lab.figures import draw_claim, write_points

    if options.redraw and (options.full or options.out):
        raise ClaimError(
            "--redraw: not with --full or --out: it draws the claim's own pictures from the points beside them"
        )
    for claim in _runnable(options):
        # The pictures in the claim's folder show the full runs.
        folder = claim.folder
        if not options.redraw:
            is_published = options.full and not options.out
            if is_published:
                refuse_changes(claim.folder)
            results = _results(claim, options)
            if is_published:
                _refuse_changed_binary(results)
            kept = _keep(claim, results, options)
            folder = claim.folder if is_published else kept
            points = write_points(claim, results, folder)
            for path in points:
                print(path)
            if is_published:
                records.write(folder, [path.name for path in points])
        for path in draw_claim(claim, folder):
            print(path)
    return DONE


def _refuse_changed_binary(results: dict[str, Result]) -> None:
    """Refuse to publish rows of a binary that was built from a changed tree."""
    commits = {str(result.about.get("commit")) for result in results.values()}
    changed = sorted(commit for commit in commits if commit.endswith("+"))
    if changed and not os.environ.get(VARIABLE):
        raise ChangedTreeError(
            f"the binary is of commit {changed[0]}, a changed tree: build it from a commit, or set {VARIABLE}=1"
        )


def _check(options: argparse.Namespace) -> int:
    if options.accept and not options.record:
        raise ClaimError("--accept: needs --record: it keeps edits of all records of the claim")
    edited = [] if options.accept else claims_.edited(options.experiments, options.claims)
    if edited:
        for line in edited:
            print(f"{line} since it was recorded: undo that, or record it with --record --accept", file=sys.stderr)
        return FAILED
    runnable = _runnable(options)
    rows: list[Row] = []
    for claim in runnable:
        if options.record:
            refuse_changes(claim.folder)
        results = _results(claim, options)
        checked = claims_.check(claim, results, full=options.full)
        rows += checked
        if options.json:
            for row in checked:
                print(json.dumps(dataclasses.asdict(row)), flush=True)
        if options.record:
            _refuse_changed_binary(results)
            claims_.record(claim, checked, full=options.full)
    if not options.json and rows:
        table = Table(box=None, pad_edge=False)
        table.add_column("metric", overflow="fold")
        for column in ("published", "ours", "tolerance", "ok"):
            table.add_column(column, no_wrap=True, min_width=len(column))
        for row in rows:
            ok = "[green]yes[/]" if row.ok else "[red]no[/]"
            table.add_row(f"{row.claim} {row.metric}", row.published, claims_.shown(row.ours), row.tolerance, ok)
        _console().print(table)
        print(f"{_count(rows)}; notes: --json; reasons: each claim's README.md", file=sys.stderr)
    drifted = [] if options.record else [row for row in rows if not row.is_as_recorded]
    for row in drifted:
        was = ", which was as published" if row.was_ok and not row.ok else ""
        now = claims_.shown(row.ours)
        print(f"{row.claim} {row.metric}: recorded {row.recorded}{was}, now {now}", file=sys.stderr)
    unknown = (row for row in rows if not row.ok and not (options.known and row.recorded))
    return FAILED if drifted or any(unknown) else DONE


def _count(rows: Sequence[Row]) -> str:
    """Say how many values are as published, and how many of our own goals and bounds held."""
    theirs = [row.ok for row in rows if not row.own]
    own = [row.ok for row in rows if row.own]
    said = f"{sum(theirs)} of {len(theirs)} as published"
    return f"{said}; {sum(own)} of {len(own)} goals and bounds of our own held" if own else said


if __name__ == "__main__":
    sys.exit(main())
