"""Where the quotes, expansions and parentheses of a script end, as offsets."""

import re
from dataclasses import dataclass

BLANKS = " \t"
OPERATORS = "|&;()<>"
WORD_ENDS = frozenset(BLANKS + "\n" + OPERATORS)
# An unquoted `key=<your path>` is two redirections in the shell; people mean it as a gap to fill.
PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./:-]*>")
TEST = re.compile(r"\[\[(?=[ \t\n])")
MAX_DEPTH = 40
MAX_PARENTHESES = 200

_VARIABLE = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]", re.ASCII)
_TEST_END = re.compile(r"(?<=[ \t\n])\]\](?=[ \t\n;&|()<>]|$)")
_HEREDOC = re.compile(r"<<(-?)[ \t]*((?:'[^'\n]*'|\"[^\"\n]*\"|\\.|[^\s|&;()<>'\"\\])+)")


class ScanError(Exception):
    """`what` starts at `offset` and does not end, or goes too deep."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what


@dataclass(frozen=True, slots=True)
class HeredocStart:
    """A quoted delimiter keeps the body from being expanded; `end` is the offset after it."""

    delimiter: str
    is_quoted: bool
    strips_tabs: bool
    end: int


def after_single(source: str, at: int) -> int:
    """The offset after `'...'`, where `at` is the opening quote."""
    end = source.find("'", at + 1)
    if end < 0:
        raise ScanError(at, "a quote (') that is never closed")
    return end + 1


def after_ansi(source: str, at: int) -> int:
    """The offset after `$'...'`, where `at` is the dollar."""
    end = at + 2
    while end < len(source) and source[end] != "'":
        end += 2 if source[end] == "\\" else 1
    if end >= len(source):
        raise ScanError(at, "a quote ($') that is never closed")
    return end + 1


def after_double(source: str, at: int, depth: int = 0) -> int:
    """The offset after `"..."`, where `at` is the opening quote."""
    end = at + 1
    while end < len(source):
        if source[end] == '"':
            return end + 1
        if source[end] == "\\":
            end += 2
        elif source[end] == "$" and source[end + 1 : end + 2] in ("'", '"'):
            end += 1
        elif source[end] in "$`":
            end = after_expansion(source, end, depth + 1, is_quoted=True)
        else:
            end += 1
    raise ScanError(at, 'a quote (") that is never closed')


def after_backtick(source: str, at: int) -> int:
    """The offset after `` `...` ``."""
    end = at + 1
    while end < len(source) and source[end] != "`":
        end += 2 if source[end] == "\\" else 1
    if end >= len(source):
        raise ScanError(at, "a backtick that is never closed")
    return end + 1


def after_expansion(source: str, at: int, depth: int = 0, *, is_quoted: bool) -> int:
    """The offset after the expansion that starts with `$` or a backtick at `at`; at + 1 for a bare `$`."""
    if depth > MAX_DEPTH:
        raise ScanError(at, f"expansions more than {MAX_DEPTH} deep")
    if source[at] == "`":
        return after_backtick(source, at)
    following = source[at + 1 : at + 2]
    if following == "(":
        return after_parentheses(source, at + 1, depth)
    if following == "{":
        return after_braces(source, at + 1, depth)
    if following == "'" and not is_quoted:
        return after_ansi(source, at)
    if following == '"' and not is_quoted:
        return after_double(source, at + 1, depth)
    name = _VARIABLE.match(source, at + 1)
    return name.end() if name else at + 1


def after_parentheses(source: str, at: int, depth: int = 0) -> int:
    """The offset after the parenthesis that closes the one at `at`, past quotes and comments."""
    level, end, starts_word = 0, at, True
    waiting: list[HeredocStart] = []
    holds_commands = not source.startswith("((", at)
    while end < len(source):
        character = source[end]
        if character == "\n" and waiting:
            for heredoc in waiting:
                end = body_end(source, end + 1, heredoc)[1] - 1
            waiting.clear()
        if character == "<" and holds_commands and (found := heredoc_at(source, end)):
            waiting.append(found)
            end = found.end
            continue
        if character == "#" and starts_word:
            line_end = source.find("\n", end)
            end = len(source) if line_end < 0 else line_end
            continue
        starts_word = character in WORD_ENDS
        if character == "(":
            level += 1
            if level > MAX_PARENTHESES:
                raise ScanError(at, f"parentheses more than {MAX_PARENTHESES} deep")
        elif character == ")":
            level -= 1
            if level == 0:
                return end + 1
        after = after_quoted(source, end, depth)
        end = after if after > end else end + 1
    raise ScanError(at, "a parenthesis that is never closed")


def after_braces(source: str, at: int, depth: int = 0) -> int:
    """The offset after the brace that closes the one of `${` at `at`."""
    if depth > MAX_DEPTH:
        raise ScanError(at, f"expansions more than {MAX_DEPTH} deep")
    end = at + 1
    while end < len(source):
        if source[end] == "}":
            return end + 1
        after = end + 1 if source.startswith("$}", end) else after_quoted(source, end, depth + 1)
        end = max(after, end + 1)
    raise ScanError(at, "a brace (${) that is never closed")


def arithmetic_end(source: str, at: int) -> int | None:
    """The offset after `((...))` at `at`; None when it is something else."""
    if not source.startswith("((", at):
        return None
    end = after_parentheses(source, at)
    inner = after_parentheses(source, at + 1)
    return end if inner == end - 1 else None


def heredoc_at(source: str, at: int) -> HeredocStart | None:
    """What `<<DELIMITER` at `at` announces; None when it is something else."""
    found = _HEREDOC.match(source, at)
    if found is None or source.startswith("<<<", at):
        return None
    delimiter = re.sub(r"\\(.)|['\"]", lambda one: one[1] or "", found[2])
    return HeredocStart(delimiter, delimiter != found[2], found[1] == "-", found.end())


def body_end(source: str, start: int, heredoc: HeredocStart) -> tuple[int, int]:
    """Where a heredoc's lines from `start` on end, and the offset after its delimiter's line."""
    at = start
    while at < len(source):
        line_end = source.find("\n", at)
        line_end = len(source) if line_end < 0 else line_end
        line = source[at:line_end]
        if (line.lstrip("\t") if heredoc.strips_tabs else line) == heredoc.delimiter:
            return at, min(line_end + 1, len(source))
        at = line_end + 1
    raise ScanError(start - 1, f"a heredoc without its end {heredoc.delimiter}")


def after_test(source: str, at: int) -> int:
    """The offset after `[[ ... ]]`, whose operators are not those of commands."""
    end = at + 2
    while end < len(source):
        if closing := _TEST_END.match(source, end):
            return closing.end()
        end = max(end + 1, after_quoted(source, end, 0))
    raise ScanError(at, "a [[ that is never closed")


def after_quoted(source: str, at: int, depth: int) -> int:
    """The offset after a quoted part or an expansion; `at` when none starts there."""
    character = source[at]
    if character == "\\":
        return min(at + 2, len(source))
    if character == "'":
        return after_single(source, at)
    if character == '"':
        return after_double(source, at, depth + 1)
    if character in "$`":
        return after_expansion(source, at, depth + 1, is_quoted=False)
    return at
