"""All laws at once, for a test of each subject."""

from collections.abc import Collection

from baracuda.testing.cases import Subject
from baracuda.testing.laws import LAWS


def hold(subject: Subject, without: Collection[str] = ()) -> None:
    """Try every law but some, and raise AssertionError with all that are broken."""
    broken, tried = [], [name for name in LAWS if name not in without]
    with subject.context():
        for name in tried:
            try:
                LAWS[name](subject)
            except AssertionError as error:
                broken.append(f"{name}: {error}")
    if broken:
        raise AssertionError("\n".join([f"{len(broken)} of {len(tried)} laws are broken", *broken]))
