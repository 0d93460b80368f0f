"""Docstrings of ops as Markdown: formulas as TeX, names as links, parameters with their text."""

from __future__ import annotations

import ast
import inspect
import re
from typing import NamedTuple

from baracuda.calls.op import registry

# -- mathematics ---------------------------------------------------------------------------------

_SIGNS: dict[type[ast.AST], tuple[str, int]] = {
    ast.Add: ("+", 1), ast.Sub: ("-", 1), ast.Mult: (r"\,", 2), ast.Lt: ("<", 0),
    ast.LtE: (r"\le", 0), ast.Gt: (">", 0), ast.GtE: (r"\ge", 0), ast.Eq: ("=", 0),
}  # fmt: skip
_AROUND = {"abs": (r"\lvert ", r"\rvert"), "floor": (r"\lfloor ", r"\rfloor"),
           "sqrt": (r"\sqrt{", "}")}  # fmt: skip
_KNOWN = {"exp", "log", "max", "min", "tanh"}


def maths(code: str) -> str | None:
    """A formula as TeX; None for code that is none."""
    try:
        (statement,) = ast.parse(code).body
        if isinstance(statement, ast.Assign):
            (left,) = statement.targets
            return f"{_tex(left)} = {_tex(statement.value)}"
        if isinstance(statement, ast.Expr) and isinstance(
            statement.value, ast.BinOp | ast.Compare | ast.Call
        ):
            return _tex(statement.value)
    except (SyntaxError, ValueError):
        pass
    return None


def _tex(node: ast.AST, outer: int = 0) -> str:
    """What stands in an operator that binds as tightly as `outer`; -1 is an exponent, on a line."""
    match node:
        case ast.Name(id="inf" | "pi" as name):
            return {"inf": r"\infty", "pi": r"\pi"}[name]
        case ast.Name(id=name):
            return name if len(name) == 1 else r"\mathrm{" + name.replace("_", r"\_") + "}"
        case ast.Constant(value=value) if value is ...:
            return r"\dots"
        case ast.Constant(value=value) if type(value) in (int, float):
            return str(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"-{_tex(operand, 3)}"
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return f"{_tex(left, 4)}^{{{_tex(right, -1)}}}"
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            if outer < 0:
                return f"{_tex(left, 2)}/{_tex(right, 3)}"
            inner = rf"\frac{{{_tex(left)}}}{{{_tex(right)}}}"
            return rf"\left({inner}\right)" if outer > 3 else inner
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            text, level = _SIGNS[type(sign)]
            inner = f"{_tex(left, level)} {text} {_tex(right, level + 1)}"
            return rf"\left({inner}\right)" if level < outer else inner
        case ast.Compare(left=left, ops=signs, comparators=others):
            parts = [f" {_SIGNS[type(s)][0]} {_tex(x)}" for s, x in zip(signs, others, strict=True)]
            return _tex(left) + "".join(parts)
        case ast.Call(func=ast.Name(id="sum"), args=[x]):
            inner = rf"\sum {_tex(x, 2)}"
            return rf"\Bigl({inner}\Bigr)" if outer > 0 else inner
        case ast.Call(func=ast.Name(id=name), args=[x]) if name in _AROUND:
            return _tex(x).join(_AROUND[name])
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            spelt = name.replace("_", r"\_")
            called = rf"\{name}" if name in _KNOWN else rf"\operatorname{{{spelt}}}"
            return f"{called}({', '.join(map(_tex, args))})"
        case ast.Subscript(value=value, slice=ast.Tuple(elts=elements)):
            return f"{_tex(value)}[{', '.join(map(_tex, elements))}]"
    raise ValueError(f"no formula: {ast.dump(node)}")


# -- docstrings ----------------------------------------------------------------------------------


def sections(doc: str) -> dict[str, str]:
    """A numpydoc docstring by its headings; what comes before them under ""."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", doc, flags=re.M)
    texts = [text.strip("\n") for text in parts]
    return {"": texts[0]} | dict(zip(texts[1::2], texts[2::2], strict=True))


def prose(text: str) -> str:
    """A docstring's text in Markdown: formulas as mathematics, ops and papers as links."""
    out = []
    for i, part in enumerate(re.split(r"(``.+?``|`.+?`)", text, flags=re.S)):
        code = " ".join(part.strip("`").split())
        if not i % 2:
            part = re.sub(r"\[[*\w][^\]]*\]", r"`\g<0>`", part)
            part = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", part)
            out.append(part)
        elif part.startswith("``") and (formula := maths(code)):
            out.append(f"${formula}$")
        else:
            out.append(f"[`{code}`]({code}.md)" if code in registry else f"`{code}`")
    return "".join(out)


class Entry(NamedTuple):
    """What a section lists: names or a description, the kind of value, the text."""

    head: str
    kind: str
    about: str

    @property
    def names(self) -> list[str]:
        """The names that share the text; none where the head is a description."""
        return self.head.split(", ") if re.fullmatch(r"[\w*]+(, [\w*]+)*", self.head) else []


def _listed(text: str) -> list[Entry]:
    """The entries of a section. A head that ends with a comma goes on in the next line."""
    out = []
    text = re.sub(r"^(\S.*,)\n(?=\S)", r"\1 ", text, flags=re.M)
    for head, body in re.findall(r"^(\S.*)\n((?:(?: +.*)?(?:\n|$))*)", text + "\n", re.M):
        names, _, kind = head.partition(" : ")
        out.append(Entry(names, kind, " ".join(body.split())))
    return out


def _beside(names: list[str], more: str, section: str) -> list[str]:
    """Of several names those that what is said beside "As in" belongs to; none for a line apart."""
    if section != "Raises":
        return []
    kind = "ValueError" if "shape" in more else "IndexError" if "late error" in more else ""
    return [kind] if kind in names else names


def _of_own(name: str, text: str) -> str:
    """Errors of another op without what is said of parameters that the op called `name` lacks."""
    spec = registry[name].spec
    known = {*spec.arrays, *spec.options, *spec.scalars, *registry}
    others = [f"`{one}`" for one in set(re.findall(r"(?<!`)`(\w+)`(?!`)", text)) - known]
    if not others:
        return text
    for other in others:
        text = text.replace(f" or {other}", "").replace(f"{other} or ", "")
    clauses = re.split("; ", text.rstrip("."))
    kept = "; ".join([c for c in clauses if not any(other in c for other in others)])
    return kept[:1].upper() + kept[1:] + "." * bool(kept)


def described(name: str, section: str) -> dict[str, Entry]:
    """The entries of a section of an op, where "As in `other`" has the text of the other op."""
    out, theirs = [], dict[str, Entry]()
    # From the last to the first: an array that has a shape and no text has that of "As in" below.
    for entry in reversed(_listed(sections(inspect.getdoc(registry[name]) or "")[section])):
        if same := re.match(r"As (?:(?:in|of) )?`(\w+)`[;:.]? ?", entry.about):
            theirs = described(same[1], section)
            more = entry.about[same.end() :]
            more = more[:1].upper() + more[1:]
            to = entry.names
            if more and len(to) > 1:
                to = _beside(entry.names, more, section)
                out += [Entry("", "", more)] * (not to)
            for one in reversed(entry.names):
                known = theirs.get(one, Entry(one, "", ""))
                about = _of_own(name, known.about) if section == "Raises" else known.about
                about = f"{about} {more if one in to else ''}".strip()
                out += [Entry(one, entry.kind or known.kind, about)] * bool(about)
            out += [entry] * (not entry.names)
        elif entry.names and not entry.about and section == "Parameters":
            own = {one: Entry(one, entry.kind, "") for one in reversed(entry.names)}
            alone = len(own) == 1
            for one, mine in own.items():
                known = theirs.get(one, mine)
                out.append(known._replace(kind=mine.kind) if alone else known)
        else:
            out.append(entry)
    return {one: entry for entry in reversed(out) for one in entry.names or [str(entry)]}


def bullets(name: str, section: str) -> str:
    """What a section of an op lists, as bullets."""
    out = []
    for entry in dict.fromkeys(described(name, section).values()):
        called = f"`{entry.head}`" if entry.names else prose(entry.head)
        label = f"{called} ({prose(entry.kind)})" if entry.kind else called
        about = " ".join(prose(entry.about).split())
        out.append("- " + ": ".join([part for part in (label, about) if part]))
    return "\n".join(out)
