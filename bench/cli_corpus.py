"""The command about the corpus: upstream's official launches and ours, compiled and compared with what is stored."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from miniverl.bench.answer import FOLDER, answers, json_option, print_json, say
from miniverl.bench.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from miniverl.compiler.corpus_cases import Corpus
    from miniverl.compiler.corpus_upstream import Reread


@click.command
@click.option("--check", is_flag=True, help="Compute it again, and compare every byte.")
@click.option("--upstream", type=FOLDER, metavar="DIR", help="Read the scripts in a verl checkout.")
@json_option
@answers
def corpus(check: bool, upstream: Path | None, as_json: bool) -> Exit:
    """Compile upstream's official launches, and ours of them.

    In a checkout, writes the manifest and docs/compatibility.md. With --check, --upstream or --json nothing
    is written. Exit code 1 if anything is not as expected.
    """
    from miniverl.compiler import corpus as stored
    from miniverl.compiler import corpus_page, corpus_upstream
    from miniverl.compiler.corpus_cases import corpus as packaged

    whole = packaged()
    if upstream is not None:
        read = corpus_upstream.reread(whole.official, upstream)
        if as_json:
            print_json({"cases": corpus_upstream.plain(read)})
        return _told(read)
    manifest = _computed(whole)
    if as_json:
        print_json(manifest)
    for line in corpus_page.lines(manifest):
        say(line)
    if check:
        return _checked(manifest)
    if not as_json and stored.checkout() is not None:
        _written(manifest)
    return Exit.DONE if corpus_page.is_as_expected(manifest) else Exit.NO


def _computed(whole: "Corpus") -> dict[str, Any]:
    from miniverl.bench.progress import bars
    from miniverl.compiler.corpus import manifest, outcomes

    with bars() as progress:
        done = outcomes(whole.cases, progress=progress)
        further = outcomes(whole.further, progress=progress)
    return manifest(whole, done, further)


def _checked(manifest: dict[str, Any]) -> Exit:
    """Every byte of what is stored against what is computed."""
    from miniverl.compiler import corpus_page
    from miniverl.compiler.corpus import files_of

    stale = [
        path.name
        for path, text in files_of(manifest).items()
        if not path.is_file() or path.read_bytes() != text.encode()
    ]
    if stale:
        say(
            f"{' and '.join(stale)} differ from what is computed: run miniverl corpus, and read the difference."
        )
        return Exit.NO
    if not corpus_page.is_as_expected(manifest):
        say("A case is not as expected.")
        return Exit.NO
    say("Every byte is as stored.")
    return Exit.DONE


def _written(manifest: dict[str, Any]) -> None:
    from miniverl.compiler.corpus import files_of
    from miniverl.compiler.whole import write_text

    for path, text in files_of(manifest).items():
        write_text(path, text)
        say(f"wrote {path.name}")


def _told(read: "Sequence[Reread]") -> Exit:
    for one in read:
        same = "the same file" if one.is_same_file else "another file"
        say(f"{one.case:<24}{same}, {'other' if one.differences else 'the same'} overrides")
        for difference in one.differences:
            say(f"  {difference}")
    return Exit.NO if any(one.differences for one in read) else Exit.DONE
