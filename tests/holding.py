"""All laws at once, for a test of each subject."""

from baracuda.testing.cases import Subject
from baracuda.testing.laws import LAWS


def hold(subject: Subject) -> None:
    """Try every law, and raise AssertionError with all that are broken."""
    broken = []
    with subject.context():
        for name, function in LAWS.items():
            try:
                function(subject)
            except AssertionError as error:
                broken.append(f"{name}: {error}")
    if broken:
        raise AssertionError("\n".join([f"{len(broken)} of {len(LAWS)} laws are broken", *broken]))
