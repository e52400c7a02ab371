"""Loops of a script: known ones turn by turn, others once with everything unknown that their body changes."""

from typing import TYPE_CHECKING

from tree_sitter import Node

from miniverl.compiler.shell_state import ONLY_RUNNING, Leaves
from miniverl.compiler.shell_tree import statements_in
from miniverl.compiler.shell_values import Text, Truth, Unknown, undecided

if TYPE_CHECKING:
    from miniverl.compiler.shell_flow import Flow


def for_each(flow: "Flow", node: Node) -> Truth:
    """`for name in words`, and `for name` over the arguments."""
    name_node = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    assert name_node is not None
    assert body is not None
    name = flow.source_of(name_node)
    values = node.children_by_field_name("value")
    if not any(one.type == "in" for one in node.children):
        items = list(flow.scope.arguments)
    else:
        items = []
        for word in flow.words(values):
            fields = flow.expander.fields(word)
            several = [
                one.unknowns[0]
                for one in fields
                if len(one.pieces) == 1 and one.unknowns and not word.source.startswith('"')
            ]
            if several:
                return _any_number(flow, several[0], body, name)
            items.extend(fields)
    for item in items:
        flow.scope.set(name, item)
        if not _turn(flow, body):
            break
    return True


def _any_number(flow: "Flow", cause: Unknown, body: Node, name: str | None = None) -> Truth:
    """A loop that runs any number of times: what its body changes is unknown before its first command."""

    def some_time() -> Truth:
        if name is not None:
            flow.scope.set(name, Text((undecided(name, cause.line, ONLY_RUNNING, (cause,)),)))
        _turn(flow, body)
        return True

    flow.rehearsals += 1
    flow.branch(cause, [some_time, lambda: True])
    flow.rehearsals -= 1
    return flow.branch(cause, [some_time, lambda: True])


def counted_for(flow: "Flow", node: Node) -> Truth:
    """`for ((start; check; step))`."""
    line = flow.line_of(node)
    body = node.child_by_field_name("body")
    assert body is not None
    head = flow.script.source[node.start_byte : body.start_byte]
    inside = head[head.index("((") + 2 : head.rindex("))")]
    first, check, step = (*inside.split(";"), "", "", "")[:3]
    flow.expander.arithmetic(first, line)
    while True:
        value = flow.expander.arithmetic(check, line) if check.strip() else 1
        if isinstance(value, Unknown):
            return _any_number(flow, value, body)
        if value == 0 or not _turn(flow, body):
            return True
        flow.expander.arithmetic(step, line)


def while_holds(flow: "Flow", node: Node) -> Truth:
    """`while` and `until`."""
    body = node.child_by_field_name("body")
    assert body is not None
    conditions = [one for one in statements_in(node) if one != body]
    is_until = any(one.type == "until" for one in node.children)
    while True:
        flow.scope.budget.step(flow.line_of(node))
        status = flow.condition(conditions)
        if isinstance(status, Unknown):
            return _any_number(flow, status, body)
        if status is is_until or not _turn(flow, body):
            return True


def _turn(flow: "Flow", body: Node) -> bool:
    """One turn of a loop; false when it is the last."""
    flow.turns += 1
    try:
        flow.sequence(statements_in(body))
    except Leaves as leaving:
        if leaving.kind == "return":
            raise
        if leaving.levels > 1:
            raise Leaves(leaving.kind, leaving.line, levels=leaving.levels - 1) from None
        return leaving.kind == "continue"
    finally:
        flow.turns -= 1
    return True
